"""The joint predictive distribution of a mixture: its leaves and weights, for the recursion over its tree."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.mixture.fitted_mixture import FittedMixture
from dsmgp.mixture.predictive.joint import Joint, reached_children
from dsmgp.mixture.predictive.warped_covariance import warped_moments
from dsmgp.tree.nodes import Leaf, Node, Product, Sum, leaves

__all__ = ["GatedLeaves"]


class GatedLeaves:
    """Leaves and weights of a mixture at the rows of X: predictions of f, or with noise of y."""

    def __init__(self, model: FittedMixture, X: Array, include_noise: bool) -> None:
        self.model, self.U = model, model.inputs.to_coordinates(X)
        self.Z = model.scaled(self.U)
        self.row_scale = model.row_factors(X)
        noise = model.leaf_posterior.noise
        self.noise = noise if include_noise else np.zeros_like(noise)
        self.number = {id(leaf): k for k, leaf in enumerate(leaves(model.tree))}
        #: By leaf number, the gate's log weights at all rows; NaN at rows that do not reach the leaf.
        self.log_weight: dict[int, Array] = {}
        if model.gate is not None:
            routes = model.router.route(self.U)
            leaf, _ = routes.pairs
            _, variance = model.leaf_posterior.predict(routes, self.Z)
            log_weight = model.component_weights.log_weight(leaf, variance + noise[leaf])
            for k, number in enumerate(routes.leaf.tolist()):
                at = np.full(len(X), np.nan)
                at[routes.rows[k]] = log_weight[routes.rows.ends[k] : routes.rows.ends[k + 1]]
                self.log_weight[number] = at

    def joint(self) -> Joint:
        """Return the joint distribution at all rows: moments in the user's units, draws in the experts' units."""
        n_outputs = self.model.outputs.n_outputs
        return Joint(self.U, n_outputs, self._weights, self._moments_to_user, self._draws)

    def _weights(self, node: Sum, points: Index) -> Array:
        if self.model.gate is None:
            is_posterior = self.model.weights == "posterior"
            of_node = self.model.posterior.log_weights[node] if is_posterior else node.log_weights
            weights = np.tile(np.exp(of_node), (len(points), 1))
        else:
            log_weights = np.stack([self._log_weight(c, points) for c in node.children], -1)
            weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def _log_weight(self, node: Node, points: Index) -> Array:
        """Return a node's log weight at points: that of all its leaves that the points reach."""
        if isinstance(node, Leaf):
            return self.log_weight[self.number[id(node)]][points]
        if isinstance(node, Product):
            total = np.empty(len(points))
            for child, inside in reached_children(node, self.U, points):
                total[inside] = self._log_weight(child, points[inside])
            return total
        return np.asarray(
            np.logaddexp.reduce([self._log_weight(c, points) for c in node.children], axis=0)
        )

    def _moments(self, leaf: Leaf, points: Index) -> tuple[Array, Array]:
        """Return mean and covariances of a leaf in the experts' units."""
        number = self.number[id(leaf)]
        mean, C = self.model.leaf_posterior.joint(number, self.Z[points])
        C = C + self.noise[number][:, None, None] * np.eye(len(points))
        scale = self.model.scales[number] * self.model.component_weights.gate.mean_variance
        C = C * scale[:, None, None]
        if self.row_scale is not None:
            width = np.sqrt(self.row_scale[points])
            C = C * (width[:, None] * width)
        return mean, C

    def _moments_to_user(self, leaf: Leaf, points: Index) -> tuple[Array, Array]:
        outputs, gate = self.model.outputs, self.model.component_weights.gate
        z_mean, z_covariance = self._moments(leaf, points)
        mean = outputs.mean_to_latent(z_mean)
        covariance = np.einsum("pq,qij->pij", np.square(outputs.loading), z_covariance)
        factors = gate.shape_variances / gate.mean_variance
        for output, warp in enumerate(outputs.warps):
            if warp is not None:
                mean[:, output], covariance[output] = warped_moments(
                    warp, mean[:, output], covariance[output], gate.shape_weights, factors
                )
        return mean, covariance

    def _draws(self, leaf: Leaf, points: Index, n_samples: int, rng: np.random.Generator) -> Array:
        mean, covariance = self._moments(leaf, points)
        gate = self.model.component_weights.gate
        pick = rng.choice(len(gate.shape_weights), size=n_samples, p=gate.shape_weights)
        spread = np.sqrt(gate.shape_variances / gate.mean_variance)[pick]
        out = np.empty((*mean.shape, n_samples))
        for output, matrix in enumerate(covariance):
            normal = rng.standard_normal((len(points), n_samples))
            out[:, output] = mean[:, output, None] + (_square_root(matrix) @ normal) * spread
        return out


def _square_root(covariance: Array) -> Array:
    """Return a square root R, with R R' the covariance, which may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
