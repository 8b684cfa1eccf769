"""A fitted model whose leaves may break: a tree, a process per output, and leaves averaged over their segments.

It has the verbs of :class:`dsmgp.model.Model`. Weights are always the posterior's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from dsmgp import segmented_joint
from dsmgp.inference import Posterior, infer
from dsmgp.lapack import one_thread
from dsmgp.mixture import Mixture
from dsmgp.ordered_leaf import OrderedLeaf
from dsmgp.outliers import Outliers
from dsmgp.process import Family, Process
from dsmgp.segmented import Segmented
from dsmgp.splits import Splits
from dsmgp.tree import Leaf, Node, Product, Sum
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.validation import check_reach

__all__ = ["BreakingModel", "Contamination"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Numbers of segments and points that are looked at together.
AT_ONCE = 2**21
# Components of a mixture that together weigh less than this are replaced by one with their mean and variance.
MERGED = 1e-7
# And no row has more components than this.
MOST_COMPONENTS = 1024


@dataclass(frozen=True)
class Contamination:
    """Noise of rows that may be outliers: with probability ``share`` its variance is ``ratio`` times as large."""

    share: float = 0.0
    ratio: float = 1.0

    @property
    def mean(self) -> float:
        """Of the factor on the noise variance."""
        return 1.0 + self.share * (self.ratio - 1.0)


@dataclass
class BreakingModel:
    """The verbs on a fitted mixture over segmentations. Rows come in, and laws go out, in the user's units.

    Attributes
    ----------
    tree : Node
    family : Family
        Kernel, mean and noise of all segments.
    leaves : list of OrderedLeaf
    experts : list of Segmented
        The leaves given their rows, in the order of the tree's leaves.
    hazards : list of float or None
        Of each leaf that may change any number of times.
    inputs, outputs : InputUnits, OutputUnits
    bound_gap : float
        With outliers: what ``log_evidence`` gains over the evidence at fixed noise variances; the sum is a lower bound.
    contamination : Contamination
    outlier_probability : ndarray of shape (n_rows,) or None
    """

    tree: Node
    family: Family
    leaves: list[OrderedLeaf]
    experts: list[Segmented]
    hazards: list[float | None]
    inputs: InputUnits
    outputs: OutputUnits
    n_rows: int
    bound_gap: float = 0.0
    contamination: Contamination = field(default_factory=Contamination)
    outlier_probability: Array | None = None

    def allow_for(self, outliers: Outliers) -> None:
        """Take up what is known of outliers; the experts were conditioned with their noise."""
        self.bound_gap = outliers.bound_gap()
        self.contamination = Contamination(outliers.share, outliers.ratio)
        self.outlier_probability = outliers.probability.copy()

    @property
    def families(self) -> list[Family]:
        return [self.family]

    @property
    def processes(self) -> list[Process]:
        return self.family.processes

    @cached_property
    def posterior(self) -> Posterior:
        return infer(self.tree, [expert.log_evidence for expert in self.experts])

    @property
    def log_evidence(self) -> float:
        """Log density of the training outputs in the user's units; with outliers a lower bound of it."""
        return self.posterior.log_evidence + self.bound_gap - self.n_rows * self.outputs.log_det

    @property
    def dimension(self) -> int:
        """The input that orders the rows of the first leaf that breaks."""
        return next(own.dimension for own in self.leaves if own.changes is not None)

    @property
    def n_induced_trees(self) -> int:
        """How many partitions are averaged over, but for those with segments too long."""
        ways = {
            id(own.leaf): 2 ** int(own.order.is_gap.sum())
            if own.may_change_often
            else max(int(own.order.is_gap.sum()), 1)
            for own in self.leaves
        }
        return _count(self.tree, ways)

    @property
    def noise(self) -> Array:
        """Noise variances, one per output, of rows that are no outliers, in the units of the experts."""
        return np.array([process.noise for process in self.processes])

    def mixture(self, X: Array, include_noise: bool = True, squeeze: bool = True) -> Mixture:
        """The predictive mixture at each row."""
        with one_thread():
            parts = [self._law(X[rows], include_noise) for rows in self._blocks(X)]
        width = max((part[0].shape[1] for part in parts), default=1)
        weights, means, variances = (
            np.concatenate(
                [_padded(part[k], width, fill) for part in parts]
                or [np.empty((0, width, *[self.outputs.n_outputs] * (k > 0)))]
            )
            for k, fill in ((0, 0.0), (1, 0.0), (2, 1.0))
        )
        return Mixture(weights, means, variances, self.outputs, squeeze)

    def moments(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """The mixture's mean and standard deviation, (n, n_outputs) each."""
        mean = np.empty((len(X), self.outputs.n_outputs))
        variance = np.empty_like(mean)
        for rows in self._blocks(X):
            with one_thread():
                who, weight, means, variances = self._entries(X[rows])
            n = len(X[rows])
            mean[rows] = _sums(who, weight, means, n)
            away = means - mean[rows][who]
            variance[rows] = _sums(who, weight, variances + away * away, n)
        if include_noise:
            variance += self.noise * self.contamination.mean
        units = self.outputs
        return units.mean_to_user(mean), np.sqrt(units.variance_to_user(variance))

    def mean(self, X: Array) -> Array:
        return self.moments(X)[0]

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Mean (n, n_outputs) and each output's joint covariance (n_outputs, n, n) over the rows."""
        with one_thread():  # many small products: threads would wait for one another
            mean, covariance = self._joint(self.tree, X, np.arange(len(X)))
        if include_noise:
            noise = self.noise * self.contamination.mean
            covariance = covariance + noise[:, None, None] * np.eye(len(X))
        squared = np.square(self.outputs.loading)
        return self.outputs.mean_to_user(mean), np.einsum("pq,qij->pij", squared, covariance)

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Joint draws over the rows, (n, n_outputs, n_samples)."""
        with one_thread():
            z = self._draw(self.tree, X, np.arange(len(X)), n_samples, rng)
        if include_noise:
            outlier = rng.uniform(size=z.shape) < self.contamination.share
            factor = np.where(outlier, self.contamination.ratio, 1.0)
            z = z + rng.standard_normal(z.shape) * np.sqrt(factor * self.noise[:, None])
        return np.moveaxis(self.outputs.mean_to_user(np.moveaxis(z, 1, 2)), 2, 1)

    def split_posterior(self, dimension: int, values: Array) -> Splits:
        """The posterior of changes and cuts along an input: of breaking leaves, and of products, whose cuts lie in gaps
        between ``values``."""
        reach = self.posterior.log_reach
        found = [Splits.of_tree(self.tree, reach, dimension, values)]
        for own, expert in zip(self.leaves, self.experts, strict=True):
            if own.changes is None or own.dimension != dimension:
                continue
            at = np.flatnonzero(own.order.is_gap)
            probability = expert.segments.change[at] * np.exp(reach[own.leaf])
            found.append(
                Splits(own.order.position[at - 1], own.order.position[at], probability, True)
            )
        return Splits.joined(found)

    # What leaves say

    def _blocks(self, X: Array) -> list[slice]:
        """Rows that are answered together."""
        count = np.zeros(len(X), dtype=np.int64)
        for own, expert, points in self._reached(X):
            count[points] += expert.n_entries(own.positions(X[points]))
        ends = np.cumsum(count)
        cuts = [0]
        while cuts[-1] < len(X):
            done = ends[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(max(int(np.searchsorted(ends, done + AT_ONCE)), cuts[-1] + 1))
        return [slice(a, min(b, len(X))) for a, b in pairwise(cuts)]

    def _reached(self, X: Array) -> Iterator[tuple[OrderedLeaf, Segmented, Index]]:
        """Leaves and the points in their regions."""
        for own, expert in zip(self.leaves, self.experts, strict=True):
            points = np.flatnonzero(own.leaf.region.contains(X))
            if len(points):
                yield own, expert, points

    def _entries(self, X: Array) -> tuple[Index, Array, Array, Array]:
        """Row, weight, mean and variance of f for all leaves and their segments."""
        Z, parts = self._seen(X), []
        for own, expert, points in self._reached(X):
            path = np.exp(self.posterior.log_reach[own.leaf])
            at = own.positions(X[points])
            who, weight, mean, variance = expert.entries(Z[points], at)
            parts.append((points[who], path * weight, mean, variance))
        who, weight, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        weight = weight / np.bincount(who, weight, minlength=len(X))[who]
        return who, weight, mean, variance

    def _law(self, X: Array, include_noise: bool) -> tuple[Array, Array, Array]:
        """Weights (n, k), means and variances (n, k, n_outputs) of the mixture; the smallest parts merged."""
        who, weight, mean, variance = self._entries(X)
        found = _merged(len(X), who, weight, mean, variance)
        weights, means, variances = found
        variances = np.maximum(variances, np.finfo(np.float64).tiny)
        if not include_noise:
            return weights, means, variances
        plain = variances + self.noise
        if not self.contamination.share:
            return weights, means, plain
        share, wide = self.contamination.share, variances + self.contamination.ratio * self.noise
        return (
            np.concatenate([(1.0 - share) * weights, share * weights], axis=1),
            np.concatenate([means, means], axis=1),
            np.concatenate([plain, wide], axis=1),
        )

    def _joint(self, node: Node, X: Array, points: Index) -> tuple[Array, Array]:
        """Mean and covariances of f at some points, by recursion over the tree."""
        n_outputs = self.outputs.n_outputs
        if isinstance(node, Leaf):
            own, expert = self._of_leaf[node]
            at = own.positions(X[points])
            return segmented_joint.moments(expert, self._seen(X[points]), at)
        if isinstance(node, Product):
            mean = np.empty((len(points), n_outputs))
            covariance = np.zeros((n_outputs, len(points), len(points)))
            side = node.sides(X, points)
            for k in np.unique(side):
                inside = np.flatnonzero(side == k)
                found = self._joint(node.children[k], X, points[inside])
                mean[inside], covariance[:, inside[:, None], inside] = found
            return mean, covariance
        weights = np.exp(self.posterior.log_weights[node])
        parts = [self._joint(child, X, points) for child in node.children]
        mean = np.asarray(sum(w * m for w, (m, _) in zip(weights, parts, strict=True)))
        covariance = np.zeros((n_outputs, len(points), len(points)))
        for w, (m, C) in zip(weights, parts, strict=True):
            away = (m - mean).T
            covariance += w * (C + away[:, :, None] * away[:, None, :])
        return mean, covariance

    def _draw(
        self, node: Node, X: Array, points: Index, n_samples: int, rng: np.random.Generator
    ) -> Array:
        """Joint draws of f at some points, (n_points, n_outputs, n_samples)."""
        if isinstance(node, Leaf):
            own, expert = self._of_leaf[node]
            at = own.positions(X[points])
            return segmented_joint.draw(expert, self._seen(X[points]), at, n_samples, rng)
        out = np.empty((len(points), self.outputs.n_outputs, n_samples))
        if isinstance(node, Product):
            side = node.sides(X, points)
            for k in np.unique(side):
                inside = np.flatnonzero(side == k)
                out[inside] = self._draw(node.children[k], X, points[inside], n_samples, rng)
            return out
        weights = np.exp(self.posterior.log_weights[node])
        pick = rng.choice(len(weights), size=n_samples, p=weights / weights.sum())
        for k in np.unique(pick):
            own_samples = np.flatnonzero(pick == k)
            out[:, :, own_samples] = self._draw(node.children[k], X, points, len(own_samples), rng)
        return out

    @cached_property
    def _of_leaf(self) -> dict[Node, tuple[OrderedLeaf, Segmented]]:
        # By the node itself: a copy or a pickle has other nodes, and makes its own table of them.
        pairs = zip(self.leaves, self.experts, strict=True)
        return {own.leaf: (own, expert) for own, expert in pairs}

    def _seen(self, X: Array) -> torch.Tensor:
        seen = check_reach(self.inputs.to_experts(X), "X")
        return torch.from_numpy(np.ascontiguousarray(seen))


def _count(node: Node, ways: dict[int, int]) -> int:
    if isinstance(node, Leaf):
        return ways[id(node)]
    below = [_count(child, ways) for child in node.children]
    if isinstance(node, Sum):
        return sum(below)
    total = 1
    for each in below:
        total *= each
    return total


def _sums(who: Index, weight: Array, values: Array, n: int) -> Array:
    """Weighted sums of columns by row."""
    return np.stack([np.bincount(who, weight * column, n) for column in values.T], axis=1)


def _merged(
    n: int, who: Index, weight: Array, mean: Array, variance: Array
) -> tuple[Array, Array, Array]:
    """Entries as a table: of each row the heaviest, and one with the moments of all others.

    Mean and variance of the mixture stay exactly what they are.
    """
    sort = np.lexsort((-weight, who))
    who, weight, mean, variance = who[sort], weight[sort], mean[sort], variance[sort]
    starts = np.searchsorted(who, np.arange(n + 1))
    place = np.arange(len(who)) - starts[who]
    up_to = np.cumsum(weight)
    before_row = np.concatenate([[0.0], up_to])[starts[:-1]]
    rest = 1.0 - (up_to - weight - before_row[who])  # what weighs no more than this entry, in all
    small = ((rest < MERGED) | (place >= MOST_COMPONENTS)) & (place > 0)
    width = int(place[~small].max(initial=0)) + 2
    weights = np.zeros((n, width))
    means = np.zeros((n, width, mean.shape[1]))
    variances = np.ones((n, width, mean.shape[1]))
    kept = ~small
    weights[who[kept], place[kept]] = weight[kept]
    means[who[kept], place[kept]] = mean[kept]
    variances[who[kept], place[kept]] = variance[kept]
    total = np.bincount(who[small], weight[small], n)
    some = total > 0
    scale = np.where(some, total, 1.0)[:, None]
    m = _sums(who[small], weight[small], mean[small], n) / scale
    away = mean[small] - m[who[small]]
    v = _sums(who[small], weight[small], variance[small] + away * away, n) / scale
    weights[:, -1] = total
    means[:, -1] = m
    variances[:, -1] = np.where(some[:, None], v, 1.0)
    if not some.any():
        weights, means, variances = weights[:, :-1], means[:, :-1], variances[:, :-1]
    return weights, means, variances


def _padded(table: Array, width: int, fill: float) -> Array:
    missing = width - table.shape[1]
    if not missing:
        return table
    shape = (len(table), missing, *table.shape[2:])
    return np.concatenate([table, np.full(shape, fill)], axis=1)
