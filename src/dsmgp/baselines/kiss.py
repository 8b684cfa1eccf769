"""Structured kernel interpolation, additive over inputs (KISS-GP, Wilson & Nickisch 2015), on GPyTorch's grids.

One input's kernel is interpolated from a regular grid: ``k(x, x') = w(x)' K w(x')`` with four weights in ``w``. A sum over
inputs is the same with one grid after the other. The GP is then a linear model of all grid values u with the prior
``N(0, K)``, K block-diagonal, and what it needs of the rows are ``W'W`` and ``W'y``: evidence and gradients cost the cube
of the number of grid values, whatever the number of rows, without conjugate gradients and their noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.utils.interpolation import Interpolation
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array
from torch import Tensor

from dsmgp.baselines.estimator import Baseline, gaussian
from dsmgp.execution import Threads
from dsmgp.mixture import Mixture
from dsmgp.process import KERNELS, NOISE_FLOOR
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.validation import check_choice, check_count

__all__ = ["KISSGP"]

Array = NDArray[np.float64]
# Grid values in all, whose cube is the cost.
MOST_VALUES = 1000
# On the diagonal of a grid's covariance, as a share of it.
JITTER = 1e-8
# Rows that are predicted at once.
PREDICTED_ROWS = 8192


class KISSGP(Baseline):
    """GP with a kernel for each input, added up, each interpolated from a grid; one for each output.

    Grids end where the training rows do: an input beyond them is answered as at the end, and no less surely.

    Parameters
    ----------
    grid_size : int or "auto", default="auto"
        Points of each input's grid. ``"auto"``: the square root of the number of rows, between 16 and 200, and
        no more than 1,000 for all inputs together.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default="rbf"
        Of one input; every input has a length-scale and an output scale.
    max_iter : int, default=100
        Iterations of L-BFGS.
    standardize : bool, default=True

    Attributes
    ----------
    grid_size_ : int
    log_marginal_likelihood_ : list of float
        Of each output, in the units the experts see.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> KISSGP().fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(2)
    array([0.14])
    """

    def __init__(
        self,
        grid_size: int | str = "auto",
        kernel: str = "rbf",
        max_iter: int = 100,
        standardize: bool = True,
    ) -> None:
        self.grid_size = grid_size
        self.kernel = kernel
        self.max_iter = max_iter
        self.standardize = standardize

    def _fit(self, X: Array, Y: Array) -> None:
        check_choice("kernel", self.kernel, [name for name in KERNELS if name != "rq"])
        check_count("max_iter", self.max_iter)
        self._inputs = InputUnits.of(X, self.standardize)
        self._outputs = OutputUnits.of(Y, self.standardize)
        Z, targets = self._inputs.to_experts(X), self._outputs.to_experts(Y)
        self.grid_size_ = self._size(*Z.shape)
        self._grids = _Grids.around(Z, self.grid_size_)
        W = self._grids.weights(Z)
        gram = torch.from_numpy((W.T @ W).toarray())

        def learned(output: int) -> tuple[float, int, tuple[Array, Array, float]]:
            y = targets[:, output]
            model = _Additive(self.kernel, self._grids, float(np.var(y)) or 1.0)
            facts = _Facts(gram, torch.from_numpy(W.T @ y), float(y @ y), len(y))
            log_evidence, n_iterations = _learn(model, facts, self.max_iter)
            return log_evidence, n_iterations, _values_given(model, facts)

        found = Threads().map(learned, range(targets.shape[1]))  # outputs side by side
        self.log_marginal_likelihood_ = [log_evidence for log_evidence, _, _ in found]
        self.n_iter_ = max(n_iterations for _, n_iterations, _ in found)
        self._models = [model for _, _, model in found]

    def _size(self, n_rows: int, n_dims: int) -> int:
        if isinstance(self.grid_size, str):
            check_choice("grid_size", self.grid_size, ["auto"], "or a whole number")
            return max(min(max(math.isqrt(n_rows), 16), 200, MOST_VALUES // n_dims), 8)
        return int(check_count("grid_size", self.grid_size, 8))

    def _law(self, X: Array) -> Mixture:
        Z = self._inputs.to_experts(X)
        mean, variance = np.empty((2, len(X), self._outputs.n_outputs))
        for first in range(0, len(X), PREDICTED_ROWS):
            rows = slice(first, first + PREDICTED_ROWS)
            W = self._grids.weights(Z[rows])
            for output, (value, half, noise) in enumerate(self._models):
                mean[rows, output] = W @ value
                variance[rows, output] = np.square(W @ half).sum(axis=1) + noise
        return gaussian(mean, variance, self._outputs, self._squeeze)


@dataclass(frozen=True)
class _Grids:
    """Regular grids, (n_dims, size), one for each input; inputs beyond their grid are moved to its end."""

    points: Tensor
    low: Array
    high: Array

    @classmethod
    def around(cls, Z: Array, size: int) -> _Grids:
        low, high = Z.min(axis=0), Z.max(axis=0)
        high = np.where(high > low, high, low + 1.0)
        # Interpolation takes two points on either side.
        step = (high - low) / (size - 4.02)
        first, last = low - 2.01 * step, high + 2.01 * step
        points = np.linspace(first, last, size, axis=1)
        return cls(torch.from_numpy(points), low, high)

    def weights(self, Z: Array) -> Any:
        """Sparse matrix from the values on all grids to the rows, (n, n_dims * size)."""
        n_dims, size = self.points.shape
        inside = torch.from_numpy(np.clip(Z, self.low, self.high))
        columns, values = [], []
        for d in range(n_dims):
            index, value = Interpolation().interpolate([self.points[d]], inside[:, d : d + 1])
            columns.append(index.numpy() + d * size)
            values.append(value.numpy())
        column, weight = np.concatenate(columns, axis=1), np.concatenate(values, axis=1)
        ends = np.arange(0, column.size + 1, column.shape[1])
        return csr_array((weight.ravel(), column.ravel(), ends), shape=(len(Z), n_dims * size))


@dataclass(frozen=True)
class _Facts:
    """All that the evidence needs of the rows: W'W, W'y, y'y and their number."""

    gram: Tensor
    pulled: Tensor
    square: float
    n_rows: int


