"""The interface of a fitted mixture to the functions that predict with it and describe it.

:class:`~dsmgp.mixture.model.Model` implements it, and calls them.
"""

from __future__ import annotations

from typing import Protocol

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.interface import LeafPosterior
from dsmgp.experts.loo import Components
from dsmgp.mixture.fitted_model import FittedModel
from dsmgp.mixture.weights.component_weights import ComponentWeights
from dsmgp.mixture.weights.gating import Gate
from dsmgp.tree.routing import Router

__all__ = ["FittedMixture"]


class FittedMixture(FittedModel, Protocol):
    """A fitted model that mixes the predictions of leaf GPs; see :class:`~dsmgp.mixture.model.Model`."""

    @property
    def family(self) -> Index:
        """Number of the family of each leaf, (n_leaves,)."""

    @property
    def leaf_posterior(self) -> LeafPosterior: ...
    @property
    def scales(self) -> Array:
        """Factors of the leaves' variances, (n_leaves, n_outputs)."""

    @property
    def gate(self) -> Gate | None: ...
    @property
    def router(self) -> Router: ...
    @property
    def component_weights(self) -> ComponentWeights: ...
    @property
    def n_observations(self) -> float | None:
        """Sum of the weights of the training rows; None if all are one."""

    def row_factors(self, X: Array) -> Array | None:
        """Factors of the variances of rows with missing values and of those outside the data, (n,); None if all are one."""

    def scaled(self, U: Array) -> Array:
        """Scale coordinates as the leaf GPs see them."""

    def leaf_predictions(
        self, U: Array, with_variance: bool = True, low_rank: bool = False
    ) -> Components:
        """Predictions of y by the leaves that rows reach, from their coordinates."""
