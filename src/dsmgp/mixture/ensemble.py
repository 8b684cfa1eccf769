"""A weighted sum of fitted mixtures: a sum node above their trees.

Its children are whole models, which may see the inputs in different coordinates, warp the output in different
ways and have different means. Its weights are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.mixture.fitted_model import SEVERAL_HYPOTHESES, Predictive, Unsupported
from dsmgp.mixture.predictive.joined import join
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution

__all__ = ["Ensemble"]


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """The predictive part of a fitted model, by a weighted sum of models of the same rows.

    Attributes
    ----------
    models : sequence of FittedModel
        The first is the heaviest. They may differ in the warp of the output.
    weights : ndarray of shape (n_models,)
        Of sum one.
    """

    models: tuple[Predictive, ...]
    weights: Array

    unsupported: ClassVar[Unsupported] = SEVERAL_HYPOTHESES
    pool: ClassVar[None] = None

    @property
    def outputs(self) -> OutputScaling:
        return self.models[0].outputs

    def mean(self, X: Array) -> Array:
        """Predictive mean, (n, n_outputs)."""
        return self._average(lambda model: model.mean(X))

    def moments(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Predictive mean and standard deviation, (n, n_outputs) each."""
        parts = [model.moments(X, include_noise) for model in self.models]
        means, stds = (np.stack(part) for part in zip(*parts, strict=True))
        mean = np.tensordot(self.weights, means, 1)
        spread = np.square(stds) + np.square(means - mean)
        return mean, np.sqrt(np.tensordot(self.weights, spread, 1))

    def mixture(
        self, X: Array, include_noise: bool = True, squeeze: bool = True
    ) -> PredictiveDistribution:
        """Predictive distribution at each row."""
        parts = [model.mixture(X, include_noise, squeeze) for model in self.models]
        return join(parts, self.weights)

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Predictive mean (n, n_outputs) and joint covariance of each output (n_outputs, n, n)."""
        parts = [model.covariance(X, include_noise) for model in self.models]
        means, covariances = (np.stack(part) for part in zip(*parts, strict=True))
        mean = np.tensordot(self.weights, means, 1)
        away = means - mean
        between = np.einsum("h,hip,hjp->pij", self.weights, away, away)
        return mean, np.tensordot(self.weights, covariances, 1) + between

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Joint draws over the rows, (n, n_outputs, n_samples); each is one of a model drawn by its weight."""
        chosen = rng.choice(len(self.models), n_samples, p=self.weights)
        drawn = np.empty((len(X), self.outputs.n_outputs, n_samples))
        for k, model in enumerate(self.models):
            of_model = np.flatnonzero(chosen == k)
            if len(of_model):
                drawn[..., of_model] = model.draws(X, len(of_model), rng, include_noise)
        return drawn

    def noise_at(self, X: Array) -> Array:
        """Noise variance at each row, (n, n_outputs): what the variance of y has beyond that of f."""
        if any(model.outputs.warps for model in self.models):  # noise moves their means, too
            of_y, of_f = (self.moments(X, noisy)[1] for noisy in (True, False))
            return np.maximum(np.square(of_y) - np.square(of_f), 0.0)
        return self._average(lambda model: model.noise_at(X))

    def outside(self, X: Array) -> Array:
        """How far rows lie outside the training data, in length scales, (n,): the average over models."""
        return self._average(lambda model: model.outside(X))

    def outside_by_input(self, X: Array) -> Array:
        """The same by each input alone, (n, n_inputs)."""
        return self._average(lambda model: model.outside_by_input(X))

    def _average(self, of_model: Callable[[Predictive], Array]) -> Array:
        return np.tensordot(self.weights, np.stack([of_model(model) for model in self.models]), 1)
