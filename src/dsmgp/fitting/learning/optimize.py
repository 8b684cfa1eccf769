"""Maximising the log evidence over theta, the hyperparameters that all leaves share.

:func:`maximise_evidence` learns the processes of leaf GPs; :func:`maximise` is the search itself, which
change-point models use for objectives of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.config import OPTIMIZERS
from dsmgp.gp.process import Process
from dsmgp.linalg.threads import one_thread
from dsmgp.mixture.inference import infer
from dsmgp.progress import StopFitting, stopping, tick
from dsmgp.tree.nodes import Node

__all__ = [
    "TOLERANCE",
    "Objective",
    "SearchRecord",
    "SearchResult",
    "Vector",
    "evidence_objective",
    "maximise",
    "maximise_evidence",
]

logger = logging.getLogger("dsmgp")

Vector = NDArray[np.float64]
#: From theta to a value to maximise and its gradient.
Objective = Callable[[Vector], tuple[float, Vector]]

LEARNING_RATE = 0.05
# L-BFGS stops when a step improves the objective per row by less than this, relatively.
TOLERANCE = 1e-7
# Loss where the objective has no value: finite, as the line search of L-BFGS cannot step back from infinity.
NO_VALUE = 1e10


@dataclass
class SearchResult:
    """The best theta that a search has seen, its objective, and the values along the way."""

    theta: Vector
    objective: float
    n_iterations: int = 0
    n_evaluations: int = 0
    path: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class SearchRecord:
    """How the hyperparameters were found.

    Attributes
    ----------
    results : tuple of SearchResult
        For each family of leaves one per output, or one for all outputs.
    kernel_scores : dict of str to float, or None
        Scores of the kernels that ``kernel="auto"`` tried.
    n_evaluations : int
        Evaluations of the log evidence and its gradient, trials included.
    gains : dict of str to float, or None
        What each step of :func:`dsmgp.fitting.selection.coordinates.choose_coordinates` gained.
    notes : tuple of str
        What was chosen besides, and why: lines for the summary.
    """

    results: tuple[SearchResult, ...]
    kernel_scores: dict[str, float] | None
    n_evaluations: int
    gains: dict[str, float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def n_iterations(self) -> int:
        """Iterations of the longest search."""
        return max((result.n_iterations for result in self.results), default=0)


def evidence_objective(
    tree: Node | None,
    gps: LeafGPs,
    processes: Sequence[Process],
    outputs: Sequence[int],
    scale_rows: float | None = None,
) -> Objective:
    """Return the log evidence plus log priors, with gradient, as a function of the thetas of some outputs.

    Parameters
    ----------
    tree : Node, optional
        Without a tree the leaves are independent and their log evidences are summed. In a tree, each leaf's gradient is
        weighted by its responsibility.
    gps : LeafGPs
        All leaves have the same kernel.
    processes : sequence of Process
        One per output.
    outputs : sequence of int
        The outputs whose thetas are concatenated in the argument.
    scale_rows : float, optional
        See :meth:`LeafGPs.log_evidence_and_gradient`.

    Returns
    -------
    callable
        Minus infinity where the covariance of a leaf cannot be factorised.
    """
    chosen = [processes[output] for output in outputs]
    ends = np.cumsum([len(process.theta) for process in chosen])[:-1]

    def objective(theta: Vector) -> tuple[float, Vector]:
        thetas = np.split(theta, ends)
        parameters = [p.kernel_parameters(t) for p, t in zip(chosen, thetas, strict=True)]
        if not all(np.isfinite(vector).all() for vector in parameters):
            return -np.inf, np.zeros_like(theta)
        evidence, gradients = gps.log_evidence_and_gradient(parameters, outputs, scale_rows)
        if not np.all(np.isfinite(evidence)) or not all(np.all(np.isfinite(g)) for g in gradients):
            return -np.inf, np.zeros_like(theta)
        value, responsibility = float(evidence.sum()), np.ones(len(evidence))
        if tree is not None:
            posterior = infer(tree, evidence.sum(axis=1))
            value, responsibility = posterior.log_evidence, np.exp(posterior.log_responsibilities)
        by_theta = []
        for process, part, gradient in zip(chosen, thetas, gradients, strict=True):
            log_prior, by_prior = process.log_prior(part)
            value += float(log_prior)
            by_theta.append(process.pull_back(part, responsibility @ gradient) + by_prior)
        return value, np.concatenate(by_theta)

    return objective


def maximise_evidence(
    tree: Node | None,
    gps: LeafGPs,
    processes: Sequence[Process],
    *,
    optimizer: str,
    rng: np.random.Generator,
    max_iter: int | None = None,
    tolerance: float = TOLERANCE,
    n_restarts: int = 0,
    scale_rows: float | None = None,
    recorded: Callable[[Objective], Objective] = lambda objective: objective,
) -> tuple[list[Process], list[SearchResult]]:
    """Return the processes at the thetas that maximise the evidence of a tree, or of independent leaves, and the searches.

    Outputs of independent leaves are learned one by one, those of a tree together. Each restart begins at a
    random step away from the current theta. ``recorded`` wraps the objective of each search
    (:mod:`dsmgp.fitting.checkpoint`).
    """
    processes = list(processes)
    every = range(len(processes))
    searches = []
    for outputs in [[k] for k in every] if tree is None else [list(every)]:
        objective = evidence_objective(tree, gps, processes, outputs, scale_rows)
        start = np.concatenate([processes[k].theta for k in outputs])
        best: SearchResult | None = None
        if start.size:
            n_rows = max(gps.n_observations, 1)
            starts = [start, *(start + rng.normal(size=start.shape) for _ in range(n_restarts))]
            for number, theta in enumerate(starts):
                # The optimiser's own matrices are tiny: its threads would only wait for one another.
                with nullcontext() if gps.has_large else one_thread():
                    result = maximise(
                        recorded(objective), theta, n_rows, optimizer, max_iter, tolerance
                    )
                logger.info(
                    "start %d: objective %.6g after %d evaluations",
                    number, result.objective, result.n_evaluations,
                )  # fmt: skip
                if best is None or result.objective > best.objective:
                    best = result
        if best is None or not np.isfinite(best.objective):
            best = SearchResult(start, objective(start)[0])
        ends = np.cumsum([len(processes[k].theta) for k in outputs])[:-1]
        for k, part in zip(outputs, np.split(best.theta, ends), strict=True):
            processes[k] = processes[k].with_theta(part)
        searches.append(best)
    return processes, searches


def maximise(
    objective: Objective,
    start: Vector,
    n_rows: float,
    optimizer: str,
    max_iter: int | None,
    tolerance: float,
) -> SearchResult:
    """Search for the maximum of an objective from a start; the best theta seen counts, not the last.

    The objective is divided by ``n_rows``, so that tolerances mean the same for any number of rows.

    Parameters
    ----------
    objective : callable
        Returns value and gradient at a theta.
    start : ndarray
    n_rows : float
    optimizer : str
        One of ``OPTIMIZERS``.
    max_iter : int, optional
        The optimiser's own limit by default.
    tolerance : float
    """
    max_iter = OPTIMIZERS[optimizer] if max_iter is None else max_iter
    best = SearchResult(start.copy(), -np.inf)

    def loss(theta: Vector) -> tuple[float, Vector]:
        if stopping() and np.isfinite(best.objective):
            raise StopFitting
        value, gradient = objective(theta)
        best.n_evaluations += 1
        tick(best.n_evaluations / max_iter)
        best.path.append(value)
        if value > best.objective:
            best.objective, best.theta = value, theta.copy()
        return (-value / n_rows if np.isfinite(value) else NO_VALUE), -gradient / n_rows

    try:
        best.n_iterations = _minimise(loss, start, optimizer, max_iter, tolerance)
    except StopFitting:  # the user wants the fit to end: the best theta so far stays
        best.n_iterations = max(1, best.n_evaluations - 1)
    return best


def _minimise(
    loss: Objective, start: Vector, optimizer: str, max_iter: int, tolerance: float
) -> int:
    """Minimise a loss that keeps track of its best value, and return the number of iterations."""
    if optimizer == "lbfgs":
        options = {"maxiter": max_iter, "ftol": tolerance, "gtol": 1e-5, "maxcor": 20}
        result = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        return max(int(result.nit), 1)
    theta, square, momentum = start.copy(), np.zeros_like(start), np.zeros_like(start)
    for iteration in range(max_iter):
        value, gradient = loss(theta.copy())
        if value >= NO_VALUE:
            return iteration
        if optimizer == "adam":  # Kingma & Ba (2015), algorithm 1
            momentum = 0.9 * momentum + 0.1 * gradient
            square = 0.999 * square + 0.001 * np.square(gradient)
            rate = LEARNING_RATE / (1.0 - 0.9 ** (iteration + 1))
            step = momentum / (np.sqrt(square / (1.0 - 0.999 ** (iteration + 1))) + 1e-8)
        else:  # RMSprop (Tieleman & Hinton 2012), with torch's constants
            square = 0.99 * square + 0.01 * np.square(gradient)
            rate, step = LEARNING_RATE, gradient / (np.sqrt(square) + 1e-8)
        theta -= rate * step
    return max_iter
