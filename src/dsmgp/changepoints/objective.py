"""The log evidence of a tree with change points as a function of kernel, mean, noise and hazard, for the optimiser.

The derivative of the evidence is that of each segment's log evidence times the segment's posterior probability and its leaf's
responsibility; for the hazard it is the expected number of change points, posterior less prior.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit, logit

from dsmgp._util.arrays import Array
from dsmgp.changepoints.leaf import OrderedLeaf
from dsmgp.changepoints.segment_gp import SegmentedGP
from dsmgp.changepoints.segmentation import SegmentPosterior
from dsmgp.fitting.learning.optimize import SearchResult, maximise
from dsmgp.gp.leaf_kernels import BoundLeafKernel
from dsmgp.gp.process import Process
from dsmgp.linalg.cholesky import NotFactorisedError
from dsmgp.mixture.inference import infer
from dsmgp.tree.nodes import Node

__all__ = ["ChangePointObjective"]

# Prior number of change points in all gaps, where the search starts too, and the prior standard deviation of the hazard's log odds
# or log rate. Data that say nothing about changes, such as noise alone, leave the hazard there.
USUAL_CHANGES, HAZARD_SPREAD = 0.2, 2.0


def _start_hazard(leaf: OrderedLeaf) -> float | None:
    """Return the hazard given by the user, or one with few changes over all gaps; None where there is no hazard."""
    if leaf.changes is None or not leaf.has_hazard:
        return None
    hazard = leaf.changes.hazard
    return USUAL_CHANGES / _exposure(leaf) if hazard is None else float(hazard)


def _exposure(leaf: OrderedLeaf) -> float:
    """Return the number of gaps, or their total length: expected changes over this are a hazard."""
    gaps = leaf.boundaries
    return float(gaps.is_gap.sum() if leaf.gaps == "equal" else gaps.gap_length.sum())


def _to_theta(leaf: OrderedLeaf, hazard: float) -> float:
    return float(logit(hazard) if leaf.gaps == "equal" else np.log(hazard))


def _to_hazard(leaf: OrderedLeaf, theta: float) -> float:
    return float(expit(theta) if leaf.gaps == "equal" else np.exp(theta))


class ChangePointObjective:
    """The tree's log evidence, plus log priors, as a function of theta.

    Theta has the unconstrained hyperparameters of each process, then the log odds or log rate of each leaf's hazard.

    Parameters
    ----------
    tree : Node
    leaves : sequence of OrderedLeaf
        In the order of the tree's leaves.
    processes : sequence of Process
        One per output, at the hyperparameters where the search starts.
    noise_factor : ndarray of shape (n_rows, n_outputs)
        Each training row's noise variance in units of the process's.
    hazards : sequence of float or None, optional
        One per leaf, None where it has no hazard; by default those where the search starts.

    Attributes
    ----------
    processes : list of Process
        At the current theta.
    """

    def __init__(
        self,
        tree: Node,
        leaves: Sequence[OrderedLeaf],
        processes: Sequence[Process],
        noise_factor: Array,
        hazards: Sequence[float | None] | None = None,
    ) -> None:
        self.tree, self.leaves, self.processes = tree, leaves, list(processes)
        self.noise_factor = noise_factor
        self._usual_hazards = [_start_hazard(leaf) for leaf in leaves]
        self.hazards = list(self._usual_hazards if hazards is None else hazards)

    @property
    def theta(self) -> Array:
        parts = [process.theta for process in self.processes]
        hazards = [
            _to_theta(leaf, hazard)
            for leaf, hazard in zip(self.leaves, self.hazards, strict=True)
            if hazard is not None
        ]
        return np.concatenate([*parts, np.array(hazards)])

    @theta.setter
    def theta(self, vector: Array) -> None:
        ends = np.cumsum([len(process.theta) for process in self.processes])
        *parts, last = np.split(vector, ends)
        pairs = zip(self.processes, parts, strict=True)
        self.processes = [process.with_theta(part) for process, part in pairs]
        values = iter(last)
        for k, leaf in enumerate(self.leaves):
            if self.hazards[k] is not None:
                self.hazards[k] = _to_hazard(leaf, float(next(values)))

    def restarted(self) -> ChangePointObjective:
        """Return an objective at the same hyperparameters, with hazards as at the start."""
        return ChangePointObjective(self.tree, self.leaves, self.processes, self.noise_factor)

    def condition(self, memory: float) -> list[SegmentedGP]:
        """Condition the leaves on their rows at the current theta; ``memory`` bytes of factors may be kept."""
        kernels = self._bound_kernels()
        return [
            SegmentedGP(leaf, kernels, self._noise(leaf), hazard, memory / len(self.leaves))
            for leaf, hazard in zip(self.leaves, self.hazards, strict=True)
        ]

    def update_hazards(self, segmented_gps: Sequence[SegmentedGP]) -> None:
        """Set each hazard from the posterior number of change points: one step of expectation maximisation."""
        for k, (leaf, gp) in enumerate(zip(self.leaves, segmented_gps, strict=True)):
            if self.hazards[k] is None:
                continue
            exposure = _exposure(leaf)
            least = 0.1 / exposure  # no change so far does not mean that there can be none
            hazard = max(gp.segments.expected_changes / exposure, least)
            self.hazards[k] = min(hazard, 0.99) if leaf.gaps == "equal" else hazard

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """Return value and gradient; minus infinity and zeros where there is no value."""
        self.theta = vector
        value, gradient = np.nan, np.empty(0)
        if np.all(np.isfinite(vector)):
            with np.errstate(
                over="ignore", divide="ignore", invalid="ignore"
            ):  # the search steps back
                value, gradient = self._value_and_gradient()
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            return -np.inf, np.zeros_like(vector)
        return value, gradient

    def _value_and_gradient(self) -> tuple[float, Array]:
        """Return value and gradient at the current theta; the value is NaN where a covariance has no Cholesky factor."""
        no_value = np.nan, np.empty(0)
        parameters = [process.kernel_parameters() for process in self.processes]
        if not np.all(np.isfinite(np.concatenate(parameters))):
            return no_value
        kernels = self._bound_kernels()
        try:
            posteriors = [
                leaf.segment_posterior(kernels, self._noise(leaf), hazard)
                for leaf, hazard in zip(self.leaves, self.hazards, strict=True)
            ]
        except NotFactorisedError:
            return no_value
        evidence = np.array([posterior.log_evidence for posterior in posteriors])
        if not np.all(np.isfinite(evidence)):
            return no_value
        tree_posterior = infer(self.tree, evidence)
        responsibility = np.exp(tree_posterior.log_responsibilities)
        log_hazard_priors, by_hazard = self._hazard_terms(posteriors, responsibility)
        value = tree_posterior.log_evidence + sum(log_hazard_priors)
        by_kernel = self._kernel_gradient(posteriors, responsibility)
        parts = []
        for process, gradient in zip(self.processes, by_kernel, strict=True):
            log_prior, by_prior = process.log_prior(process.theta)
            value += float(log_prior)
            parts.append(process.pull_back(process.theta, gradient) + by_prior)
        return float(value), np.concatenate([*parts, by_hazard])

    def learn(
        self,
        optimizer: str,
        rng: np.random.Generator,
        max_iter: int | None,
        tolerance: float,
        n_restarts: int,
    ) -> SearchResult:
        """Maximise from the current theta and from random ones around it; set theta to the best.

        Parameters
        ----------
        optimizer : str
        rng : Generator
            Draws the random starts.
        max_iter : int, optional
            The optimiser's own limit by default.
        tolerance : float
        n_restarts : int
            Random starts, besides the current theta.
        """
        start = self.theta
        n_rows = max(sum(len(leaf.rows) for leaf in self.leaves), 1)
        starts = [start, *(start + rng.normal(size=start.shape) for _ in range(n_restarts))]
        results = [maximise(self, one, n_rows, optimizer, max_iter, tolerance) for one in starts]
        best = max(results, key=lambda result: result.objective)
        if not np.isfinite(best.objective):
            best = SearchResult(start, -np.inf)
        self.theta = best.theta
        return best

    def _bound_kernels(self) -> list[BoundLeafKernel]:
        """Return the kernels at the current theta, one per output."""
        return [process.leaf_kernel.at(process.kernel_parameters()) for process in self.processes]

    def _noise(self, leaf: OrderedLeaf) -> Array:
        """Return the noise variances of a leaf's sorted rows, (n, n_outputs)."""
        variances = np.array([process.noise for process in self.processes])
        return np.asarray(self.noise_factor[leaf.rows] * variances)

    def _hazard_terms(
        self, posteriors: Sequence[SegmentPosterior], responsibility: Array
    ) -> tuple[list[float], list[float]]:
        """Return the log prior of each hazard, up to a constant, and the objective's derivative by its theta."""
        log_priors, derivatives = [], []
        for leaf, posterior, hazard, usual, weight in zip(
            self.leaves, posteriors, self.hazards, self._usual_hazards, responsibility, strict=True
        ):
            if hazard is None or usual is None:
                continue
            away = _to_theta(leaf, hazard) - _to_theta(leaf, usual)
            log_priors.append(-0.5 * (away / HAZARD_SPREAD) ** 2)
            slope = weight * leaf.hazard_gradient(posterior, hazard)
            derivatives.append(slope - away / HAZARD_SPREAD**2)
        return log_priors, derivatives

    def _kernel_gradient(
        self,
        posteriors: Sequence[SegmentPosterior],
        responsibility: Array,
    ) -> list[Array]:
        """Return the gradient of the log evidence by each output's kernel parameters."""
        by_leaf = []
        for leaf, posterior, weight in zip(self.leaves, posteriors, responsibility, strict=True):
            if len(leaf.rows):
                noise, factor = self._noise(leaf), self.noise_factor[leaf.rows]
                gradients = leaf.gradient(posterior, self.processes, noise, factor)
                by_leaf.append([weight * gradient for gradient in gradients])
        return [np.sum(parts, axis=0) for parts in zip(*by_leaf, strict=True)]
