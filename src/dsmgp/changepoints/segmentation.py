"""The exact posterior over segmentations of ordered rows, by forward filtering and backward smoothing (Fearnhead 2006).

A segment is the rows between two boundaries, a segmentation a sequence of segments that covers all rows. The prior of a segmentation is a
product over gaps (hazard: a change point lies in the gap), its likelihood a product over segments, so sums over all
segmentations take one pass over pairs of boundaries. All recursions are in log space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from dsmgp._util.arrays import Array, Index
from dsmgp._util.compiled import Kernel
from dsmgp._util.machine import has_numba
from dsmgp.changepoints.boundaries import Boundaries

__all__ = [
    "Chain",
    "SegmentPosterior",
    "chains_of",
    "hazard_log_probabilities",
    "posterior_any_changes",
    "posterior_no_change",
    "posterior_one_change",
    "single_change_log_prior",
]

FORWARD = Kernel("dsmgp.changepoints.numba_kernels", "forward")
BACKWARD = Kernel("dsmgp.changepoints.numba_kernels", "backward")
# Segments that together are expected less often than this are left out of predictions.
DROPPED = 1e-9


@dataclass(frozen=True)
class SegmentPosterior:
    """Posterior over segmentations, by the marginal probability of each segment; sorted by start, then end.

    At every position the probabilities of the segments that contain it sum to one, but for segments left out as too improbable.

    Attributes
    ----------
    start, end : ndarray of shape (n_segments,)
        Boundaries: a segment has the rows from ``start`` to ``end - 1``.
    probability : ndarray of shape (n_segments,)
        Posterior probability that the segment occurs.
    change_probability : ndarray of shape (n_rows + 1,)
        Posterior probability of a change point at each boundary.
    log_evidence : float
        Log density of the observations, summed over segmentations; NaN where a covariance has no Cholesky factor.
    prior_change_probability : ndarray of shape (n_rows + 1,)
        Prior probability of a change point at each boundary.
    """

    start: Index
    end: Index
    probability: Array
    change_probability: Array
    log_evidence: float
    prior_change_probability: Array

    @property
    def n_rows(self) -> int:
        return len(self.change_probability) - 1

    @property
    def expected_changes(self) -> float:
        """Expected number of change points."""
        return float(self.change_probability.sum())

    def pruned(self, dropped: float = DROPPED) -> SegmentPosterior:
        """Leave out segments that together are expected less often than ``dropped``."""
        order = np.argsort(self.probability)
        n_out = int(np.searchsorted(np.cumsum(self.probability[order]), dropped))
        kept = np.sort(order[n_out:])
        return replace(
            self,
            start=self.start[kept],
            end=self.end[kept],
            probability=self.probability[kept],
        )

    @cached_property
    def next_probability(self) -> Array:
        """Probability of each segment, given that a segment begins where it does, (n_segments,)."""
        total = np.zeros(self.n_rows + 1)
        np.add.at(total, self.start, self.probability)
        return self.probability / total[self.start]

    def draw(self, rng: np.random.Generator) -> Index:
        """Draw a segmentation; return its boundaries, 0 and n_rows included."""
        boundaries, n = [0], self.n_rows
        if not n:
            return np.zeros(2, dtype=np.int64)
        while boundaries[-1] < n:
            first, after = np.searchsorted(self.start, [boundaries[-1], boundaries[-1] + 1])
            weights = np.cumsum(self.next_probability[first:after])
            pick = int(np.searchsorted(weights, rng.uniform() * weights[-1], side="right"))
            boundaries.append(int(self.end[first + min(pick, len(weights) - 1)]))
        return np.array(boundaries)


def posterior_no_change(boundaries: Boundaries, log_evidence: float) -> SegmentPosterior:
    """Return the posterior where all rows are one segment."""
    n = boundaries.n_rows
    none = np.zeros(n + 1)
    return SegmentPosterior(np.array([0]), np.array([n]), np.ones(1), none, log_evidence, none)


def single_change_log_prior(boundaries: Boundaries, gaps: str, shortest: int = 1) -> Array:
    """Return the log prior of the only change point at each boundary, (n_rows + 1,).

    Parameters
    ----------
    boundaries : Boundaries
    gaps : "equal" or "length"
        Whether all gaps are equally probable, or in proportion to their length.
    shortest : int
        Fewest rows of a segment; boundaries nearer to an end have probability zero.
    """
    with np.errstate(divide="ignore"):
        weight = np.log(
            boundaries.is_gap.astype(np.float64) if gaps == "equal" else boundaries.gap_length
        )
    boundary = np.arange(len(weight))
    weight[(boundary < shortest) | (boundaries.n_rows - boundary < shortest)] = -np.inf
    return np.asarray(weight - logsumexp(weight))


def posterior_one_change(
    boundaries: Boundaries, prefix: Array, suffix: Array, log_prior: Array
) -> SegmentPosterior:
    """Return the posterior with exactly one change point.

    Parameters
    ----------
    boundaries : Boundaries
    prefix, suffix : ndarray of shape (n_rows + 1,)
        Log evidence of the rows before and after each boundary.
    log_prior : ndarray of shape (n_rows + 1,)
        Of :func:`single_change_log_prior`.
    """
    n = boundaries.n_rows
    terms = log_prior + prefix + suffix
    log_evidence = float(logsumexp(terms))
    change = np.exp(terms - log_evidence)
    gap = np.flatnonzero(boundaries.is_gap)
    start = np.concatenate([np.zeros_like(gap), gap])
    end = np.concatenate([gap, np.full_like(gap, n)])
    probability = np.concatenate([change[gap], change[gap]])
    return SegmentPosterior(start, end, probability, change, log_evidence, np.exp(log_prior))


def hazard_log_probabilities(
    boundaries: Boundaries, gaps: str, hazard: float
) -> tuple[Array, Array, Array]:
    """Return the prior of change points at independent gaps.

    Parameters
    ----------
    boundaries : Boundaries
    gaps : "equal" or "length"
    hazard : float
        Probability of a change in every gap (``"equal"``), or the rate per unit of length of a Poisson process (``"length"``).

    Returns
    -------
    log_hazard, log_survival : ndarray of shape (n_rows + 1,)
        Log probability of a change point at each boundary, and of none; minus infinity and zero where there is no gap.
    slope : ndarray of shape (n_rows + 1,)
        Derivative of their difference by the log odds of the hazard (``"equal"``) or its log (``"length"``).
    """
    gap = boundaries.is_gap
    if gaps == "equal":
        log_hazard = np.full(len(gap), np.log(hazard))
        log_survival = np.full(len(gap), np.log1p(-hazard))
        slope = np.ones(len(gap))
    else:
        expected = hazard * boundaries.gap_length
        with np.errstate(divide="ignore", invalid="ignore"):
            log_hazard, log_survival = np.log(-np.expm1(-expected)), -expected
            slope = np.where(gap, expected / -np.expm1(-expected), 0.0)
    return (
        np.where(gap, log_hazard, -np.inf),
        np.where(gap, log_survival, 0.0),
        np.where(gap, slope, 0.0),
    )


def posterior_any_changes(
    evidences: Array, log_hazard: Array, log_survival: Array
) -> SegmentPosterior:
    """Return the posterior with any number of change points.

    The prior is that of independent gaps, conditioned on no segment being longer than ``evidences`` is wide or having an evidence
    of zero.

    Parameters
    ----------
    evidences : ndarray of shape (n_rows, longest)
        ``[i, m - 1]`` is the log evidence of the m rows from i on; minus infinity for segments that are not allowed.
    log_hazard, log_survival : ndarray of shape (n_rows + 1,)
        Of :func:`hazard_log_probabilities`.
    """
    n_rows, longest = evidences.shape
    log_constant, prior_change = 0.0, np.exp(log_hazard)
    if longest < n_rows or np.isneginf(evidences[:, 0]).any():
        # Without evidence: the prior probability that no segment is too long or too short.
        allowed = np.where(np.isneginf(evidences), -np.inf, 0.0)
        prior = _forward_backward(allowed, log_hazard, log_survival)
        log_constant, prior_change = prior.log_total, prior.change_probability
    messages = _forward_backward(evidences, log_hazard, log_survival)
    start, end, probability = messages.segments(evidences)
    return SegmentPosterior(
        start,
        end,
        probability,
        messages.change_probability,
        messages.log_total - log_constant,
        prior_change,
    )


@dataclass(frozen=True)
class _Messages:
    """Messages of the forward and the backward recursion, in log space.

    Attributes
    ----------
    boundaries : ndarray
        Boundaries where segments may begin or end.
    log_begins : ndarray of shape (n_rows + 1,)
        Log posterior probability that a segment begins at each boundary.
    entered, left : ndarray of shape (n_rows + 1,)
        ``entered[i] + evidence(i, j) + left[j]`` is the log joint density of all observations and a segment from i to j.
    log_total : float
        Log of the sum over all segmentations.
    """

    boundaries: Index
    log_begins: Array
    entered: Array
    left: Array
    log_total: float

    @property
    def change_probability(self) -> Array:
        # Where the evidence is huge, cancellation leaves more than a probability can be.
        probability = np.exp(np.minimum(self.log_begins, 0.0))
        probability[[0, -1]] = 0.0
        return np.asarray(probability)

    def segments(self, evidences: Array) -> tuple[Index, Index, Array]:
        """Return start, end and probability of all segments that are not negligible."""
        n, longest = evidences.shape
        negligible = np.log(DROPPED / evidences.size) if evidences.size else 0.0
        parts = []
        for i in self.boundaries[:-1]:
            if self.log_begins[i] < negligible:
                continue
            width = min(longest, n - i)
            log_p = self.entered[i] + evidences[i, :width] + self.left[i + 1 : i + 1 + width]
            log_p = np.minimum(log_p - self.log_total, 0.0)
            kept = np.flatnonzero(log_p > negligible)
            parts.append((np.full(len(kept), i), i + 1 + kept, np.exp(log_p[kept])))
        start, end, probability = (np.concatenate(part) for part in zip(*parts, strict=True))
        return start, end, probability


def _forward_backward(evidences: Array, log_hazard: Array, log_survival: Array) -> _Messages:
    """Sum over all segmentations: forward filtering, then backward smoothing."""
    n = len(evidences)
    log_enter = log_hazard.copy()  # prior of a segment's beginning at each boundary
    log_enter[0] = 0.0
    log_leave = log_hazard.copy()
    log_leave[-1] = 0.0
    # Up to a boundary. The gaps inside a segment from i to j are i + 1 to j - 1.
    survival = np.cumsum(log_survival)
    boundaries = np.flatnonzero(np.isfinite(log_enter) | (np.arange(n + 1) == n))
    before, entered, after, left = np.full((4, n + 1), -np.inf)
    before[0], entered[0] = 0.0, -survival[0]
    after[n], left[n] = 0.0, survival[n - 1]
    forward, backward = (FORWARD, BACKWARD) if has_numba() else (_forward, _backward)
    table = np.ascontiguousarray(evidences)
    forward(table, log_enter, survival, boundaries, before, entered)
    backward(table, log_leave, survival, boundaries, after, left)
    log_total = float(before[n])
    return _Messages(boundaries, before + log_enter + after - log_total, entered, left, log_total)


def _forward(
    evidences: Array,
    log_enter: Array,
    survival: Array,
    boundaries: Index,
    before: Array,
    entered: Array,
) -> None:
    """Fill ``before``, the log density of the rows before each boundary, and ``entered``, with a new segment begun there."""
    longest = evidences.shape[1]
    flat = evidences.reshape(-1)
    for j in boundaries[1:]:
        low = max(0, j - longest)
        first = low * longest + (j - 1 - low)
        # Evidences of the segments that end at j: an antidiagonal of the table.
        terms = flat[first : first + (j - 1 - low) * (longest - 1) + 1 : max(longest - 1, 1)]
        before[j] = _log_sum(entered[low:j] + terms) + survival[j - 1]
        entered[j] = before[j] + log_enter[j] - survival[j]


def _backward(
    evidences: Array,
    log_leave: Array,
    survival: Array,
    boundaries: Index,
    after: Array,
    left: Array,
) -> None:
    """Fill ``after``, the log density of the rows after each boundary, and ``left``, with a segment ended there."""
    n, longest = evidences.shape
    for i in boundaries[-2::-1]:
        width = min(longest, n - i)
        after[i] = _log_sum(evidences[i, :width] + left[i + 1 : i + 1 + width]) - survival[i]
        left[i] = after[i] + log_leave[i] + survival[max(i - 1, 0)]


def _log_sum(terms: Array) -> float:
    """Return the log of a sum of exponentials; faster than SciPy's for a few hundred terms."""
    top = float(terms.max())
    if not np.isfinite(top):
        return top
    return top + float(np.log(np.exp(terms - top).sum()))