class _Additive(torch.nn.Module):
    """Kernels of all inputs, on their grids, and the noise; parameters are logarithms."""

    def __init__(self, kernel: str, grids: _Grids, variance: float) -> None:
        super().__init__()
        n_dims = len(grids.points)
        self.points, self.kernel = grids.points.unsqueeze(-1), kernel
        spread = torch.from_numpy((grids.high - grids.low) / 4.0)
        self.log_length = torch.nn.Parameter(spread.log())
        self.log_scale = torch.nn.Parameter(
            torch.full((n_dims,), math.log(variance / n_dims)).double()
        )
        self.log_noise = torch.nn.Parameter(torch.tensor(math.log(0.3 * variance)).double())
        self.floor = NOISE_FLOOR * variance

    @property
    def noise(self) -> Tensor:
        return self.log_noise.exp() + self.floor

    def factor(self) -> Tensor:
        """Cholesky factors of the values' covariance, a block for each grid: (n_dims, size, size)."""
        module = KERNELS[self.kernel](batch_shape=self.log_length.shape).double()
        scaled = self.points / self.log_length.exp()[:, None, None]
        module.lengthscale = torch.ones_like(self.log_length)[:, None, None]
        # Values close to one another on a smooth function are all but equal: a little noise of their own.
        K = module(scaled).to_dense() + JITTER * torch.eye(
            self.points.shape[1], dtype=torch.float64
        )
        return torch.linalg.cholesky(self.log_scale.exp()[:, None, None] * K)


def _inner(model: _Additive, facts: _Facts) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks L of the prior's factor, factor of ``I + L'W'WL / noise``, and ``L'W'y / noise``."""
    L = model.factor()
    n_dims, size, _ = L.shape
    # Block by block, which is as many times cheaper as there are inputs.
    left = (L.mT @ facts.gram.reshape(n_dims, size, -1)).reshape(n_dims * size, -1)
    both = (L.mT @ left.mT.reshape(n_dims, size, -1)).reshape(n_dims * size, -1)
    B = torch.eye(len(both), dtype=L.dtype) + both / model.noise
    pulled = (L.mT @ facts.pulled.reshape(n_dims, size, 1)).reshape(-1) / model.noise
    return L, torch.linalg.cholesky(B), pulled


def _log_evidence(model: _Additive, facts: _Facts) -> Tensor:
    """Of ``y ~ N(0, W K W' + noise I)``, by the matrix inversion and determinant lemmas."""
    _, C, b = _inner(model, facts)
    half = torch.linalg.solve_triangular(C, b.unsqueeze(-1), upper=False)
    fit = facts.square / model.noise - half.square().sum()
    log_det = 2.0 * C.diagonal().log().sum() + facts.n_rows * model.noise.log()
    return -0.5 * (fit + log_det + facts.n_rows * math.log(2.0 * math.pi))


def _learn(model: _Additive, facts: _Facts, max_iter: int) -> tuple[float, int]:
    """Set the model to the parameters with the largest evidence; that, and how many iterations it took."""
    parameters = list(model.parameters())
    sizes = np.cumsum([p.numel() for p in parameters])[:-1]

    def put(theta: Array) -> None:
        with torch.no_grad():
            for p, part in zip(parameters, np.split(theta, sizes), strict=True):
                p.copy_(torch.from_numpy(part.copy()).reshape(p.shape))

    def loss(theta: Array) -> tuple[float, Array]:
        put(theta)
        try:
            value = -_log_evidence(model, facts) / facts.n_rows
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return 1e10, np.zeros_like(theta)  # the line search steps back
        gradient = torch.autograd.grad(value, parameters)
        return float(value.detach()), np.concatenate([g.numpy().reshape(-1) for g in gradient])

    start = np.concatenate([p.detach().numpy().reshape(-1) for p in parameters])
    # Within e^9 of where it starts: an input without use would otherwise send its length-scale to infinity.
    bounds = [(value - 9.0, value + 9.0) for value in start]
    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": max_iter, "ftol": 1e-6},
    )  # fmt: skip
    put(found.x)
    return float(-found.fun * facts.n_rows), max(int(found.nit), 1)


def _values_given(model: _Additive, facts: _Facts) -> tuple[Array, Array, float]:
    """Posterior of the values on the grids: mean, a square root of the covariance, and the noise."""
    with torch.no_grad():
        L, C, b = _inner(model, facts)
        root = torch.block_diag(*L)
        mean = root @ torch.cholesky_solve(b.unsqueeze(-1), C)[:, 0]
        half = torch.linalg.solve_triangular(C, root.mT, upper=False).mT
        return mean.numpy(), half.numpy(), float(model.noise)
