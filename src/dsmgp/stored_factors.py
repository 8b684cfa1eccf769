"""Factors of the leaves in an archive, where they were asked for, and back.

What they hold could be computed again from the rest of a file, so it must agree with it. Making the factors anew would
take as long as not having them; that they solve for the rows of the file is seen from one product with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.archive import Archive, ModelFileError
from dsmgp.batched import JITTER, LOG_2PI
from dsmgp.conditioned import Conditioned
from dsmgp.engine import Bound
from dsmgp.execution import as_numpy
from dsmgp.experts import Experts
from dsmgp.ragged import Ragged

__all__ = ["read_factors", "write_factors"]

Array = NDArray[np.float64]
# Rounding that a factor and what it solves may be apart by, in units of the matrix's order times the precision.
MOST_ROUNDING = 100.0


def write_factors(conditioned: Conditioned, arrays: dict[str, NDArray[Any]]) -> None:
    rows, experts = conditioned.leaf_rows, conditioned.experts
    arrays["factor.rows"], arrays["factor.row_ends"] = rows.flat, rows.ends
    arrays["factor.log_evidence"] = conditioned.log_evidence
    kind = np.float32 if experts.X.dtype == torch.float32 else np.float64
    arrays["factor.alpha"] = np.stack([as_numpy(a).astype(kind) for a in conditioned.alpha])
    for output in range(experts.n_outputs):
        # One triangle of each leaf, row after row.
        triangles = [
            as_numpy(conditioned.factor(output, k))[np.tril_indices(n)].astype(kind)
            for k, n in enumerate(rows.sizes.tolist())
            if n
        ]
        arrays[f"factor.lower.{output}"] = np.concatenate([np.empty(0, kind), *triangles])


def read_factors(
    archive: Archive, experts: Experts, naturals: Sequence[Tensor], memory: float
) -> Conditioned:
    kind = np.float32 if experts.X.dtype == torch.float32 else np.float64
    n_pairs, n_leaves = len(experts.leaf_rows.flat), experts.n_leaves
    rows = Ragged(
        archive.array("factor.rows", np.int64, n_pairs),
        archive.array("factor.row_ends", np.int64, n_leaves + 1),
    )
    own = experts.leaf_rows
    in_order = rows.flat[np.lexsort((rows.flat, own.owner))]
    if not np.array_equal(rows.ends, own.ends) or not np.array_equal(
        in_order, own.flat[np.lexsort((own.flat, own.owner))]
    ):
        raise ModelFileError("its factors are of other rows than its leaves")
    sizes = rows.sizes
    ends = np.concatenate([[0], np.cumsum(sizes * (sizes + 1) // 2)])
    alpha = archive.array("factor.alpha", kind, experts.n_outputs, n_pairs)
    evidence = archive.array("factor.log_evidence", np.float64, n_leaves, experts.n_outputs)
    bound = experts.bind(naturals)
    factors = []
    for output in range(experts.n_outputs):
        flat = archive.array(f"factor.lower.{output}", kind, int(ends[-1]))
        by_leaf = []
        for k, n in enumerate(sizes.tolist()):
            whole = np.zeros((n, n), dtype=kind)
            whole[np.tril_indices(n)] = flat[ends[k] : ends[k + 1]]
            solved = alpha[output, rows.ends[k] : rows.ends[k + 1]]
            if n and not _agree(
                whole, solved, evidence[k, output], experts, bound, output, k, rows[k]
            ):
                raise ModelFileError("its factors do not go with its rows and hyperparameters")
            by_leaf.append(torch.from_numpy(whole).to(experts.X.device))
        factors.append(by_leaf)
    on_device = [torch.from_numpy(a).to(experts.X.device) for a in alpha]
    return Conditioned.restored(experts, naturals, rows, evidence, on_device, factors, memory)


def _agree(
    factor: NDArray[Any],
    alpha: NDArray[Any],
    log_evidence: float,
    experts: Experts,
    bound: Bound,
    output: int,
    number: int,
    rows: NDArray[np.int64],
) -> bool:
    """Whether ``L L' alpha`` is the leaf's ``y - mean``, the diagonal and last column of ``L L'`` are the covariance's, and the evidence theirs."""
    L, a, n = factor.astype(np.float64), alpha.astype(np.float64), len(rows)
    if not (L.diagonal() > 0).all():
        return False
    law, where = bound(output, [number]), torch.from_numpy(rows).to(experts.X.device)
    X = experts.X[where].unsqueeze(0)
    residual = as_numpy(experts.Y[where, output] - law.mean(X)[0])
    diagonal = as_numpy(law.variance(X)[0] + law.noise)
    last = as_numpy(law.cross(X, X[:, -1:])[0, :, 0])
    if experts.known is not None:
        diagonal = diagonal + as_numpy(experts.known[where, output])
    with np.errstate(all="ignore"):
        white = a @ L
        own, rounding = np.square(L).sum(axis=1), MOST_ROUNDING * n * np.finfo(factor.dtype).eps
        away = np.linalg.norm(L @ white - residual)
        solves = away <= rounding * (own.sum() * np.linalg.norm(a) + np.linalg.norm(residual))
        # A leaf that was helped has more on its diagonal.
        helped = 2.0 * JITTER[experts.X.dtype][1] * diagonal.mean()
        # Distances are not rounded alike wherever covariances are computed.
        most = np.finfo(factor.dtype).eps ** (1 / 3) * diagonal.max()
        same = (-most <= own - diagonal) & (own - diagonal <= helped + most)
        same[:-1] &= np.abs((L @ L[-1] - last)[:-1]) <= most
        found = -0.5 * (white @ white + n * LOG_2PI) - np.log(L.diagonal()).sum()
        close = abs(found - log_evidence) <= 1e-3 * (n + abs(found))
    return bool(solves and same.all() and close)