@dataclass(frozen=True)
class Chain:
    """Segments that share one Cholesky factor: all begin at one boundary, or all end with the last row.

    Attributes
    ----------
    rows : ndarray
        Rows of the longest segment, from the shared boundary on.
    lengths : ndarray of shape (n_segments,)
        Numbers of rows, ascending.
    segments : ndarray of shape (n_segments,)
        Which segments of the posterior these are.
    """

    rows: Index
    lengths: Index
    segments: Index


def chains_of(posterior: SegmentPosterior) -> list[Chain]:
    """Group segments: those that end with the last row in one chain, the others by where they begin."""
    n, chains = posterior.n_rows, []
    last = np.flatnonzero(posterior.end == n)
    if len(last):
        segments = last[np.argsort(-posterior.start[last], kind="stable")]
        lengths = n - posterior.start[segments]
        chains.append(Chain(np.arange(n)[::-1][: lengths[-1]], lengths, segments))
    others = np.flatnonzero(posterior.end != n)
    for segments in np.split(others, np.flatnonzero(np.diff(posterior.start[others])) + 1):
        if len(segments):
            start = int(posterior.start[segments[0]])
            lengths = posterior.end[segments] - start  # ascending, as segments are sorted
            chains.append(Chain(np.arange(start, start + lengths[-1]), lengths, segments))
    return chains
