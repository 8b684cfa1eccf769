"""Experts that are not combined: one GP on all rows, and one GP for each part of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.validation import check_count
from dsmgp.baselines.committee import Committee, ExpertPredictions
from dsmgp.baselines.division import partition, unbounded_leaf
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.gp.kernels import Kernel
from dsmgp.tree.nodes import Leaf, Node, leaves
from dsmgp.tree.routing import route

if TYPE_CHECKING:
    import gpytorch

__all__ = ["ExactGP", "NaiveLocalExperts"]


class ExactGP(Committee):
    """One GP on all rows, conditioned exactly.

    ``kernel``, ``noise_variance``, ``optimizer``, ``max_iter``, ``standardize``, ``device``,
    ``memory_limit`` and ``random_state`` are those of :class:`~dsmgp.DSMGPRegressor`.

    Parameters
    ----------
    learning_rows : int, optional
        Rows, drawn at random, on which hyperparameters are learned. All rows by default, which on a CPU takes minutes
        beyond 5,000.

    Examples
    --------
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> ExactGP(random_state=0).fit(X, np.sin(6 * X[:, 0])).predict([[0.5]]).round(2)
    array([0.14])
    """

    def __init__(
        self,
        learning_rows: int | None = None,
        kernel: str | Kernel | gpytorch.kernels.Kernel = "rbf",
        noise_variance: float | None = None,
        optimizer: str | None = "lbfgs",
        max_iter: int | None = None,
        standardize: bool = True,
        device: str = "auto",
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            leaf_size="auto",  # type: ignore[arg-type]  # one expert has all rows
            kernel=kernel,
            noise_variance=noise_variance,
            optimizer=optimizer,
            max_iter=max_iter,
            standardize=standardize,
            device=device,
            memory_limit=memory_limit,
            random_state=random_state,
        )
        self.learning_rows = learning_rows

    _layout = "whole"

    def _divide(self, data: ScaledRows, rng: np.random.Generator) -> list[Leaf]:
        return [unbounded_leaf(np.arange(len(data.X)), data.n_dims)]

    def _learned_on(
        self, disjoint: list[Leaf], data: ScaledRows, rng: np.random.Generator
    ) -> list[Leaf]:
        n_rows = check_count("learning_rows", self.learning_rows, 1, True)
        if n_rows is None or n_rows >= len(data.X):
            return disjoint
        rows = np.sort(rng.choice(len(data.X), n_rows, replace=False))
        return [unbounded_leaf(rows, data.n_dims)]

    def _combine(self, predictions: ExpertPredictions) -> tuple[Array, Array]:
        return predictions.mean[0], predictions.variance[0] + predictions.noise


class NaiveLocalExperts(Committee):
    """One GP for each part of one partition (Kim et al. 2005); each predicts in its part only, with jumps between parts.

    The other parameters are those of :class:`~dsmgp.baselines.committee.Committee`.

    Parameters
    ----------
    experts : "balanced", "paper" or a tree, default="balanced"
        The partition; of a tree, one of its induced trees.

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
        kernel: str | Kernel | gpytorch.kernels.Kernel = "rbf",
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

    _layout = "local"

    def _divide(self, data: ScaledRows, rng: np.random.Generator) -> list[Leaf]:
        self._tree = partition(self.experts, data.X, self.leaf_size, rng, data.inputs.scale)
        return leaves(self._tree)

    def _moments(self, X: Array) -> tuple[Array, Array]:
        routes = route(self._tree, X)
        leaf, row = routes.pairs
        mean, variance = np.empty((2, len(X), self._outputs.n_outputs))
        mean[row], of_f = self._posterior.predict(routes, self._inputs.to_experts(X))
        variance[row] = of_f + self._posterior.noise[leaf]
        return mean, variance
