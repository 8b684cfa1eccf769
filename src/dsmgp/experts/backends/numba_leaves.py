"""Leaf GPs with a stationary kernel, many in one compiled call: evidence, gradient, conditioning, prediction.

A call works through its leaves (:mod:`dsmgp.experts.backends.numba_entries`) without the interpreter, so calls on several
threads run in parallel; each thread keeps the memory it works in. float64 only, and only the kernels in :data:`KINDS`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp._util.compiled import Kernel
from dsmgp._util.machine import cache_numbers
from dsmgp.linalg import lapack

__all__ = [
    "KINDS",
    "ConditionedLeaves",
    "Leaves",
    "condition",
    "log_evidence_and_gradient",
    "predict",
]

KINDS = {"rbf": 0, "matern12": 1, "matern32": 2, "matern52": 3}
MEANS = {"zero": 0, "constant": 1, "linear": 2}
_evaluate_leaves = Kernel("dsmgp.experts.backends.numba_entries", "evaluate_leaves")
_predict_leaves = Kernel("dsmgp.experts.backends.numba_entries", "predict_leaves")
# Least number of test rows of a tile; more if their covariances with the training rows fit in a core's cache.
TILE_ROWS = 256
# Elements that a thread keeps memory for: 64 MB.
MOST_HELD = 2**23


class Memory(threading.local):
    """Memory that a thread uses again in every call; it grows, but what a very large leaf needs is not kept."""

    def __init__(self) -> None:
        self.held = np.empty(0)

    def take(self, size: int) -> Array:
        if size > MOST_HELD:
            return np.empty(size)
        if len(self.held) < size:
            self.held = np.empty(size)
        return self.held


_memory = Memory()


@dataclass(frozen=True)
class Leaves:
    """Some leaves with the same kernel, for one output.

    Attributes
    ----------
    X : ndarray of shape (n_rows, n_dims)
    y : ndarray of shape (n_rows,)
    rows : ndarray of int
        The first row at each distinct input ("point") of the leaves, one leaf after the other.
    ends : ndarray of shape (n_leaves + 1,)
        Leaf k has ``rows[ends[k]:ends[k + 1]]``.
    members : ndarray of int
        Row numbers of the leaves, one point after the other.
    starts : ndarray of shape (n_points + 1,)
        Point k has ``members[starts[k]:starts[k + 1]]``.
    columns : ndarray of int
        Inputs that the kernel depends on; all of them, where it maps them.
    rank : int
        Columns of the linear map of the inputs, as in :class:`~dsmgp.gp.leaf_kernels.MetricKernel`; zero of a kernel with length scales.
    kind, mean_kind : str
        Kernel and mean, as in :class:`~dsmgp.gp.leaf_kernels.StationaryKernel`.
    known_noise : ndarray of shape (n_rows,), or empty
        Noise variances known row by row, in addition to the noise that is learned.
    row_weights : ndarray of shape (n_rows,), or empty
        Weights of the rows; all are one if it is empty.
    """

    X: Array
    y: Array
    rows: Index
    ends: Index
    members: Index
    starts: Index
    columns: Index
    rank: int
    kind: str
    mean_kind: str
    known_noise: Array
    row_weights: Array

    @property
    def codes(self) -> tuple[int, int]:
        """Codes of kernel and mean."""
        return KINDS[self.kind], MEANS[self.mean_kind]

    @property
    def n_scaled(self) -> int:
        """Number of scaled inputs of the kernel."""
        return self.rank or len(self.columns)

    @property
    def largest(self) -> int:
        """Points of the largest leaf."""
        return int(np.diff(self.ends).max(initial=0))

    def __len__(self) -> int:
        return len(self.ends) - 1


def log_evidence_and_gradient(
    leaves: Leaves, kernel_parameters: Array, scale_rows: float | None = None
) -> tuple[Array, Array]:
    """Return the log evidence of each leaf, and its gradient by the kernel parameters (leaves, parameters).

    With ``scale_rows`` the scale of each leaf is integrated out.
    """
    gradients = np.empty((len(leaves), kernel_parameters.shape[-1]))
    result = condition(leaves, kernel_parameters, gradients=gradients, scale_rows=scale_rows or 0.0)
    return result.log_evidence, gradients


@dataclass(frozen=True)
class ConditionedLeaves:
    """Leaves conditioned on their rows. Arrays over rows are in the order of ``Leaves.rows``.

    Attributes
    ----------
    log_evidence, squares, jitter : ndarray of shape (n_leaves,)
        ``squares`` is ``(y - mean)' K^-1 (y - mean)``; ``jitter`` is NaN where no jitter helped.
    alpha : ndarray of shape (n,)
        ``K^-1 (y - mean)``.
    factors : ndarray, or empty
        Lower Cholesky factors, one leaf after the other.
    inverse_diagonal : ndarray of shape (n,), or empty
        Diagonal of ``K^-1``.
    """

    log_evidence: Array
    squares: Array
    jitter: Array
    alpha: Array
    factors: Array
    inverse_diagonal: Array


def condition(
    leaves: Leaves,
    kernel_parameters: Array,
    factors: bool = False,
    leave_out: bool = False,
    gradients: Array | None = None,
    scale_rows: float = 0.0,
) -> ConditionedLeaves:
    """Condition every leaf on its rows.

    Parameters
    ----------
    leaves : Leaves
    kernel_parameters : ndarray of shape (parameters,) or (n_leaves, parameters)
    factors : bool
        Whether to return the Cholesky factors.
    leave_out : bool
        Whether to return the diagonal of ``K^-1``, all that LOO needs (R&W eqs. 5.10 to 5.12).
    gradients : ndarray of shape (n_leaves, parameters), optional
        Overwritten by the gradient of the log evidence.
    scale_rows : float
        If positive, the scale of each leaf is integrated out: see :func:`~dsmgp.experts.backends.numba_leaf.evidence`.
    """
    n, sizes = leaves.largest, np.diff(leaves.ends)
    vectors = leaves.n_scaled + 6 + leaves.rank
    size = n * n + (0 if gradients is None else n * (n - 1) // 2) + vectors * n + leaves.n_scaled
    log_evidence, squares, jitter = np.empty((3, len(leaves)))
    gradients = np.empty((0, 0)) if gradients is None else gradients
    alphas = np.empty(len(leaves.rows))
    diagonals = np.empty(len(leaves.rows) if leave_out else 0)
    elements = np.empty(int(np.square(sizes).sum()) if factors else 0)
    _evaluate_leaves(
        *leaves.codes, leaves.rank, scale_rows, lapack.addresses(), leaves.X, leaves.y, leaves.known_noise,
        leaves.row_weights, leaves.rows, leaves.ends, leaves.members, leaves.starts, leaves.columns,
        _table(kernel_parameters), _memory.take(size), log_evidence, squares, jitter, gradients, alphas, diagonals,
        elements,
    )  # fmt: skip
    return ConditionedLeaves(log_evidence, squares, jitter, alphas, elements, diagonals)


def predict(
    leaves: Leaves,
    kernel_parameters: Array,
    alpha: Array,
    factors: tuple[Index, Index] | None,
    tests: Array,
    ends: Index,
    features: Array | None = None,
) -> tuple[Array, Array]:
    """Return mean and variance of f at test rows.

    Parameters
    ----------
    leaves : Leaves
    kernel_parameters : ndarray of shape (parameters,) or (n_leaves, parameters)
    alpha : ndarray of shape (n,)
        In the order of ``Leaves.rows``.
    factors : tuple of ndarray, optional
        Addresses and row strides of the factors: as arrays, leading blocks of larger ones would be another type, for which
        all would be compiled again. Without them no variance is computed.
    tests : ndarray of shape (n_test, n_dims)
    ends : ndarray of shape (n_leaves + 1,)
        Leaf k predicts at ``tests[ends[k]:ends[k + 1]]``.
    features : ndarray of shape (n_test, r), optional
        Overwritten by the covariances with the first r points, of a single leaf.
    """
    n, most = leaves.largest, int(np.diff(ends).max(initial=0))
    tile = max(1, min(most, max(TILE_ROWS, cache_numbers() // max(n, 1))))
    if factors is None:  # covariances are used at once
        tile = 1
    means = np.empty(len(tests))
    variances = np.empty(0 if factors is None else len(tests))
    none = np.zeros(len(leaves), np.int64)
    addresses, strides = (none, none) if factors is None else factors
    size = (leaves.n_scaled + 2 + tile) * n + leaves.n_scaled
    _predict_leaves(
        *leaves.codes, leaves.rank, tile, lapack.addresses(), leaves.X, leaves.rows, leaves.ends, leaves.columns,
        _table(kernel_parameters), alpha, addresses, strides, np.ascontiguousarray(tests), ends, means, variances,
        _memory.take(size), *_by_precision(features),
    )  # fmt: skip
    return means, variances


def _by_precision(features: Array | None) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """A matrix in double and one in single precision, of which one is the given one and the other empty."""
    double, single = np.empty((0, 0)), np.empty((0, 0), np.float32)
    if features is None:
        return double, single
    return (double, features) if features.dtype == np.float32 else (features, single)


def _table(kernel_parameters: Array) -> Array:
    """Kernel parameters as a contiguous table with a row for each leaf, or one for all."""
    return np.atleast_2d(np.ascontiguousarray(kernel_parameters, np.float64))
