"""Sparse variational GP (Hensman et al. 2013), on GPyTorch: minibatches, inducing points initialised by k-means.

Needs ``dsmgp[torch]``.
"""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.variational import NaturalVariationalDistribution, VariationalStrategy
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_count, random_generator
from dsmgp.baselines.estimator import Baseline
from dsmgp.gp.gpytorch_process import GPyTorchProcess, gpytorch_modules
from dsmgp.gp.kernels import Kernel
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import build_process
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.linalg.threads import Threads

__all__ = ["SVGP"]

# Initial learning rates: natural gradients for the distribution of the inducing values, Adam for all else.
NATURAL_RATE, RATE = 0.1, 0.05


class SVGP(Baseline):
    """Sparse variational GP with Q inducing points, one model for each output.

    The distribution of the inducing values follows natural gradients, which need no tuning; kernel, noise and inducing points follow Adam,
    with a rate that decays to zero so that the result does not depend on the last batches.

    Parameters
    ----------
    n_inducing : int, default=100
        Q. They are initialised at the centres of k-means.
    kernel : str, Kernel or gpytorch kernel, default="rbf"
    noise_variance : float, optional
        Initial value.
    max_iter : int, default=1500
        Optimisation steps, one batch each.
    batch_size : int, default=512
    standardize : bool, default=True
    random_state : int, RandomState, Generator, or None

    Attributes
    ----------
    path_ : list of list of float
        For each output the evidence lower bound per row, with the log density of the priors, averaged over every 100 steps; it levels
        off when the optimisation has converged.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = SVGP(n_inducing=10, max_iter=300, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.predict([[0.5]]).round(1)
    array([0.1])
    """

    def __init__(
        self,
        n_inducing: int = 100,
        kernel: str | Kernel | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        max_iter: int = 1500,
        batch_size: int = 512,
        standardize: bool = True,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.noise_variance = noise_variance
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.standardize = standardize
        self.random_state = random_state

    def _fit(self, X: Array, Y: Array) -> None:
        for name in ("n_inducing", "max_iter", "batch_size"):
            check_count(name, getattr(self, name))
        rng = random_generator(self.random_state)
        self._inputs = InputScaling.of(X, self.standardize)
        self._outputs = OutputScaling.of(Y, self.standardize)
        Z, targets = self._inputs.to_experts(X), self._outputs.to_experts(Y)
        n_points = min(self.n_inducing, len(np.unique(Z, axis=0)))
        seed = int(rng.integers(2**31))
        means = MiniBatchKMeans(n_points, n_init=3, batch_size=4096, random_state=seed).fit(Z)
        points = torch.from_numpy(means.cluster_centers_.astype(np.float64))
        seeds = [int(rng.integers(2**31)) for _ in targets.T]

        def fit_output(output: int) -> tuple[list[float], _Sparse]:
            target = targets[:, output]
            process = build_process(
                self.kernel,
                "zero",
                self.noise_variance,
                Z.shape[1],
                spread=InputScaling.of(Z, True).scale,
                variance=float(np.var(target)) or 1.0,
            )
            assert isinstance(process, (NamedProcess, GPyTorchProcess))
            modules = gpytorch_modules(process)
            model = _Sparse(points, modules.kernel, modules.likelihood)
            path = self._learn(
                model, torch.from_numpy(Z), target, np.random.default_rng(seeds[output])
            )
            return path, model.eval()

        # In parallel, on one core each: the matrices are small, and torch's threads would wait for one another.
        fitted = Threads().map(fit_output, range(targets.shape[1]))
        self.n_iter_ = self.max_iter
        self.path_ = [path for path, _ in fitted]
        self._models = [model for _, model in fitted]

    def _learn(
        self, model: _Sparse, Z: Tensor, target: Array, rng: np.random.Generator
    ) -> list[float]:
        y = torch.from_numpy(np.ascontiguousarray(target))
        bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
        natural = gpytorch.optim.NGD(
            model.variational_parameters(), num_data=len(y), lr=NATURAL_RATE
        )
        others = torch.optim.Adam(model.hyperparameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(others, self.max_iter)
        path: list[float] = []
        for step, rows in enumerate(_batches(len(y), self.batch_size, self.max_iter, rng)):
            natural.zero_grad()
            others.zero_grad()
            loss = -bound(model(Z[rows]), y[rows])
            loss.backward()
            natural.step()
            others.step()
            schedule.step()
            if step % 100 == 0:
                path.append(0.0)
            path[-1] -= float(loss.detach())
        last = self.max_iter - 100 * (len(path) - 1)
        return [total / 100 for total in path[:-1]] + [path[-1] / last]

    def _moments(self, X: Array) -> tuple[Array, Array]:
        Z = torch.from_numpy(self._inputs.to_experts(X))
        mean, variance = np.empty((2, len(X), self._outputs.n_outputs))
        with torch.no_grad():
            for output, model in enumerate(self._models):
                f = model(Z)
                mean[:, output] = f.mean.numpy()
                variance[:, output] = (f.variance + model.likelihood.noise).numpy()
        return mean, variance


class _Sparse(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """Inducing points and the variational distribution of the function values there."""

    def __init__(self, points: Tensor, kernel: Any, likelihood: Any) -> None:
        distribution = NaturalVariationalDistribution(len(points), mean_init_std=0.0).double()
        strategy = VariationalStrategy(
            self, points.clone(), distribution, learn_inducing_locations=True
        )
        super().__init__(strategy)
        self.kernel, self.likelihood = kernel, likelihood
        self.double()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        zero = torch.zeros(x.shape[:-1], dtype=x.dtype)
        return gpytorch.distributions.MultivariateNormal(zero, self.kernel(x))


def _batches(n: int, size: int, most: int, rng: np.random.Generator) -> Any:
    """Yield ``most`` batches of rows, in a new random order in every epoch."""
    n_batches = math.ceil(n / size)
    for step in range(most):
        if step % n_batches == 0:
            parts = np.array_split(rng.permutation(n), n_batches)
        yield torch.from_numpy(parts[step % n_batches])
