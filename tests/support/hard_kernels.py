"""Leaves whose covariance matrices are as hard as they come: near-duplicates, next to no noise, huge length-scales.

Residuals are told in units of the order of the matrix times the precision, as error analysis has them (Higham 2002,
theorem 10.3): they do not grow with the condition number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.leaf_gps import InMemoryLeafGPs
from dsmgp.experts.low_rank import LowRankVariance
from dsmgp.gp.leaf_kernels import StationaryKernel
from dsmgp.tree import Leaf, Region


@dataclass(frozen=True)
class Hard:
    """Leaves of one kind of kernel, each with hyperparameters of its own."""

    kind: str
    X: np.ndarray
    y: np.ndarray
    rows: list
    kernel_parameters: np.ndarray

    def leaf_gps(self, backend, dtype="float64"):
        """The leaves in a backend, which is built from the rows; ``dtype`` is the precision that it computes in."""
        space = Region.whole(self.X.shape[1])
        return InMemoryLeafGPs(
            [Leaf(space, own) for own in self.rows],
            LeafData(self.X, self.y[:, None]),
            [StationaryKernel(self.kind, tuple(range(self.X.shape[1])), "zero")],
            backend=backend,
            dtype=dtype,
        )


def hard_kernels(kind, n_leaves, seed, most_rows=80, n_dims=3):
    """Leaves drawn to be difficult, always the same ones for a seed."""
    rng = np.random.default_rng(seed)
    X, rows, kernel_parameters, start = [], [], [], 0
    for _ in range(n_leaves):
        n = int(rng.integers(1, most_rows))
        own = rng.normal(size=(n, n_dims)) * 10.0 ** rng.uniform(-3, 3)
        match rng.integers(4):
            case 0:  # rows that almost coincide
                own[n // 2 :] = own[: n - n // 2] * (1.0 + 10.0 ** rng.uniform(-15, -3))
            case 1:  # rows that do
                own[n // 2 :] = own[: n - n // 2]
            case 2:  # a row far away
                own[0] += 10.0 ** rng.uniform(3, 9)
        outputscale = 10.0 ** rng.uniform(-6, 6)
        lengthscale = 10.0 ** rng.uniform(-3, 6, size=n_dims)
        noise = outputscale * 10.0 ** rng.uniform(-17, 0)
        X.append(own)
        rows.append(np.arange(start, start + n))
        kernel_parameters.append([*lengthscale, outputscale, noise])
        start += n
    X = np.concatenate(X)
    return Hard(kind, X, rng.normal(size=len(X)), rows, np.array(kernel_parameters))


@dataclass(frozen=True)
class Residuals:
    """Of each leaf, by its number; norms are Frobenius's, and K is the matrix that the backend factorised.

    ``factor`` is ``|L L' - K| / (n eps |K|)`` and ``solve`` is ``|K alpha - y| / (n eps |K| |alpha|)``. ``matrix`` is the largest error of a
    covariance over the output scale, ``reach`` the largest distance from the median in length-scales, ``added`` the jitter over
    the mean diagonal.
    """

    factor: np.ndarray
    solve: np.ndarray
    matrix: np.ndarray
    reach: np.ndarray
    added: np.ndarray
    log_evidence: np.ndarray


def residuals(hard, backend, exact, dtype="float64"):
    """What a backend leaves over; ``exact`` makes a leaf's matrix without noise from its rows and hyperparameters."""
    leaf_gps = hard.leaf_gps(backend, dtype)
    bound, eps = leaf_gps.bind([hard.kernel_parameters]), np.finfo(dtype).eps
    table = np.full((6, len(hard.rows)), np.nan)
    for group, numbers in enumerate(leaf_gps.backend.groups):
        seen = leaf_gps.backend.condition(bound, 0, group, True, None)
        ends = np.cumsum(leaf_gps.points.first.sizes[numbers])[:-1]
        alphas = np.split(seen.alpha, ends)
        matrices = _matrices(leaf_gps, bound, group)
        for slot, number in enumerate(numbers.tolist()):
            n, X, kernel_parameters = (
                len(hard.rows[number]),
                hard.X[hard.rows[number]],
                hard.kernel_parameters[number],
            )
            L, alpha = np.tril(seen.factors[slot]), alphas[slot]
            K = np.tril(matrices[slot][:n, :n])  # the triangle that is read
            K = K + np.tril(K, -1).T
            error = np.abs(K - exact(X, kernel_parameters)).max() / kernel_parameters[-2]
            added = float(seen.jitter[slot])
            K = K + (kernel_parameters[-1] + added) * np.eye(n)
            size = np.linalg.norm(K)
            table[:, number] = (
                np.linalg.norm(L @ L.T - K) / (n * eps * size),
                np.linalg.norm(K @ alpha - hard.y[hard.rows[number]])
                / (n * eps * size * np.linalg.norm(alpha)),
                error,
                np.abs((X - np.median(X, axis=0)) / kernel_parameters[:-2]).max(),
                added / K.diagonal().mean(),
                float(seen.log_evidence[slot]),
            )
    return Residuals(*table)


def _matrices(leaf_gps, bound, group):
    """The covariances of f that a group's leaves are factorised from."""
    backend = leaf_gps.backend
    numbers = backend.groups[group]
    if hasattr(backend, "batch"):  # in torch: many leaves at once, by code of their own
        return _batched_matrices(backend, bound, group)
    found = []
    for number in numbers.tolist():
        X = leaf_gps.data.X[backend.points.first[number]]
        if not hasattr(backend, "covariances"):
            found.append(bound(0, number).cross(X, X))
            continue
        # The compiled covariances of a leaf's points with themselves, as with pivots of a basis that are all of its points.
        n = len(X)
        every = LowRankVariance(np.arange(n), np.empty((n, n)), np.zeros(n), 0.0)
        found.append(backend.covariances(bound, 0, number, every, X)[1])
    return found


def _batched_matrices(backend, bound, group):
    import torch

    from dsmgp.gp.torch_kernels import bind

    numbers, batch = backend.groups[group], backend.batch(group, 0)
    parameters = torch.from_numpy(bound.parameters(0, numbers)).to(batch.X)
    kernel = bind(bound.kernels[0][numbers[0]], parameters)
    return kernel.covariance(batch.X, batch.mask)[0].double().numpy()
