"""The weights of the leaves at a row, and which leaves count there at all.

A leaf's weight is the product of the weights on its path from the root; with a gate, its variance at the row
and its scale count too (:mod:`dsmgp.mixture.weights.gating`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.experts.interface import LeafPosterior
from dsmgp.experts.loo import Components
from dsmgp.mixture.weights.gating import Gate, log_product
from dsmgp.tree.routing import Router, Routes

__all__ = ["ComponentWeights"]

# Leaves whose weight at a row is below this share (as a log) do not predict there. To move the standard deviation by a
# thousandth such a leaf's mean would have to be ten thousand of them away, and to move the mean by as much a billion.
NEGLIGIBLE = float(np.log(1e-12))


@dataclass(frozen=True, eq=False)
class ComponentWeights:
    """Weights of the leaves of a mixture.

    Attributes
    ----------
    log_path : ndarray of shape (n_leaves,)
        Log of the product of the weights on the path from the root to each leaf.
    gate : Gate
        One that leaves weights as they are if the mixture has none.
    scales : ndarray of shape (n_leaves, n_outputs)
        Factors of the leaves' variances.
    router : Router
    leaf_posterior : LeafPosterior
    """

    log_path: Array
    gate: Gate
    scales: Array
    router: Router
    leaf_posterior: LeafPosterior

    def log_weight(self, leaf: Index, variance: Array) -> Array:
        """Return log weights of leaves, not normalised, where their variances of y are ``variance`` (n, n_outputs)."""
        return self.gate.log_weight(self.log_path[leaf], variance, self.scales[leaf])

    def at(self, components: Components, log_constant: Array | None = None) -> Array:
        """Return the normalised weights of the leaves at each row, (n, n_components).

        ``log_constant`` (n, n_components) replaces the part of the log weights that does not depend on the row.
        """
        if log_constant is None:
            log_constant = components.of_leaves(self._log_constants, -np.inf)
        tau = self.gate.variance_exponent
        log_weights = log_constant - tau * log_product(components.variance) if tau else log_constant
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def relevant_routes(self, U: Array) -> Routes:
        """Return the leaves that rows reach, without those of negligible weight.

        A weight is negligible if it is so beside another's, whatever the variances of the leaves are at the row.
        """
        routes = self.router.route(U)
        if self.all_relevant:
            return routes
        least, most = self.bounds
        leaf, row = routes.pairs
        best = np.full(row.max(initial=-1) + 1, -np.inf)
        np.maximum.at(best, row, least[leaf])
        return routes.only(most[leaf] >= best[row] + NEGLIGIBLE)

    def relevant_leaves(self, U: Array) -> Index:
        """Return the same for few rows: numbers of the leaves, (n, n_reached), -1 for none."""
        leaves = self.router.reached(U)
        if self.all_relevant:
            return leaves
        least, most = self.bounds
        best = np.where(leaves >= 0, least[leaves], -np.inf).max(axis=1, keepdims=True)
        return np.where(most[leaves] >= best + NEGLIGIBLE, leaves, -1)

    @property
    def all_relevant(self) -> bool:
        """Whether no leaf can be negligible anywhere."""
        least, most = self.bounds
        return bool(most.min() >= least.max() + NEGLIGIBLE)

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Least and largest log weight of each leaf: at its prior variance, and where only noise is left."""
        if not (self.gate.variance_exponent or self.gate.scale_exponent):
            return self.log_path, self.log_path
        noise = self.leaf_posterior.noise
        leaf, largest = np.arange(len(noise)), noise + self.leaf_posterior.bound.prior_variance
        return self.log_weight(leaf, largest), self.log_weight(leaf, noise)

    @cached_property
    def _log_constants(self) -> Array:
        """The part of the leaves' log weights that is the same everywhere, (n_leaves,)."""
        return self.gate.log_constant(self.log_path, self.scales)
