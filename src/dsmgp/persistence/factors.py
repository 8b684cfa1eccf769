"""How Cholesky factors of the leaves are stored, if the user asks for them.

They could be computed again from the rest of the file, so they must agree with it. Factorising to check them would take as long as
not having them; instead each factor must reproduce, in a few products, the leaf's residuals, part of its covariance and its evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.experts.backend import BoundKernels
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.points import LeafPoints, Observations
from dsmgp.experts.posterior import InMemoryLeafPosterior, posterior_from_factors
from dsmgp.linalg.jitter import JITTER_RANGE
from dsmgp.persistence.record import Section

__all__ = ["read_factors", "write_factors"]

# Tolerated rounding errors, in units of the matrix's order times the precision.
MAX_ROUNDING = 100.0


def write_factors(posterior: InMemoryLeafPosterior, section: Section) -> None:
    """Write rows, weights, evidence and the lower triangles, row after row, of all leaves."""
    rows, points, leaf_gps = posterior.leaf_rows, posterior.points.first, posterior.leaf_gps
    arrays = section.arrays
    dtype = np.dtype(leaf_gps.dtype)
    arrays["factor.rows"], arrays["factor.row_ends"] = rows.flat, rows.ends
    arrays["factor.log_evidence"] = posterior.log_evidence
    arrays["factor.alpha"] = np.stack(posterior.alpha).astype(dtype)
    ends = _triangle_ends(points)
    for output in range(leaf_gps.n_outputs):
        flat = arrays[f"factor.lower.{output}"] = np.empty(ends[-1], dtype)
        for k in np.flatnonzero(points.sizes).tolist():
            factor = posterior.factor(output, k)
            flat[ends[k] : ends[k + 1]] = factor[np.tril_indices(len(factor))]


def read_factors(
    section: Section, leaf_gps: InMemoryLeafGPs, kernel_parameters: Sequence[Array], memory: float
) -> InMemoryLeafPosterior:
    """Read the factors of leaves and check each against the leaf's rows and hyperparameters."""
    dtype = np.dtype(leaf_gps.dtype)
    expected, n_pairs = leaf_gps.leaf_rows, len(leaf_gps.leaf_rows.flat)
    rows = Ragged(
        section.array("factor.rows", np.int64, n_pairs),
        section.array("factor.row_ends", np.int64, leaf_gps.n_leaves + 1),
    )
    if not np.array_equal(rows.ends, expected.ends) or not np.array_equal(
        _sorted(rows), _sorted(expected)
    ):
        raise ModelFileError("its factors are of other rows than its leaves")
    points = LeafPoints.of(rows, leaf_gps.labels, leaf_gps.row_weights)
    if section.array("factor.alpha", dtype, leaf_gps.n_outputs, None).shape[1] == n_pairs:
        # As earlier versions wrote them, with a row for each of the leaf's.
        points = LeafPoints.of(rows, None, leaf_gps.row_weights)
    first = points.first
    alpha = section.array("factor.alpha", dtype, leaf_gps.n_outputs, len(first.flat))
    evidence = section.array("factor.log_evidence", np.float64, "leaves", "outputs")
    ends, bound = _triangle_ends(first), leaf_gps.bind(kernel_parameters)
    factors = []
    for output in range(leaf_gps.n_outputs):
        flat = section.array(f"factor.lower.{output}", dtype, int(ends[-1]))
        by_leaf = []
        for k, n in enumerate(first.sizes.tolist()):
            factor = np.zeros((n, n), dtype)
            factor[np.tril_indices(n)] = flat[ends[k] : ends[k + 1]]
            weights = alpha[output, first.ends[k] : first.ends[k + 1]]
            if n and not _agrees(
                factor,
                weights,
                evidence[k, output],
                _Moments.of(leaf_gps, bound, output, k, points),
            ):
                raise ModelFileError("its factors do not go with its rows and hyperparameters")
            by_leaf.append(factor)
        factors.append(by_leaf)
    return posterior_from_factors(
        leaf_gps, kernel_parameters, points, evidence, list(alpha), factors, memory
    )


def _sorted(rows: Ragged) -> Index:
    """Row numbers in increasing order within each leaf."""
    return np.asarray(rows.flat[np.lexsort((rows.flat, rows.owner))])


def _triangle_ends(rows: Ragged) -> Index:
    """Where the lower triangles of leaves begin and end when they lie one after the other."""
    return np.concatenate([[0], np.cumsum(rows.sizes * (rows.sizes + 1) // 2)])


@dataclass(frozen=True, eq=False)
class _Moments:
    """What the factor of a leaf is checked against.

    Attributes
    ----------
    observations : Observations
        At the points of the leaf.
    residual : ndarray of shape (n_points,)
        These minus their mean.
    diagonal, last_column : ndarray of shape (n_points,)
        Of their covariance.
    """

    observations: Observations
    residual: Array
    diagonal: Array
    last_column: Array

    @classmethod
    def of(
        cls,
        leaf_gps: InMemoryLeafGPs,
        bound: BoundKernels,
        output: int,
        leaf: int,
        points: LeafPoints,
    ) -> _Moments:
        kernel, X = bound(output, leaf), leaf_gps.X[points.first[leaf]]
        rows, starts = points.of_leaf(leaf)
        with np.errstate(all="ignore"):
            noise = np.full(len(rows), kernel.noise)
            if leaf_gps.known_noise is not None:
                noise = noise + leaf_gps.known_noise[rows, output]
            weights = points.weights(rows)
            observations = Observations.of(leaf_gps.Y[rows, output], noise, starts, weights)
            residual = observations.mean - kernel.mean(X)
            diagonal = kernel.variance(X) + observations.variance
            return cls(observations, residual, diagonal, kernel.cross(X, X[-1:])[:, 0])


def _agrees(
    factor: NDArray[Any],
    alpha: NDArray[Any],
    log_evidence: float,
    moments: _Moments,
) -> bool:
    """Check that ``L L' alpha`` is ``y - mean``, diagonal and last column of ``L L'`` those of the covariance, and the evidence theirs."""
    L, a, n = factor.astype(np.float64), alpha.astype(np.float64), len(alpha)
    if not (L.diagonal() > 0).all():
        return False
    residual, diagonal, observations = moments.residual, moments.diagonal, moments.observations
    eps = np.finfo(factor.dtype).eps
    with np.errstate(all="ignore"):
        white = a @ L
        squares, rounding = np.square(L).sum(axis=1), MAX_ROUNDING * n * eps
        error = np.linalg.norm(L @ white - residual)
        limit = rounding * (squares.sum() * np.linalg.norm(a) + np.linalg.norm(residual))
        # A leaf to which jitter was added has more on its diagonal.
        relative_jitter = 2.0 * JITTER_RANGE[factor.dtype.name][1]
        # Distances are rounded differently by different backends.
        tolerance = eps ** (1 / 3) * diagonal.max()
        excess = squares - diagonal
        same = (-tolerance <= excess) & (excess <= relative_jitter * diagonal.mean() + tolerance)
        same[:-1] &= np.abs((L @ L[-1] - moments.last_column)[:-1]) <= tolerance
        evidence = observations.log_evidence(
            float(white @ white), float(np.log(L.diagonal()).sum())
        )
        n_rows = observations.n_observations
        close = abs(evidence - log_evidence) <= 1e-3 * (n_rows + abs(evidence))
    return bool(error <= limit < np.inf and same.all() and close and np.isfinite(evidence))
