"""The joint predictive distribution over several rows, by recursion over the part of the tree that they reach.

At each sum node one uniform number per draw selects the child at x: the one into whose interval of the
cumulative weights at x it falls. With posterior weights the intervals are the same everywhere, and all rows
follow one induced tree; with a gate they vary with x, and rows may follow different children. In both cases
the distribution at some rows does not depend on which other rows are predicted with them.

The recursion (:class:`Joint`) serves mixtures, for which :class:`GatedLeaves` supplies leaves and weights, and
change-point models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.mixture.predictive.warped_covariance import warped_moments
from dsmgp.tree.nodes import Leaf, Node, Product, Sum, leaves

if TYPE_CHECKING:
    from dsmgp.mixture.model import Model

__all__ = ["GatedLeaves", "Joint"]


@dataclass(frozen=True, eq=False)
class Joint:
    """The joint distribution at the rows of X of a tree, given that of its leaves.

    Attributes
    ----------
    X : ndarray of shape (n_rows, n_dims)
    n_outputs : int
    weights : callable
        Takes a sum node and row numbers; returns weights of its children there, (n_points, n_children), of sum one.
    leaf_moments : callable
        Takes a leaf and row numbers; returns mean (n_points, n_outputs) and covariances
        (n_outputs, n_points, n_points).
    leaf_draws : callable
        Takes a leaf, row numbers, the number of draws and a generator; returns (n_points, n_outputs, n_samples).
    """

    X: Array
    n_outputs: int
    weights: Callable[[Sum, Index], Array]
    leaf_moments: Callable[[Leaf, Index], tuple[Array, Array]]
    leaf_draws: Callable[[Leaf, Index, int, np.random.Generator], Array]

    def moments(self, node: Node, points: Index) -> tuple[Array, Array]:
        """Return mean (n_points, n_outputs) and covariances (n_outputs, n_points, n_points) at some rows."""
        if isinstance(node, Leaf):
            return self.leaf_moments(node, points)
        if isinstance(node, Product):  # children are independent: block-diagonal
            mean = np.empty((len(points), self.n_outputs))
            covariance = np.zeros((self.n_outputs, len(points), len(points)))
            for child, inside in _reached_children(node, self.X, points):
                mean[inside], covariance[:, inside[:, None], inside] = self.moments(
                    child, points[inside]
                )
            return mean, covariance
        weights = self.weights(node, points)
        edges = _edges(weights)
        used = [k for k in range(len(node.children)) if weights[:, k].any()]
        parts = {k: self.moments(node.children[k], points) for k in used}
        mean = sum((weights[:, k, None] * parts[k][0] for k in used), start=np.zeros(()))
        covariance = np.zeros_like(parts[used[0]][1])
        # Around the mean: second moments would lose digits to a large offset.
        away = {k: (parts[k][0] - mean).T for k in used}
        for k in used:
            for other in used:
                overlap = _overlap(edges[:, k : k + 2], edges[:, other : other + 2])
                if other == k:
                    covariance += overlap * parts[k][1]
                if overlap.any():
                    covariance += overlap * away[k][:, :, None] * away[other][:, None, :]
        return mean, covariance

    def draws(self, node: Node, points: Index, n_samples: int, rng: np.random.Generator) -> Array:
        """Draw at some rows: (n_points, n_outputs, n_samples)."""
        if isinstance(node, Leaf):
            return self.leaf_draws(node, points, n_samples, rng)
        out = np.empty((len(points), self.n_outputs, n_samples))
        if isinstance(node, Product):
            for child, inside in _reached_children(node, self.X, points):
                out[inside] = self.draws(child, points[inside], n_samples, rng)
            return out
        edges, u = _edges(self.weights(node, points)), rng.uniform(size=n_samples)
        for k, child in enumerate(node.children):
            chosen = (edges[:, k, None] <= u) & (u < edges[:, k + 1, None])  # (points, samples)
            rows, columns = np.flatnonzero(chosen.any(1)), np.flatnonzero(chosen.any(0))
            if rows.size:
                part = self.draws(child, points[rows], columns.size, rng)
                i, j = np.nonzero(chosen[np.ix_(rows, columns)])
                out[rows[i], :, columns[j]] = part[i, :, j]
        return out


class GatedLeaves:
    """Leaves and weights of a mixture at the rows of X: predictions of f, or with noise of y."""

    def __init__(self, model: Model, X: Array, include_noise: bool) -> None:
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
            for child, inside in _reached_children(node, self.U, points):
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


def _reached_children(node: Product, X: Array, points: Index) -> Iterator[tuple[Node, Index]]:
    """Yield the children that any of the points reach, and the positions of these points."""
    side = node.sides(X, points)
    for k in np.unique(side):
        yield node.children[k], np.flatnonzero(side == k)


def _edges(weights: Array) -> Array:
    """Return the ends of the children's intervals of cumulative weight, (n_points, n_children + 1)."""
    edges = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)], axis=1)
    edges[:, -1] = 1.0
    return np.minimum(edges, 1.0)


def _overlap(a: Array, b: Array) -> Array:
    """Return the lengths (n, m) of the overlaps of intervals ``a`` (n, 2) and ``b`` (m, 2)."""
    low = np.maximum(a[:, None, 0], b[None, :, 0])
    high = np.minimum(a[:, None, 1], b[None, :, 1])
    return np.maximum(high - low, 0.0)


def _square_root(covariance: Array) -> Array:
    """Return a square root R, with R R' the covariance, which may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
