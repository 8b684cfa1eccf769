"""Duplicate inputs: finding them, and leave-one-out predictions of a row without the row and all its duplicates.

A row whose duplicate stays is predicted far better than a new input would be, so scores of new inputs and the gate leave
out both (:mod:`dsmgp.experts.loo`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.experts.loo import normal_log_density

__all__ = ["any_equal", "duplicates", "equal_rows", "without_duplicates"]

# Share of the mean diagonal added to a matrix of squares that rounding has made indefinite.
LEAST_SHARE = 1e-10


def equal_rows(X: Array) -> Index:
    """Return a number for each row, equal for duplicate rows."""
    X = np.asarray(X, dtype=np.float64) + 0.0  # -0.0 becomes 0.0
    labels = np.unique(_hashes(X.view(np.uint64)), return_inverse=True)[1].astype(np.int64)
    rows = np.arange(len(X))
    last = np.empty_like(rows)
    last[labels] = rows  # of each label
    duplicates = np.flatnonzero(last[labels] != rows)
    if (X[duplicates] == X[last[labels[duplicates]]]).all():
        return labels
    # Different rows with the same hash: sort the rows themselves, which takes far longer.
    return np.unique(X, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def any_equal(labels: Index) -> bool:
    """Whether any labels, which are numbered from 0, are equal."""
    return bool(labels.max(initial=-1) < len(labels) - 1)


def duplicates(labels: Index) -> list[Index]:
    """Return the positions of equal labels, one array (groups, size) for each size of group.

    Examples
    --------
    >>> duplicates(np.array([0, 1, 2, 0, 1, 3]))
    [array([[0, 3],
           [1, 4]])]
    """
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    return [
        order[starts[counts == size][:, None] + np.arange(size)]
        for size in np.unique(counts)
        if size > 1
    ]


def _hashes(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of each row."""
    hashes = np.zeros(len(bits), dtype=np.uint64)
    for column in bits.T:
        hashes ^= column
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(32)
    return hashes


def without_duplicates(
    residual: Array,
    variance: Array,
    inverse_factor: Tensor,
    alpha: Tensor,
    duplicates: Sequence[list[Index]],
) -> tuple[Array, Array, Array]:
    """Leave out each row together with its duplicates (R&W eqs. 5.10 to 5.12, for groups of rows).

    Parameters
    ----------
    residual, variance : ndarray of shape (leaves, rows)
        Leave-one-out residuals and variances.
    inverse_factor : Tensor of shape (leaves, rows, rows)
        Inverses of the lower Cholesky factors.
    alpha : Tensor of shape (leaves, rows)
        ``K^-1 (y - mean)``.
    duplicates : sequence of list of ndarray
        For each leaf one array (groups, size) for each size of group.

    Returns
    -------
    residual, variance, log_density : ndarray of shape (leaves, rows)
        ``log_density`` is that of a row and its duplicates together, given the leaf's other rows.
    """
    log_density = normal_log_density(residual, variance)
    residual, variance = residual.copy(), variance.copy()
    for size in {rows.shape[1] for of_leaf in duplicates for rows in of_leaf}:
        groups = [
            (leaf, rows)
            for leaf, of_leaf in enumerate(duplicates)
            for rows in of_leaf
            if rows.shape[1] == size
        ]
        members = np.concatenate([rows for _, rows in groups])  # (groups, size)
        owner = np.repeat([leaf for leaf, _ in groups], [len(rows) for _, rows in groups])
        rows, leaf = (torch.from_numpy(a).to(alpha.device) for a in (members, owner))
        at_once = max(1, 2**26 // inverse_factor.shape[-1])
        for part in torch.arange(len(leaf), device=leaf.device).split(at_once):
            columns = inverse_factor.mT[leaf[part, None], rows[part]]  # (groups, size, rows)
            S, half_log_det = _inverse_of_square(columns)
            alpha_of = alpha[leaf[part, None], rows[part]].to(S)
            solved = (S @ alpha_of.unsqueeze(-1)).squeeze(-1)
            together = half_log_det - 0.5 * ((alpha_of * solved).sum(-1) + size * LOG_2PI)
            where = (owner[part.cpu().numpy(), None], members[part.cpu().numpy()])
            residual[where] = solved.cpu().numpy()
            variance[where] = S.diagonal(dim1=-2, dim2=-1).cpu().numpy()
            log_density[where] = together.cpu().numpy()[:, None]
    return residual, variance, log_density


def _inverse_of_square(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverses of ``A A'`` (groups, size, size) and half their log determinants, in double precision.

    Duplicate inputs make ``A A'`` all but singular.
    """
    A = A.double()
    square = A @ A.mT
    factor, failed = torch.linalg.cholesky_ex(square)
    if bool(failed.any()):
        diagonal = square.diagonal(dim1=-2, dim2=-1)
        diagonal += LEAST_SHARE * diagonal.mean(-1, keepdim=True)
        factor = torch.linalg.cholesky(square)
    half_log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return torch.cholesky_inverse(factor), half_log_det
