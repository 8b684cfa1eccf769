"""The fitted model of ``structure="changepoint"``: a tree whose leaves are averaged over their segmentations.

It has the interface of :class:`dsmgp.mixture.model.Model`. Mixture weights are always those of the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp._util.validation import check_in_range
from dsmgp.changepoints.components import merge_small, moments_by_row, pad
from dsmgp.changepoints.leaf import OrderedLeaf
from dsmgp.changepoints.outliers import Contamination, Outliers
from dsmgp.changepoints.segment_gp import SegmentedGP
from dsmgp.gp.process import Family, Process
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling
from dsmgp.linalg.threads import one_thread
from dsmgp.mixture.edges import Edges
from dsmgp.mixture.fitted_model import CHANGE_POINTS, Description, Unsupported
from dsmgp.mixture.inference import Posterior, infer
from dsmgp.mixture.predictive.distribution import Mixture
from dsmgp.mixture.predictive.joint import Joint
from dsmgp.mixture.splits import Splits
from dsmgp.tree.nodes import Leaf, Node, Sum, fold

__all__ = ["ChangePointModel"]

# Components of the mixture, over all rows, that are computed together.
COMPONENTS_AT_ONCE = 2**21


@dataclass(frozen=True, eq=False)
class ChangePointModel:
    """A fitted mixture over segmentations. Inputs and predictions are in the user's units.

    Attributes
    ----------
    tree : Node
    family : Family
        Kernel, mean and noise of all segments.
    segmented_gps : list of SegmentedGP
        The leaves conditioned on their rows, in the order of the tree's leaves.
    inputs, outputs : InputScaling, OutputScaling
    n_rows : int
        Training rows.
    outliers : Outliers or None
        With outliers, ``log_evidence`` is a lower bound.
    edges : Edges, optional
        Ranges of the inputs. Variances beyond them stay as they are: a change is expected there, too.
    """

    tree: Node
    family: Family
    segmented_gps: list[SegmentedGP]
    inputs: InputScaling
    outputs: OutputScaling
    n_rows: int
    outliers: Outliers | None = None
    edges: Edges | None = None

    weights: ClassVar[str] = "posterior"
    thetas: ClassVar[list[Array] | None] = None
    has_rows_in_files: ClassVar[bool] = False
    pool: ClassVar[None] = None
    has_change_points: ClassVar[bool] = True
    kernel_sums: ClassVar[list[tuple[Sum, list[int]]]] = []
    unsupported: ClassVar[Unsupported] = CHANGE_POINTS

    @property
    def families(self) -> list[Family]:
        return [self.family]

    @property
    def processes(self) -> tuple[Process, ...]:
        return self.family.processes

    @property
    def leaves(self) -> list[OrderedLeaf]:
        return [gp.leaf for gp in self.segmented_gps]

    @cached_property
    def posterior(self) -> Posterior:
        return infer(self.tree, [gp.log_evidence for gp in self.segmented_gps])

    @property
    def log_evidence(self) -> float:
        """Log density of the training outputs in the user's units; with outliers a lower bound of it."""
        gap = 0.0 if self.outliers is None else self.outliers.bound_gap
        return self.posterior.log_evidence + gap - self.n_rows * self.outputs.log_det

    @property
    def split_dimension(self) -> int:
        """The input that orders the rows of the first leaf with change points."""
        return next(leaf.dimension for leaf in self.leaves if leaf.changes is not None)

    @property
    def n_induced_trees(self) -> int:
        """Number of segmentations averaged over, including those with segments longer than allowed."""

        def count(node: Leaf) -> int:
            leaf = self._gp_of[node].leaf
            n_gaps = int(leaf.boundaries.is_gap.sum())
            return 2**n_gaps if leaf.has_hazard else max(n_gaps, 1)

        return fold(
            self.tree,
            count,
            lambda product, counts: math.prod(counts),
            lambda node, counts: sum(counts),
        )

    @property
    def noise(self) -> Array:
        """Noise variance of each scaled output, for rows that are no outliers."""
        return np.array([process.noise for process in self.processes])

    @property
    def contamination(self) -> Contamination:
        """Noise of outliers; none if the model has no outliers."""
        return Contamination() if self.outliers is None else self.outliers.contamination

    @property
    def outlier_probability(self) -> Array | None:
        """Posterior probability of each training row to be an outlier."""
        return None if self.outliers is None else self.outliers.probability

    @property
    def leaf_noise(self) -> Array:
        """Noise variances of the scaled outputs, (n_leaves, n_outputs): the same in all leaves."""
        return np.tile(self.noise, (len(self.leaves), 1))

    def noise_at(self, X: Array) -> Array:
        """Return the noise variance at each row, outliers included, (n, n_outputs): the same everywhere."""
        noise = self.outputs.variance_to_latent(self.noise[None] * self.contamination.mean)
        return np.tile(noise, (len(X), 1))

    def leaf_weights(self, X: Array) -> Array:
        """Return the posterior probability of every leaf, relative to their sum: (n_leaves,)."""
        weights = np.exp(self.posterior.log_responsibilities)
        return np.asarray(weights / weights.sum())

    def description(self, input_names: Sequence[str], output_names: Sequence[str]) -> Description:
        """Describe segmentations, evidence and outliers for a summary."""
        n_ways = self.n_induced_trees
        count = f"{n_ways:,}" if n_ways < 10**15 else f"about 10^{math.log10(n_ways):.1f}"
        facts = [f"segmentations   {count}, all averaged"]
        facts += [self._change_fact(gp) for gp in self.segmented_gps if gp.leaf.changes is not None]
        bound = " (a lower bound)" if self.outliers is not None else ""
        per_row = self.log_evidence / self.n_rows
        facts.append(f"log evidence    {self.log_evidence:.6g} ({per_row:.4g} per row){bound}")
        if self.outliers is not None:
            facts.append(
                f"outliers        {self.outliers.probability.sum():.1f} of the rows, "
                f"with {math.sqrt(self.contamination.ratio):.3g} times the noise's std"
            )
        title = f"Segments of GPs in order of {input_names[self.split_dimension]}"
        return Description(title, facts, kernel_score=" (negative log evidence per row)")

    def _change_fact(self, gp: SegmentedGP) -> str:
        """Describe how many change points a leaf is expected to have."""
        leaf = gp.leaf
        expected = gp.segments.expected_changes * math.exp(self.posterior.log_reach[leaf.node])
        fact = f"changes         {expected:.2f} expected"
        if gp.hazard is not None:
            unit = "gap" if leaf.gaps == "equal" else "unit of the input"
            fact += f", hazard {gp.hazard:.3g} per {unit}, segments of up to {leaf.longest} rows"
        return fact

    def mixture(self, X: Array, include_noise: bool = True, squeeze: bool = True) -> Mixture:
        """Return the predictive mixture at each row."""
        with one_thread():
            parts = [self._mixture_arrays(X[rows], include_noise) for rows in self._blocks(X)]
        width = max((part[0].shape[1] for part in parts), default=1)
        weights, means, variances = (
            np.concatenate(
                [pad(part[k], width, fill) for part in parts]
                or [np.empty((0, width, *[self.outputs.n_outputs] * (k > 0)))]
            )
            for k, fill in ((0, 0.0), (1, 0.0), (2, 1.0))
        )
        return Mixture(weights, means, variances, self.outputs, squeeze)

    def moments(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Return the mixture's mean and standard deviation, (n, n_outputs) each."""
        mean = np.empty((len(X), self.outputs.n_outputs))
        variance = np.empty_like(mean)
        for rows in self._blocks(X):
            with one_thread():
                components = self._components(X[rows])
            mean[rows], variance[rows] = moments_by_row(len(X[rows]), *components)
        if include_noise:
            variance += self.noise * self.contamination.mean
        scaling = self.outputs
        return scaling.mean_to_latent(mean), np.sqrt(scaling.variance_to_latent(variance))

    def mean(self, X: Array) -> Array:
        return self.moments(X)[0]

    def covariance(self, X: Array, include_noise: bool = True) -> tuple[Array, Array]:
        """Return the mean (n, n_outputs) and each output's joint covariance (n_outputs, n, n)."""
        with one_thread():  # many small products: threads would wait for one another
            mean, covariance = self._joint(X).moments(self.tree, np.arange(len(X)))
        if include_noise:
            noise = self.noise * self.contamination.mean
            covariance = covariance + noise[:, None, None] * np.eye(len(X))
        squared = np.square(self.outputs.loading)
        return self.outputs.mean_to_latent(mean), np.einsum("pq,qij->pij", squared, covariance)

    def draws(
        self, X: Array, n_samples: int, rng: np.random.Generator, include_noise: bool = False
    ) -> Array:
        """Return joint draws, (n, n_outputs, n_samples)."""
        with one_thread():
            z = self._joint(X).draws(self.tree, np.arange(len(X)), n_samples, rng)
        if include_noise:
            outlier = rng.uniform(size=z.shape) < self.contamination.share
            factor = np.where(outlier, self.contamination.ratio, 1.0)
            z = z + rng.standard_normal(z.shape) * np.sqrt(factor * self.noise[:, None])
        return np.moveaxis(self.outputs.mean_to_latent(np.moveaxis(z, 1, 2)), 2, 1)

    def outside(self, X: Array) -> Array:
        """How far rows lie outside the training data, in length scales, (n,); 0 inside."""
        return np.zeros(len(X)) if self.edges is None else self.edges.distance(X, self.inputs)

    def outside_by_input(self, X: Array) -> Array:
        """The same by each input alone, (n, n_inputs)."""
        if self.edges is None:
            return np.zeros(X.shape)
        return self.edges.distance_by_input(X, self.inputs)

    def split_posterior(self, dimension: int, values: Array) -> Splits:
        """Return the posterior of change points and of the tree's cuts along an input.

        Parameters
        ----------
        dimension : int
        values : ndarray of shape (n_rows,)
            Training inputs along that dimension; cuts lie in the gaps between them.
        """
        reach = self.posterior.log_reach
        parts = [Splits.of_tree(self.tree, reach, dimension, values)]
        for gp in self.segmented_gps:
            leaf = gp.leaf
            if leaf.changes is None or leaf.dimension != dimension:
                continue
            gap = np.flatnonzero(leaf.boundaries.is_gap)
            probability = gp.segments.change_probability[gap] * np.exp(reach[leaf.node])
            position = leaf.boundaries.position
            parts.append(Splits(position[gap - 1], position[gap], probability, True))
        return Splits.joined(parts)

    def _blocks(self, X: Array) -> list[slice]:
        """Split rows into blocks whose components fit into memory together."""
        count = np.zeros(len(X), dtype=np.int64)
        for gp, points in self._reached(X):
            count[points] += gp.n_components(gp.leaf.positions(X[points]))
        ends = np.cumsum(count)
        cuts = [0]
        while cuts[-1] < len(X):
            done = ends[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(max(int(np.searchsorted(ends, done + COMPONENTS_AT_ONCE)), cuts[-1] + 1))
        return [slice(a, min(b, len(X))) for a, b in pairwise(cuts)]

    def _reached(self, X: Array) -> Iterator[tuple[SegmentedGP, Index]]:
        """Yield the leaves and the rows of X in their regions."""
        for gp in self.segmented_gps:
            points = np.flatnonzero(gp.leaf.node.region.contains(X))
            if len(points):
                yield gp, points

    def _components(self, X: Array) -> tuple[Index, Array, Array, Array]:
        """Return row, weight, mean and variance of f of all components, over leaves and segments."""
        Z, parts = self._scaled(X), []
        for gp, points in self._reached(X):
            path = np.exp(self.posterior.log_reach[gp.leaf.node])
            positions = gp.leaf.positions(X[points])
            point, weight, mean, variance = gp.components(Z[points], positions)
            parts.append((points[point], path * weight, mean, variance))
        row, weight, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
        weight = weight / np.bincount(row, weight, minlength=len(X))[row]
        return row, weight, mean, variance

    def _mixture_arrays(self, X: Array, include_noise: bool) -> tuple[Array, Array, Array]:
        """Return weights (n, k), means and variances (n, k, n_outputs), the smallest components merged."""
        weights, means, variances = merge_small(len(X), *self._components(X))
        variances = np.maximum(variances, np.finfo(np.float64).tiny)
        if not include_noise:
            return weights, means, variances
        plain = variances + self.noise
        share = self.contamination.share
        if not share:
            return weights, means, plain
        wide = variances + self.contamination.ratio * self.noise
        return (
            np.concatenate([(1.0 - share) * weights, share * weights], axis=1),
            np.concatenate([means, means], axis=1),
            np.concatenate([plain, wide], axis=1),
        )

    def _joint(self, X: Array) -> Joint:
        """Return the joint distribution of f at the rows of X, in the experts' units."""

        def segmented(leaf: Leaf, points: Index) -> tuple[SegmentedGP, Array, Array]:
            gp, rows = self._gp_of[leaf], X[points]
            return gp, self._scaled(rows), gp.leaf.positions(rows)

        def weights(node: Sum, points: Index) -> Array:
            posterior = np.exp(self.posterior.log_weights[node])
            return np.tile(posterior / posterior.sum(), (len(points), 1))

        def moments(leaf: Leaf, points: Index) -> tuple[Array, Array]:
            gp, Z, positions = segmented(leaf, points)
            return gp.joint_moments(Z, positions)

        def draws(leaf: Leaf, points: Index, n_samples: int, rng: np.random.Generator) -> Array:
            gp, Z, positions = segmented(leaf, points)
            return gp.draw(Z, positions, n_samples, rng)

        return Joint(X, self.outputs.n_outputs, weights, moments, draws)

    @cached_property
    def _gp_of(self) -> dict[Node, SegmentedGP]:
        # By the node itself: a copy or a pickle has other nodes, and makes its own table of them.
        return {gp.leaf.node: gp for gp in self.segmented_gps}

    def _scaled(self, X: Array) -> Array:
        return check_in_range(self.inputs.to_experts(X), "X")
