"""A leaf's GPs over segments, averaged over the posterior of the segments: predictions, joint covariances and draws.

Two points lie in one segment, or a change point lies between them. Given a change point, f is independent on its two sides, so
expectations of products follow from one recursion over boundaries, from right to left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.changepoints.leaf import OrderedLeaf
from dsmgp.changepoints.prefix_gp import PrefixGPs
from dsmgp.changepoints.segmentation import Chain, chains_of
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.linalg.threads import Threads

__all__ = ["SegmentedGP"]

# Weights of a segment at a point below this are left out.
NEGLIGIBLE = 1e-15
# Chains whose predictions are held at once.
CHAINS_AT_ONCE = 64


@dataclass(frozen=True)
class _ChainPrediction:
    """Mean and variance of f at points given each segment of a chain, (n_segments, n_points, n_outputs)."""

    chain: Chain
    points: Index
    mean: Array
    variance: Array


class SegmentedGP:
    """A leaf conditioned on its rows, with the exact posterior over its segments.

    Parameters
    ----------
    leaf : OrderedLeaf
    kernels : sequence of BoundLeafKernel
        One per output.
    noise : ndarray of shape (n, n_outputs)
        Noise variances of the leaf's sorted rows.
    hazard : float or None
        None where the leaf has no hazard.
    memory : float
        Bytes of Cholesky factors that may be kept between calls.

    Attributes
    ----------
    segments : SegmentPosterior
        Without segments that hardly ever occur.
    """

    def __init__(
        self,
        leaf: OrderedLeaf,
        kernels: Sequence[BoundLeafKernel],
        noise: Array,
        hazard: float | None,
        memory: float = 2.0**28,
    ) -> None:
        self.leaf, self.kernels, self.noise, self.hazard = leaf, kernels, noise, hazard
        self.segments = leaf.segment_posterior(kernels, noise, hazard).pruned()
        self.memory = memory
        self._factors: dict[int, list[PrefixGPs]] = {}
        self._lock = threading.Lock()  # of the factors, and of the memory left for them

    @property
    def log_evidence(self) -> float:
        return self.segments.log_evidence

    @property
    def n_outputs(self) -> int:
        return len(self.kernels)

    @cached_property
    def chains(self) -> list[Chain]:
        return chains_of(self.segments)

    def n_components(self, positions: Array) -> Index:
        """Count the segments that may contain each point, (n_points,)."""
        count = np.zeros(len(positions), dtype=np.int64)
        for chain in self.chains:
            points = self._points_near(chain, positions)
            count[points] += (self._weights(chain, positions[points]) > NEGLIGIBLE).sum(axis=0)
        return count

    def components(self, Z: Array, positions: Array) -> tuple[Index, Array, Array, Array]:
        """Return the components of the predictive mixture of f, one for each segment and point it may contain.

        Parameters
        ----------
        Z : ndarray of shape (n_points, n_dims)
            Scaled inputs.
        positions : ndarray of shape (n_points,)
            Along the input that orders the leaf's rows.

        Returns
        -------
        point, weight : ndarray of shape (n_components,)
            The weights of each point sum to one.
        mean, variance : ndarray of shape (n_components, n_outputs)
        """
        point, weight, mean, variance = [], [], [], []
        for prediction in self._chain_predictions(Z, positions):
            w = self._weights(prediction.chain, positions[prediction.points])
            segment, column = np.nonzero(w > NEGLIGIBLE)
            point.append(prediction.points[column])
            weight.append(w[segment, column])
            mean.append(prediction.mean[segment, column])
            variance.append(prediction.variance[segment, column])
        points, weights = np.concatenate(point), np.concatenate(weight)
        weights /= np.bincount(points, weights, minlength=len(positions))[points]
        return points, weights, np.concatenate(mean), np.concatenate(variance)

    def joint_moments(self, Z: Array, positions: Array) -> tuple[Array, Array]:
        """Return mean (n_points, n_outputs) and covariances (n_outputs, n_points, n_points) of f."""
        sort = np.argsort(positions, kind="stable")
        back = np.argsort(sort, kind="stable")
        Z, positions = Z[sort], positions[sort]
        points, weight, means, _ = self.components(Z, positions)
        mean = np.zeros((len(positions), self.n_outputs))
        np.add.at(mean, points, weight[:, None] * means)
        covariance = np.zeros((self.n_outputs, len(positions), len(positions)))
        self._add_within_segments(Z, positions, mean, covariance)
        self._add_across_changes(Z, positions, mean, covariance)
        return mean[back], covariance[:, back][:, :, back]

    def draw(self, Z: Array, positions: Array, n_samples: int, rng: np.random.Generator) -> Array:
        """Draw f jointly, (n_points, n_outputs, n_samples): a segmentation, the change points in its gaps, then each segment."""
        drawn = self._draw_segments(positions, n_samples, rng)
        out = np.empty((len(positions), self.n_outputs, n_samples))
        for number, chain in enumerate(self.chains):
            wanted = [k for k, segment in enumerate(chain.segments) if int(segment) in drawn]
            if not wanted:
                continue
            uses = [drawn[int(chain.segments[k])] for k in wanted]
            points = np.unique(np.concatenate([held for use in uses for _, held in use]))
            for output, gps in enumerate(self._prefix_gps(number)):
                moments = gps.joint_moments(Z[points], chain.lengths[wanted])
                for (mean, covariance), use in zip(moments, uses, strict=True):
                    values, vectors = np.linalg.eigh(covariance)
                    root = vectors * np.sqrt(np.maximum(values, 0.0))
                    # Of all points, though each sample takes only those that its segment contains.
                    f = mean[:, None] + root @ rng.standard_normal((len(points), len(use)))
                    for column, (sample, held) in enumerate(use):
                        out[held, output, sample] = f[np.searchsorted(points, held), column]
        return out

    def _draw_segments(
        self, positions: Array, n_samples: int, rng: np.random.Generator
    ) -> dict[int, list[tuple[int, Index]]]:
        """Draw segmentations: for each segment drawn, the samples that have it and the points it contains there."""
        segments, boundaries = self.segments, self.leaf.boundaries
        ends = zip(segments.start, segments.end, strict=True)
        number_of = {(int(start), int(end)): k for k, (start, end) in enumerate(ends)}
        drawn: dict[int, list[tuple[int, Index]]] = {}
        for sample in range(n_samples):
            bounds = segments.draw(rng)
            inner = bounds[1:-1]
            width = boundaries.gap_length[inner]
            change_points = boundaries.position[inner - 1] + rng.uniform(size=len(inner)) * width
            owner = np.searchsorted(change_points, positions, side="right")
            for k in np.unique(owner):
                number = number_of[int(bounds[k]), int(bounds[k + 1])]
                drawn.setdefault(number, []).append((sample, np.flatnonzero(owner == k)))
        return drawn

    def _add_within_segments(
        self, Z: Array, positions: Array, mean: Array, covariance: Array
    ) -> None:
        """Add the part where both points lie in one segment: its covariance, and its mean around the overall one."""
        segments, boundaries = self.segments, self.leaf.boundaries
        for number, chain in enumerate(self.chains):
            points = self._points_near(chain, positions)
            if not len(points):
                continue
            start, end = segments.start[chain.segments], segments.end[chain.segments]
            probability = segments.probability[chain.segments]
            begun = boundaries.right_of(start, positions[points])
            not_ended = boundaries.left_of(end, positions[points])
            grid = np.ix_(points, points)
            for output, gps in enumerate(self._prefix_gps(number)):
                for k, (m, C) in enumerate(gps.joint_moments(Z[points], chain.lengths)):
                    # The first point is right of where the segment begins, the last one left of where it ends.
                    both = np.minimum.outer(begun[k], begun[k])
                    both = both * np.minimum.outer(not_ended[k], not_ended[k])
                    away = m - mean[points, output]
                    covariance[output][grid] += probability[k] * both * (C + np.outer(away, away))

    def _add_across_changes(
        self, Z: Array, positions: Array, mean: Array, covariance: Array
    ) -> None:
        """Add the part where a change point lies between the points: given it, the two sides are independent.

        ``left[b]`` is the expected mean of the segment that ends at boundary b, around the overall mean; ``right[b]`` what is
        expected right of a change point there.
        """
        segments, boundaries = self.segments, self.leaf.boundaries
        deviations: dict[int, tuple[Index, Array]] = {}
        for prediction in self._chain_predictions(Z, positions):
            for k, segment in enumerate(prediction.chain.segments):
                away = prediction.mean[k] - mean[prediction.points]
                deviations[int(segment)] = prediction.points, away
        n, shape = boundaries.n_rows, mean.shape
        left: dict[int, Array] = {}
        right: dict[int, Array] = {}
        for segment in np.argsort(-segments.start, kind="stable"):
            start, end = int(segments.start[segment]), int(segments.end[segment])
            past_end = boundaries.right_of(np.array([end]), positions)[0][:, None]
            total = right.setdefault(start, np.zeros(shape))
            chance = segments.next_probability[segment]
            if end < n and end in right:
                total += chance * past_end * right[end]
            if int(segment) in deviations:
                points, away = deviations[int(segment)]
                total[points] += chance * (1.0 - past_end[points]) * away
                begun = boundaries.right_of(np.array([start]), positions[points])[0][:, None]
                ending = left.setdefault(end, np.zeros(shape))
                ending[points] += segments.probability[segment] * begun * away
        for boundary, ending in left.items():
            if boundary == n or boundary not in right:
                continue
            past = boundaries.right_of(np.array([boundary]), positions)[0]
            between = np.maximum(past[None, :] - past[:, None], 0.0)  # a point left, one right
            for output in range(shape[1]):
                apart = ending[:, output, None] * between * right[boundary][None, :, output]
                covariance[output] += apart + apart.T

    def _chain_predictions(self, Z: Array, positions: Array) -> Iterator[_ChainPrediction]:
        """Predict with every chain at the points that its segments may contain."""

        def of_chain(number: int) -> _ChainPrediction | None:
            chain = self.chains[number]
            points = self._points_near(chain, positions)
            if not len(points):
                return None
            moments = [gps.moments(Z[points], chain.lengths) for gps in self._prefix_gps(number)]
            mean, variance = (np.stack(parts, axis=-1) for parts in zip(*moments, strict=True))
            return _ChainPrediction(chain, points, mean, variance)

        for first in range(0, len(self.chains), CHAINS_AT_ONCE):
            block = range(len(self.chains))[first : first + CHAINS_AT_ONCE]
            yield from (each for each in Threads().map(of_chain, block) if each is not None)

    def _prefix_gps(self, number: int) -> list[PrefixGPs]:
        """Return the GPs of a chain, one per output: kept while there is memory, or made again."""
        kept = self._factors.get(number)
        if kept is not None:
            return kept
        rows, leaf = self.chains[number].rows, self.leaf
        made = [
            PrefixGPs(kernel, leaf.X[rows], leaf.Y[rows, k], self.noise[rows, k])
            for k, kernel in enumerate(self.kernels)
        ]
        n_bytes = sum(gps.L.nbytes for gps in made)
        with self._lock:
            # Another thread may have made them too; one copy is kept, and counted once.
            if number not in self._factors and n_bytes <= self.memory:
                self.memory -= n_bytes
                self._factors[number] = made
            return self._factors.get(number, made)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # a copy, or the dict could change while it is pickled
            return {**self.__dict__, "_lock": None, "_factors": dict(self._factors)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _weights(self, chain: Chain, positions: Array) -> Array:
        """Return the posterior probability that points lie in the segments of a chain, (n_segments, n_points)."""
        start, end = self.segments.start[chain.segments], self.segments.end[chain.segments]
        inside = self.leaf.boundaries.inside(start, end, positions)
        return self.segments.probability[chain.segments, None] * inside

    def _points_near(self, chain: Chain, positions: Array) -> Index:
        """Return the numbers of the points that a segment of the chain may contain."""
        start = int(self.segments.start[chain.segments].min())
        end = int(self.segments.end[chain.segments].max())
        return np.flatnonzero(self.leaf.boundaries.may_be_inside(start, end, positions))
