"""Duplicate inputs: finding them, and leave-one-out predictions of a row without the row and all its duplicates.

A row whose duplicate stays is predicted far better than a new input would be, so scores of new inputs and the gate leave
out both (:mod:`dsmgp.experts.loo`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LOG_2PI
from dsmgp.experts.loo import normal_log_density

__all__ = ["any_equal", "duplicates", "equal_rows", "precisions_of", "without_duplicates"]

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
    alpha: Array,
    duplicates: Sequence[list[Index]],
    precisions: Callable[[Index, Index], Array],
) -> tuple[Array, Array, Array]:
    """Leave out each row together with its duplicates (R&W eqs. 5.10 to 5.12, for groups of rows).

    Parameters
    ----------
    residual, variance : ndarray of shape (leaves, rows)
        Leave-one-out residuals and variances.
    alpha : ndarray of shape (leaves, rows)
        ``K^-1 (y - mean)``.
    duplicates : sequence of list of ndarray
        For each leaf one array (groups, size) for each size of group.
    precisions : callable
        Takes the leaf of each group (groups,) and its rows (groups, size); returns these blocks of ``K^-1``,
        (groups, size, size).

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
        at_once = max(1, 2**26 // (alpha.shape[-1] * size))
        for first in range(0, len(owner), at_once):
            leaf, rows = owner[first : first + at_once], members[first : first + at_once]
            where = (leaf[:, None], rows)
            S, half_log_det = _inverse(precisions(leaf, rows))
            alpha_of = alpha[where]
            solved = (S @ alpha_of[..., None])[..., 0]
            together = half_log_det - 0.5 * ((alpha_of * solved).sum(-1) + size * LOG_2PI)
            residual[where] = solved
            variance[where] = np.diagonal(S, axis1=-2, axis2=-1)
            log_density[where] = together[:, None]
    return residual, variance, log_density


def precisions_of(inverse_factor: Array) -> Callable[[Index, Index], Array]:
    """Return the function ``precisions`` of a single leaf, from the inverse of its lower Cholesky factor."""

    def blocks(leaf: Index, rows: Index) -> Array:
        columns = inverse_factor.T[rows]  # (groups, size, rows)
        return columns @ columns.swapaxes(-1, -2)

    return blocks


def _inverse(blocks: Array) -> tuple[Array, Array]:
    """Return the inverses of blocks of ``K^-1`` and half their log determinants: duplicate inputs make them all but singular."""
    try:
        factor = np.linalg.cholesky(blocks)
    except np.linalg.LinAlgError:
        diagonal = np.diagonal(blocks, axis1=-2, axis2=-1).mean(-1)
        identity = np.eye(blocks.shape[-1])
        factor = np.linalg.cholesky(blocks + LEAST_SHARE * diagonal[:, None, None] * identity)
    half = np.linalg.inv(factor)
    half_log_det = np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)
    return half.swapaxes(-1, -2) @ half, half_log_det
