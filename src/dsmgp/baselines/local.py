"""Experts that are never combined: one GP for all rows, and one GP for each part of a partition."""

from __future__ import annotations

import gpytorch
import numpy as np
from numpy.typing import NDArray

from dsmgp.baselines.committee import Committee, Opinions
from dsmgp.baselines.division import holder, partition
from dsmgp.baselines.estimator import gaussian
from dsmgp.mixture import Mixture
from dsmgp.routes import route
from dsmgp.train import Trainer
from dsmgp.tree import Leaf, Node, leaves
from dsmgp.validation import check_count

__all__ = ["ExactGP", "NaiveLocalExperts"]

Array = NDArray[np.float64]


class ExactGP(Committee):
    """One GP of all rows, conditioned exactly.

    Parameters
    ----------
    learning_rows : int, optional
        Theta is learned on so many rows, drawn at random; on all of them if left out, which on a CPU takes minutes
        beyond 5,000.
    kernel, noise_variance, optimizer, max_iter, standardize, device, memory_limit, random_state
        See :class:`~dsmgp.DSMGPRegressor`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> ExactGP(random_state=0).fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(2)
    array([0.14])
    """

    def __init__(
        self,
        learning_rows: int | None = None,
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        self.learning_rows = learning_rows
        self.kernel = kernel
        self.noise_variance = noise_variance
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.standardize = standardize
        self.device = device
        self.memory_limit = memory_limit
        self.random_state = random_state

    leaf_size = "auto"  # type: ignore[assignment]  # there is one leaf

    def _layout(self) -> str:
        return "whole"

    def _divide(self, trainer: Trainer) -> list[Leaf]:
        return [holder(np.arange(len(trainer.X)), trainer.X.shape[1])]

    def _learned_on(self, disjoint: list[Leaf], trainer: Trainer) -> list[Leaf]:
        most = check_count("learning_rows", self.learning_rows, 1, True)
        n, n_dims = trainer.X.shape
        if most is None or most >= n:
            return disjoint
        return [holder(np.sort(trainer.rng.choice(n, most, replace=False)), n_dims)]

    def _combine(self, opinions: Opinions) -> tuple[Array, Array]:
        return opinions.mean[0], opinions.variance[0] + opinions.noise


class NaiveLocalExperts(Committee):
    """One GP for each part of one partition (Kim et al. 2005); each answers for its part alone, with hard edges between.

    Parameters
    ----------
    experts : {"balanced", "paper"} or a tree, default="balanced"
        The partition; of a tree, one of its induced trees.
    leaf_size, kernel, ...
        See :class:`~dsmgp.baselines.committee.Committee`.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = NaiveLocalExperts(leaf_size=20, random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> model.predict([[0.5]]).round(1)
    array([0.1])
    """

    def __init__(
        self,
        experts: str | Node = "balanced",
        leaf_size: int = 100,
        kernel: str | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            experts=experts,
            leaf_size=leaf_size,
            kernel=kernel,
            noise_variance=noise_variance,
            optimizer=optimizer,
            max_iter=max_iter,
            standardize=standardize,
            device=device,
            memory_limit=memory_limit,
            random_state=random_state,
        )

    def _layout(self) -> str:
        return "local"

    def _divide(self, trainer: Trainer) -> list[Leaf]:
        unit = trainer.inputs.scale
        self._tree = partition(self.experts, trainer.X, self.leaf_size, trainer.rng, unit)
        return leaves(self._tree)

    def _law(self, X: Array) -> Mixture:
        routes = route(self._tree, X)
        leaf, row = routes.pairs
        mean, variance = np.empty((2, len(X), self._outputs.n_outputs))
        found = self._conditioned.predict(routes, self._seen(X))
        mean[row], variance[row] = found[0], found[1] + self._conditioned.noise[leaf]
        return gaussian(mean, variance, self._outputs, self._squeeze)
