"""Learning theta where leaves may break: kernel, mean, noise and hazard by maximising the exact log evidence.

The derivative of the evidence is that of each segment's log evidence times the segment's posterior probability and its leaf's
responsibility; for the hazard it is the expected number of changes, posterior less prior.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, logit

from dsmgp.breaks import ChangePoints
from dsmgp.inference import infer
from dsmgp.learn import Learned, maximise
from dsmgp.ordered_leaf import OrderedLeaf
from dsmgp.prefixes import BoundLaw
from dsmgp.process import Process
from dsmgp.segmented import Segmented
from dsmgp.tree import Node

__all__ = ["BreakingObjective", "start_hazard"]

Array = NDArray[np.float64]
# Changes expected in all gaps before anything is known, from which the search starts, and the standard deviation of the log odds
# or log rate around them. Where nothing can be told of changes, as in noise alone, there are as many in the end.
USUAL_CHANGES, HAZARD_SPREAD = 0.2, 2.0


def start_hazard(leaf: OrderedLeaf) -> float | None:
    """What was given, or few changes over all gaps; none where there is no hazard."""
    if not leaf.may_change_often:
        return None
    changes = leaf.changes
    assert changes is not None
    if changes.hazard is not None:
        return float(changes.hazard)
    n_gaps = int(leaf.order.is_gap.sum())
    return USUAL_CHANGES / (n_gaps if changes.gaps == "equal" else float(leaf.order.length.sum()))


def _to_theta(changes: ChangePoints, hazard: float) -> float:
    return float(logit(hazard) if changes.gaps == "equal" else np.log(hazard))


def _to_hazard(changes: ChangePoints, theta: float) -> float:
    return float(expit(theta) if changes.gaps == "equal" else np.exp(theta))


class BreakingObjective:
    """The tree's log evidence, plus log priors, as a function of theta: the processes' one after the other, then hazards.

    Parameters
    ----------
    tree : Node
    leaves : sequence of OrderedLeaf
        In the order of the tree's leaves.
    processes : sequence of Process
        One per output; set to the theta that was asked for last.
    noise_factor : array of shape (n_rows, n_outputs)
        What each row's noise variance is, in units of the process's.
    """

    def __init__(
        self,
        tree: Node,
        leaves: Sequence[OrderedLeaf],
        processes: Sequence[Process],
        hazards: Sequence[float | None],
        noise_factor: Array,
    ) -> None:
        self.tree, self.leaves, self.processes = tree, leaves, processes
        self.hazards = list(hazards)
        self.noise_factor = noise_factor
        self._usual = [start_hazard(leaf) for leaf in leaves]
        self._laws = [p.law(leaves[0].X.shape[1]) for p in processes]
        self._sizes = [len(process.theta) for process in processes]

    @property
    def theta(self) -> Array:
        own = [process.theta.numpy() for process in self.processes]
        hazards = [
            _to_theta(leaf.changes, hazard)
            for leaf, hazard in zip(self.leaves, self.hazards, strict=True)
            if hazard is not None and leaf.changes is not None
        ]
        return np.concatenate([*own, np.array(hazards)])

    @theta.setter
    def theta(self, vector: Array) -> None:
        *parts, last = np.split(vector, np.cumsum(self._sizes))
        for process, part in zip(self.processes, parts, strict=True):
            process.theta = torch.from_numpy(part.copy())
        values = iter(last)
        for k, leaf in enumerate(self.leaves):
            if self.hazards[k] is not None and leaf.changes is not None:
                self.hazards[k] = _to_hazard(leaf.changes, float(next(values)))

    def bound(self) -> list[BoundLaw]:
        """The laws at the theta of now."""
        pairs = zip(self.processes, self._laws, strict=True)
        return [law.bind(process.natural(law).detach()) for process, law in pairs]

    def noise(self, leaf: OrderedLeaf) -> Array:
        """Noise variances of a leaf's rows in order."""
        noises = np.array([process.noise for process in self.processes])
        return np.asarray(self.noise_factor[leaf.rows] * noises)

    def condition(self, memory: float) -> list[Segmented]:
        """The leaves at the theta of now."""
        laws = self.bound()
        return [
            leaf.condition(laws, self.noise(leaf), hazard, memory / len(self.leaves))
            for leaf, hazard in zip(self.leaves, self.hazards, strict=True)
        ]

    def follow(self, experts: Sequence[Segmented]) -> None:
        """Set each hazard to what the posterior's changes say: a step of expectation maximisation."""
        for k, (leaf, expert) in enumerate(zip(self.leaves, experts, strict=True)):
            if self.hazards[k] is None or leaf.changes is None:
                continue
            gap = leaf.order.is_gap
            size = gap.sum() if leaf.changes.gaps == "equal" else leaf.order.length.sum()
            least = 0.1 / float(size)  # no change seen does not mean that there can be none
            found = max(expert.segments.n_changes / float(size), least)
            self.hazards[k] = min(found, 0.99) if leaf.changes.gaps == "equal" else found

    def __call__(self, vector: Array, with_gradient: bool = True) -> tuple[float, Array]:
        """Value and gradient; zeros for the gradient where it is not asked for."""
        none = -np.inf, np.zeros_like(vector)
        self.theta = vector
        if not np.all(np.isfinite(vector)) or not all(np.isfinite(p.noise) for p in self.processes):
            return none
        laws = self.bound()
        noises = [self.noise(leaf) for leaf in self.leaves]
        try:
            found = [
                leaf.segments(laws, noise, hazard)
                for leaf, noise, hazard in zip(self.leaves, noises, self.hazards, strict=True)
            ]
        except ValueError:  # a matrix that no jitter helps
            return none
        evidence = np.array([segments.log_evidence for segments in found])
        if not np.all(np.isfinite(evidence)):
            return none
        posterior = infer(self.tree, evidence)
        responsibility = np.exp(posterior.log_responsibilities)
        value, by_hazard = posterior.log_evidence, []
        totals = [np.zeros(0)] * len(laws)
        for leaf, segments, noise, hazard, weight, usual in zip(
            self.leaves, found, noises, self.hazards, responsibility, self._usual, strict=True
        ):
            gradients = [np.zeros(0)] * len(laws)
            if with_gradient and len(leaf.rows):
                gradients = leaf.gradient(segments, laws, noise, self.noise_factor[leaf.rows])
            totals = [
                old if not len(new) else weight * new if not len(old) else old + weight * new
                for old, new in zip(totals, gradients, strict=True)
            ]
            if hazard is None or usual is None or leaf.changes is None:
                continue
            away = _to_theta(leaf.changes, hazard) - _to_theta(leaf.changes, usual)
            value -= 0.5 * (away / HAZARD_SPREAD) ** 2
            slope = weight * leaf.hazard_slope(segments, hazard)
            by_hazard.append(slope - away / HAZARD_SPREAD**2)
        parts = []
        for process, law, total in zip(self.processes, self._laws, totals, strict=True):
            log_prior, by_prior = process.log_prior()
            value += log_prior
            if not with_gradient:
                parts.append(np.zeros(len(by_prior)))
                continue
            parts.append((process.pull_back(law, torch.from_numpy(total)) + by_prior).numpy())
        gradient = np.concatenate([*parts, np.array(by_hazard)])
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            return none
        return float(value), gradient

    def learn(
        self,
        optimizer: str,
        rng: np.random.Generator,
        max_iter: int | None,
        tolerance: float,
        n_restarts: int,
    ) -> Learned:
        """Set processes and hazards to the best theta found."""
        start = self.theta
        n_rows = max(sum(len(leaf.rows) for leaf in self.leaves), 1)
        starts = [start, *(start + rng.normal(size=start.shape) for _ in range(n_restarts))]
        found = [maximise(self, one, n_rows, optimizer, max_iter, tolerance) for one in starts]
        best = max(found, key=lambda each: each.objective)
        if not np.isfinite(best.objective):
            best = Learned(start, -np.inf)
        self.theta = best.theta
        return best
