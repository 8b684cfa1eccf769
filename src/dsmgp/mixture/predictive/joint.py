"""The joint predictive distribution over several rows, by recursion over the part of the tree that they reach.

At each sum node one uniform number per draw selects the child at x: the one into whose interval of the
cumulative weights at x it falls. With posterior weights the intervals are the same everywhere, and all rows
follow one induced tree; with a gate they vary with x, and rows may follow different children. In both cases
the distribution at some rows does not depend on which other rows are predicted with them.

The recursion (:class:`Joint`) serves mixtures, for which :class:`~dsmgp.mixture.gated_leaves.GatedLeaves` supplies leaves and weights, and
change-point models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.tree.nodes import Leaf, Node, Product, Sum

__all__ = ["Joint", "reached_children"]


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
            for child, inside in reached_children(node, self.X, points):
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
        """Draw at some rows: (n_points, n_outputs, n_samples).

        Parameters
        ----------
        node : Node
            All of the points are in its region.
        points : ndarray of int
            Numbers of rows.
        n_samples : int
        rng : Generator
        """
        if isinstance(node, Leaf):
            return self.leaf_draws(node, points, n_samples, rng)
        out = np.empty((len(points), self.n_outputs, n_samples))
        if isinstance(node, Product):
            for child, inside in reached_children(node, self.X, points):
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


def reached_children(node: Product, X: Array, points: Index) -> Iterator[tuple[Node, Index]]:
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
