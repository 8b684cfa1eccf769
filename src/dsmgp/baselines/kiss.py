"""Structured kernel interpolation, additive over inputs (KISS-GP, Wilson & Nickisch 2015), on GPyTorch's grids.

The kernel of one input is interpolated from a regular grid: ``k(x, x') = w(x)' K w(x')`` with four non-zero weights in ``w``. For a sum
over inputs the grids are concatenated. The GP is then a linear model of all grid values u with the prior ``N(0, K)``, K block-diagonal, and
depends on the rows through ``W'W`` and ``W'y`` only: evidence and gradients cost the cube of the number of grid values, whatever the number
of rows, and need no conjugate gradients. Needs ``dsmgp[torch]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.utils.interpolation import Interpolation
from scipy.optimize import minimize
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dsmgp._util.arrays import Array
from dsmgp._util.constants import LOG_2PI
from dsmgp._util.validation import check_choice, check_count
from dsmgp.baselines.estimator import Baseline
from dsmgp.gp.process import NOISE_FLOOR
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.linalg.threads import Threads

__all__ = ["KISSGP"]

KERNELS: dict[str, Callable[..., Any]] = {
    "rbf": RBFKernel,
    "matern12": partial(MaternKernel, nu=0.5),
    "matern32": partial(MaternKernel, nu=1.5),
    "matern52": partial(MaternKernel, nu=2.5),
}
# Most grid values of all inputs: the cost is their cube.
MOST_VALUES = 1000
# Added to the diagonal of a grid's covariance, relative to it.
JITTER = 1e-8


class KISSGP(Baseline):
    """GP with an additive kernel, each input's interpolated from a grid; one model for each output.

    Grids cover the range of the training inputs. Predictions beyond it are those at its edge, without more uncertainty.

    Parameters
    ----------
    grid_size : int or "auto", default="auto"
        Points of each input's grid. ``"auto"``: the square root of the number of rows, between 16 and 200, and
        no more than 1,000 for all inputs together.
    kernel : "rbf", "matern12", "matern32", or "matern52", default="rbf"
        Kernel of each input, with its own length scale and output scale.
    max_iter : int, default=100
        Iterations of L-BFGS.
    standardize : bool, default=True

    Attributes
    ----------
    grid_size_ : int
    log_marginal_likelihood_ : list of float
        Of each output, for standardised outputs if ``standardize``.

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
        check_choice("kernel", self.kernel, list(KERNELS))
        check_count("max_iter", self.max_iter)
        self._inputs = InputScaling.of(X, self.standardize)
        self._outputs = OutputScaling.of(Y, self.standardize)
        Z, targets = self._inputs.to_experts(X), self._outputs.to_experts(Y)
        self.grid_size_ = self._size(*Z.shape)
        self._grids = _Grids.around(Z, self.grid_size_)
        W = self._grids.weights(Z)
        gram = torch.from_numpy((W.T @ W).toarray())

        def fit_output(output: int) -> tuple[float, int, tuple[Array, Array, float]]:
            y = targets[:, output]
            model = _Additive(self.kernel, self._grids, float(np.var(y)) or 1.0)
            moments = _Moments(gram, torch.from_numpy(W.T @ y), float(y @ y), len(y))
            log_evidence, n_iterations = _learn(model, moments, self.max_iter)
            return log_evidence, n_iterations, _grid_posterior(model, moments)

        fitted = Threads().map(fit_output, range(targets.shape[1]))  # outputs in parallel
        self.log_marginal_likelihood_ = [log_evidence for log_evidence, _, _ in fitted]
        self.n_iter_ = max(n_iterations for _, n_iterations, _ in fitted)
        self._models = [model for _, _, model in fitted]

    def _size(self, n_rows: int, n_dims: int) -> int:
        if isinstance(self.grid_size, str):
            check_choice("grid_size", self.grid_size, ["auto"], "or a whole number")
            return max(min(max(math.isqrt(n_rows), 16), 200, MOST_VALUES // n_dims), 8)
        return int(check_count("grid_size", self.grid_size, 8))

    def _moments(self, X: Array) -> tuple[Array, Array]:
        mean, variance = np.empty((2, len(X), self._outputs.n_outputs))
        W = self._grids.weights(self._inputs.to_experts(X))
        for output, (value, half, noise) in enumerate(self._models):
            mean[:, output] = W @ value
            variance[:, output] = np.square(W @ half).sum(axis=1) + noise
        return mean, variance


@dataclass(frozen=True)
class _Grids:
    """Regular grids, (n_dims, size), one for each input; inputs beyond the training range are clipped."""

    points: Tensor
    low: Array
    high: Array

    @classmethod
    def around(cls, Z: Array, size: int) -> _Grids:
        low, high = Z.min(axis=0), Z.max(axis=0)
        high = np.where(high > low, high, low + 1.0)
        # Cubic interpolation needs two points on either side.
        step = (high - low) / (size - 4.02)
        first, last = low - 2.01 * step, high + 2.01 * step
        points = np.linspace(first, last, size, axis=1)
        return cls(torch.from_numpy(points), low, high)

    def weights(self, Z: Array) -> Any:
        """Return the sparse interpolation matrix W, (n, n_dims * size)."""
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
class _Moments:
    """The statistics of the rows that the evidence depends on: W'W, W'y, y'y and the number of rows."""

    gram: Tensor
    pulled: Tensor
    square: float
    n_rows: int


class _Additive(torch.nn.Module):
    """Kernels of all inputs on their grids, and the noise; parameters are logarithms."""

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
        """Return Cholesky factors of the covariance of grid values, a block for each grid: (n_dims, size, size)."""
        module = KERNELS[self.kernel](batch_shape=self.log_length.shape).double()
        scaled = self.points / self.log_length.exp()[:, None, None]
        module.lengthscale = torch.ones_like(self.log_length)[:, None, None]
        # Neighbouring values of a smooth function are almost equal: jitter keeps the matrix positive definite.
        K = module(scaled).to_dense() + JITTER * torch.eye(
            self.points.shape[1], dtype=torch.float64
        )
        return torch.linalg.cholesky(self.log_scale.exp()[:, None, None] * K)


def _inner(model: _Additive, moments: _Moments) -> tuple[Tensor, Tensor, Tensor]:
    """Return the blocks L of the prior's factor, the factor of ``I + L'W'WL / noise``, and ``L'W'y / noise``."""
    L = model.factor()
    n_dims, size, _ = L.shape
    # Block by block, which is cheaper by the number of inputs.
    left = (L.mT @ moments.gram.reshape(n_dims, size, -1)).reshape(n_dims * size, -1)
    both = (L.mT @ left.mT.reshape(n_dims, size, -1)).reshape(n_dims * size, -1)
    B = torch.eye(len(both), dtype=L.dtype) + both / model.noise
    pulled = (L.mT @ moments.pulled.reshape(n_dims, size, 1)).reshape(-1) / model.noise
    return L, torch.linalg.cholesky(B), pulled


def _log_evidence(model: _Additive, moments: _Moments) -> Tensor:
    """Return the log evidence of ``y ~ N(0, W K W' + noise I)``, by the matrix inversion and determinant lemmas."""
    _, C, b = _inner(model, moments)
    half = torch.linalg.solve_triangular(C, b.unsqueeze(-1), upper=False)
    fit = moments.square / model.noise - half.square().sum()
    log_det = 2.0 * C.diagonal().log().sum() + moments.n_rows * model.noise.log()
    return -0.5 * (fit + log_det + moments.n_rows * LOG_2PI)


def _learn(model: _Additive, moments: _Moments, max_iter: int) -> tuple[float, int]:
    """Maximise the evidence over the parameters of a model; return it and the number of iterations."""
    parameters = list(model.parameters())

    def loss(theta: Array) -> tuple[float, Array]:
        vector_to_parameters(torch.from_numpy(theta.copy()), parameters)
        try:
            value = -_log_evidence(model, moments) / moments.n_rows
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return 1e10, np.zeros_like(theta)  # the line search steps back
        gradient = torch.autograd.grad(value, parameters)
        return float(value.detach()), parameters_to_vector(gradient).numpy()

    start = parameters_to_vector(parameters).detach().numpy()
    # Within a factor of e^9 of the start: the length scale of an irrelevant input would otherwise go to infinity.
    bounds = [(value - 9.0, value + 9.0) for value in start]
    result = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": max_iter, "ftol": 1e-6},
    )  # fmt: skip
    vector_to_parameters(torch.from_numpy(result.x), parameters)
    return float(-result.fun * moments.n_rows), max(int(result.nit), 1)


def _grid_posterior(model: _Additive, moments: _Moments) -> tuple[Array, Array, float]:
    """Return the posterior of the grid values: mean, a square root of the covariance, and the noise."""
    with torch.no_grad():
        L, C, b = _inner(model, moments)
        root = torch.block_diag(*L)
        mean = root @ torch.cholesky_solve(b.unsqueeze(-1), C)[:, 0]
        half = torch.linalg.solve_triangular(C, root.mT, upper=False).mT
        return mean.numpy(), half.numpy(), float(model.noise)
