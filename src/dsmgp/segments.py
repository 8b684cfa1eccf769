"""The exact posterior over segmentations of ordered rows (Fearnhead 2006): forward and backward, in log space.

A segment is the rows between two boundaries. A segmentation is a chain of them; its prior is a product over gaps, its
likelihood a product over segments, so sums over all segmentations take one pass over pairs of boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dsmgp.execution import has_numba
from dsmgp.order import Order

__all__ = ["Segments", "any_changes", "hazard_odds", "log_prior_of_one", "no_change", "one_change"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Segments that together are expected less often than this are left out of predictions.
DROPPED = 1e-9


@dataclass(frozen=True)
class Segments:
    """Segments that may occur, and the posterior probability of each, ordered by start and end.

    At every place the probabilities of the segments that hold it sum to one, but for those that were dropped.

    Attributes
    ----------
    start, end : ndarray of shape (n_segments,)
        Boundaries: rows from ``start`` to ``end - 1``.
    probability : ndarray of shape (n_segments,)
    change : ndarray of shape (n_rows + 1,)
        Posterior probability of a change at each boundary.
    log_evidence : float
    prior_change : ndarray of shape (n_rows + 1,)
        What ``change`` was before the rows were seen.
    """

    start: Index
    end: Index
    probability: Array
    change: Array
    log_evidence: float
    prior_change: Array

    @property
    def n_rows(self) -> int:
        return len(self.change) - 1

    @property
    def n_changes(self) -> float:
        """Expected number of changes."""
        return float(self.change.sum())

    def kept(self, dropped: float = DROPPED) -> Segments:
        """Without segments that together are expected less often than ``dropped``."""
        order = np.argsort(self.probability)
        n_out = int(np.searchsorted(np.cumsum(self.probability[order]), dropped))
        chosen = np.sort(order[n_out:])
        return Segments(
            self.start[chosen],
            self.end[chosen],
            self.probability[chosen],
            self.change,
            self.log_evidence,
            self.prior_change,
        )

    @cached_property
    def next_probability(self) -> Array:
        """Of each segment, given that one begins where it does."""
        total = np.zeros(self.n_rows + 1)
        np.add.at(total, self.start, self.probability)
        return self.probability / total[self.start]

    def draw(self, rng: np.random.Generator) -> Index:
        """A segmentation by its boundaries, 0 and n among them."""
        bounds, n = [0], self.n_rows
        if not n:
            return np.zeros(2, dtype=np.int64)
        while bounds[-1] < n:
            first, after = np.searchsorted(self.start, [bounds[-1], bounds[-1] + 1])
            weights = np.cumsum(self.next_probability[first:after])
            pick = int(np.searchsorted(weights, rng.uniform() * weights[-1], side="right"))
            bounds.append(int(self.end[first + min(pick, len(weights) - 1)]))
        return np.array(bounds)


def no_change(order: Order, log_evidence: float) -> Segments:
    """All rows in one segment."""
    n = order.n_rows
    none = np.zeros(n + 1)
    return Segments(np.array([0]), np.array([n]), np.ones(1), none, log_evidence, none)


def log_prior_of_one(order: Order, gaps: str, shortest: int = 1) -> Array:
    """Log probability of the only change to lie at each boundary: all gaps alike, or by their length.

    None where a side would have fewer rows than ``shortest``.
    """
    with np.errstate(divide="ignore"):
        weight = np.log(order.is_gap.astype(np.float64) if gaps == "equal" else order.length)
    at = np.arange(len(weight))
    weight[(at < shortest) | (order.n_rows - at < shortest)] = -np.inf
    return np.asarray(weight - logsumexp(weight))


def one_change(order: Order, prefix: Array, suffix: Array, log_prior: Array) -> Segments:
    """A sum over every split position.

    ``prefix[b]`` is the log evidence of the rows before boundary b, ``suffix[b]`` of those after it.
    """
    n = order.n_rows
    terms = log_prior + prefix + suffix
    log_evidence = float(logsumexp(terms))
    change = np.exp(terms - log_evidence)
    at = np.flatnonzero(order.is_gap)
    start = np.concatenate([np.zeros_like(at), at])
    end = np.concatenate([at, np.full_like(at, n)])
    probability = np.concatenate([change[at], change[at]])
    return Segments(start, end, probability, change, log_evidence, np.exp(log_prior))


def hazard_odds(order: Order, gaps: str, hazard: float) -> tuple[Array, Array, Array]:
    """Log probability of a change at each boundary, of none, and the derivative of their difference by theta.

    Theta is the log odds of a change where all gaps are alike, and the log of the rate where they count by length. Closed boundaries
    have no change for sure.
    """
    gap = order.is_gap
    if gaps == "equal":
        yes, no = np.log(hazard), np.log1p(-hazard)
        slope = np.ones(len(gap))
        change, stay = np.full(len(gap), yes), np.full(len(gap), no)
    else:
        expected = hazard * order.length
        with np.errstate(divide="ignore", invalid="ignore"):
            change, stay = np.log(-np.expm1(-expected)), -expected
            slope = np.where(gap, expected / -np.expm1(-expected), 0.0)
    return np.where(gap, change, -np.inf), np.where(gap, stay, 0.0), np.where(gap, slope, 0.0)


def any_changes(
    order: Order,
    evidences: Array,
    log_change: Array,
    log_stay: Array,
    compiled: bool | None = None,
) -> Segments:
    """A sum over every segmentation whose segments are no longer than ``evidences`` goes, and of finite evidence.

    ``evidences[i, m - 1]`` is the log evidence of the m rows from i on. The prior is that of independent gaps, given
    that no segment is too long.
    """
    longest = evidences.shape[1]
    compiled = has_numba() if compiled is None else compiled
    pass_ = _Pass(order, log_change, log_stay, longest, compiled)
    log_constant, prior_change = 0.0, np.exp(log_change)
    if longest < order.n_rows or np.isneginf(evidences[:, 0]).any():
        # Without evidence: how probable it is that no segment is too long or too short.
        prior = _Pass(order, log_change, log_stay, longest, compiled)
        none = np.where(np.isneginf(evidences), -np.inf, 0.0)
        log_constant, prior_change = prior.run(none), prior.change
    log_total = pass_.run(evidences)
    start, end, probability = pass_.segments(evidences)
    return Segments(start, end, probability, pass_.change, log_total - log_constant, prior_change)


class _Pass:
    """Forward and backward over the boundaries."""

    def __init__(
        self, order: Order, log_change: Array, log_stay: Array, longest: int, compiled: bool
    ) -> None:
        self.compiled = compiled
        self.n, self.longest = order.n_rows, longest
        self.enter = log_change.copy()  # what a segment pays to begin at a boundary
        self.enter[0] = 0.0
        self.leave = log_change.copy()
        self.leave[-1] = 0.0
        self.log_stay = np.cumsum(log_stay)  # of all gaps up to a boundary
        self.open = np.flatnonzero(np.isfinite(self.enter) | (np.arange(self.n + 1) == self.n))

    def run(self, evidences: Array) -> float:
        """Log of the sum over all segmentations."""
        n, stay = self.n, self.log_stay
        # Of the rows before each boundary, and what goes on from there. Gaps inside a segment from i to j: i + 1 to j - 1.
        before, going, after, ahead = np.full((4, n + 1), -np.inf)
        before[0], going[0] = 0.0, -stay[0]
        after[n], ahead[n] = 0.0, stay[n - 1]
        if self.compiled:
            from dsmgp.recursion import backward, forward

            table = np.ascontiguousarray(evidences)
            forward(table, self.enter, stay, self.open, before, going)
            backward(table, self.leave, stay, self.open, after, ahead)
        else:
            self._forward(evidences, before, going)
            self._backward(evidences, after, ahead)
        self.before, self.after, self.total = before, after, float(before[n])
        self._going, self._ahead = going, ahead
        # Where the evidence is huge, what cancels leaves more than a probability can be.
        self.change = np.exp(np.minimum(before + self.enter + after - self.total, 0.0))
        self.change[[0, n]] = 0.0
        return self.total

    def _forward(self, evidences: Array, before: Array, going: Array) -> None:
        longest, stay = self.longest, self.log_stay
        flat = np.ascontiguousarray(evidences).reshape(-1)
        for j in self.open[1:]:
            low = max(0, j - longest)
            first = low * longest + (j - 1 - low)
            terms = flat[first : first + (j - 1 - low) * (longest - 1) + 1 : max(longest - 1, 1)]
            before[j] = _log_sum(going[low:j] + terms) + stay[j - 1]
            going[j] = before[j] + self.enter[j] - stay[j]

    def _backward(self, evidences: Array, after: Array, ahead: Array) -> None:
        n, stay = self.n, self.log_stay
        for i in self.open[-2::-1]:
            width = min(self.longest, n - i)
            after[i] = _log_sum(evidences[i, :width] + ahead[i + 1 : i + 1 + width]) - stay[i]
            ahead[i] = after[i] + self.leave[i] + stay[max(i - 1, 0)]

    def segments(self, evidences: Array) -> tuple[Index, Index, Array]:
        """Segments with a probability that is not next to nothing, and that probability."""
        tiny = np.log(DROPPED / evidences.size) if evidences.size else 0.0
        found = []
        for i in self.open[:-1]:
            if self.before[i] + self.enter[i] + self.after[i] - self.total < tiny:
                continue
            width = min(self.longest, self.n - i)
            log_p = self._going[i] + evidences[i, :width] + self._ahead[i + 1 : i + 1 + width]
            log_p = np.minimum(log_p - self.total, 0.0)
            kept = np.flatnonzero(log_p > tiny)
            found.append((np.full(len(kept), i), i + 1 + kept, np.exp(log_p[kept])))
        start, end, probability = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return start, end, probability


def _log_sum(terms: Array) -> float:
    """Log of a sum of exponentials, faster than SciPy's for a few hundred."""
    top = float(terms.max())
    if not np.isfinite(top):
        return top
    return top + float(np.log(np.exp(terms - top).sum()))
