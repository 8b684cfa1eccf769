"""Joint laws over several rows, by recursion over the part of the tree that they reach.

At each sum node one uniform number per draw picks the child at x: the one into whose share of the
cumulative weights at x it falls. With posterior weights the shares are the same everywhere and all rows
follow one induced tree; with a gate they move with x, and rows part ways where the number lies between
their shares. In both cases the law of some of the rows does not depend on which others were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dsmgp.tree import Leaf, Node, Product, Sum, leaves

if TYPE_CHECKING:
    from dsmgp.model import Model

__all__ = ["Joint"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class Joint:
    """The joint law of f, or of y, at some rows."""

    def __init__(self, model: Model, X: Array, include_noise: bool) -> None:
        self.model, self.X, self.Z = model, X, model.experts_see(X)
        noise = model.experts.noise
        self.noise = noise if include_noise else np.zeros_like(noise)
        self.number = {id(leaf): k for k, leaf in enumerate(leaves(model.tree))}
        #: Of each leaf at all rows, not a number where it holds none.
        self.log_weight: dict[int, Array] = {}
        if model.gate is not None:
            routes = model.router.route(X)
            leaf, _ = routes.pairs
            _, variance = model.answers(X, routes)
            log_weight = model.log_gate(leaf, variance + noise[leaf])
            for k, number in enumerate(routes.leaf.tolist()):
                at = np.full(len(X), np.nan)
                at[routes.rows[k]] = log_weight[routes.rows.ends[k] : routes.rows.ends[k + 1]]
                self.log_weight[number] = at

    def moments(self, node: Node, points: Index) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and covariances (n_outputs, n, n), in the user's units."""
        if isinstance(node, Leaf):
            mean, covariance = self._leaf(node, points)
            squared = np.square(self.model.outputs.loading)
            return (
                self.model.outputs.mean_to_user(mean),
                np.einsum("pq,qij->pij", squared, covariance),
            )
        if isinstance(node, Product):  # children are independent: block-diagonal
            mean = np.empty((len(points), self.model.outputs.n_outputs))
            covariance = np.zeros((mean.shape[1], len(points), len(points)))
            for child, inside in self._children(node, points):
                mean[inside], covariance[:, inside[:, None], inside] = self.moments(
                    child, points[inside]
                )
            return mean, covariance
        weights, edges = self._shares(node, points)
        used = [k for k in range(len(node.children)) if weights[:, k].any()]
        parts = {k: self.moments(node.children[k], points) for k in used}
        mean = sum((weights[:, k, None] * parts[k][0] for k in used), start=np.zeros(()))
        covariance = np.zeros_like(parts[used[0]][1])
        # Around the mean, where offsets do no harm.
        away = {k: (parts[k][0] - mean).T for k in used}
        for k in used:
            for other in used:
                overlap = _overlap(edges[:, k : k + 2], edges[:, other : other + 2])
                if other == k:
                    covariance += overlap * parts[k][1]
                if overlap.any():
                    covariance += overlap * away[k][:, :, None] * away[other][:, None, :]
        return mean, covariance

    def draw(self, node: Node, points: Index, n_samples: int, rng: np.random.Generator) -> Array:
        """Draws at the points, (n_points, n_outputs, n_samples), in the units of the experts."""
        out = np.empty((len(points), self.model.outputs.n_outputs, n_samples))
        if isinstance(node, Leaf):
            mean, covariance = self._leaf(node, points)
            gate = self.model.shape
            pick = rng.choice(len(gate.shape_weights), size=n_samples, p=gate.shape_weights)
            spread = np.sqrt(gate.shape_variances / gate.mean_variance)[pick]
            for output, matrix in enumerate(covariance):
                normal = rng.standard_normal((len(points), n_samples))
                out[:, output] = mean[:, output, None] + (_root(matrix) @ normal) * spread
        elif isinstance(node, Product):
            for child, inside in self._children(node, points):
                out[inside] = self.draw(child, points[inside], n_samples, rng)
        else:
            _, edges = self._shares(node, points)
            u = rng.uniform(size=n_samples)
            for k, child in enumerate(node.children):
                chosen = (edges[:, k, None] <= u) & (u < edges[:, k + 1, None])  # (points, samples)
                rows, columns = np.flatnonzero(chosen.any(1)), np.flatnonzero(chosen.any(0))
                if rows.size:
                    part = self.draw(child, points[rows], columns.size, rng)
                    i, j = np.nonzero(chosen[np.ix_(rows, columns)])
                    out[rows[i], :, columns[j]] = part[i, :, j]
        return out

    def _shares(self, node: Sum, points: Index) -> tuple[Array, Array]:
        """Weights of the children at the points, and the edges of their cumulative shares."""
        if self.model.gate is None:
            weights = np.tile(np.exp(self.model.log_weights[node]), (len(points), 1))
        else:
            log_weights = np.stack([self._log_weight(c, points) for c in node.children], -1)
            weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        edges = np.concatenate([np.zeros((len(points), 1)), np.cumsum(weights, axis=1)], axis=1)
        edges[:, -1] = 1.0
        return weights, np.minimum(edges, 1.0)

    def _log_weight(self, node: Node, points: Index) -> Array:
        """A node's weight at points: that of all its leaves that the points reach."""
        if isinstance(node, Leaf):
            return self.log_weight[self.number[id(node)]][points]
        if isinstance(node, Product):
            total = np.empty(len(points))
            for child, inside in self._children(node, points):
                total[inside] = self._log_weight(child, points[inside])
            return total
        return np.asarray(
            np.logaddexp.reduce([self._log_weight(c, points) for c in node.children], axis=0)
        )

    def _children(self, node: Product, points: Index) -> Sequence[tuple[Node, Index]]:
        """The children that any of the points reach, and which of the points."""
        side = node.sides(self.X, points)
        reached = [(child, np.flatnonzero(side == k)) for k, child in enumerate(node.children)]
        return [(child, inside) for child, inside in reached if inside.size]

    def _leaf(self, leaf: Leaf, points: Index) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and covariances (n_outputs, n, n) in the units of the experts."""
        number = self.number[id(leaf)]
        rows = self.Z[torch.from_numpy(points).to(self.Z.device)]
        mean, covariance = self.model.experts.joint(number, rows)
        C = covariance.to("cpu", torch.float64).numpy()
        C = C + self.noise[number][:, None, None] * np.eye(len(points))
        scale = self.model.scales[number] * self.model.shape.mean_variance
        return mean.to("cpu", torch.float64).numpy(), C * scale[:, None, None]


def _overlap(a: Array, b: Array) -> Array:
    """Common length of the intervals of rows of ``a`` (n, 2) and of ``b`` (m, 2), as (n, m)."""
    low = np.maximum(a[:, None, 0], b[None, :, 0])
    high = np.minimum(a[:, None, 1], b[None, :, 1])
    return np.maximum(high - low, 0.0)


def _root(covariance: Array) -> Array:
    """A matrix whose product with its transpose is the covariance, which may be singular."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
