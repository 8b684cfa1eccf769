"""Learning theta: the hyperparameters that all leaves share, by maximising the log evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from dsmgp.experts import Experts
from dsmgp.inference import infer
from dsmgp.lapack import one_thread
from dsmgp.process import Process
from dsmgp.progress import Enough, stopping, tick
from dsmgp.tree import Node

__all__ = ["OPTIMIZERS", "TOLERANCE", "Learned", "learn", "maximise"]

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]

#: Optimisers by name, with the number of iterations that each is given unless told otherwise.
OPTIMIZERS = {"lbfgs": 60, "adam": 300, "rmsprop": 1000}
LEARNING_RATE = 0.05
# L-BFGS ends when a step improves the objective per row by less than this, relatively.
TOLERANCE = 1e-7


@dataclass
class Learned:
    """Where the search ended: the best theta seen, its objective, and the way there."""

    theta: Vector
    objective: float
    n_iterations: int = 0
    n_evaluations: int = 0
    path: list[float] = field(default_factory=list)


def evidence_objective(
    tree: Node | None,
    experts: Experts,
    processes: Sequence[Process],
    outputs: Sequence[int],
    scale_rows: float | None = None,
) -> Objective:
    """The tree's log evidence (plus log priors) and its gradient, as a function of the outputs' thetas.

    Without a tree the leaves are independent, and their log evidences are added up. In a tree a leaf's gradient
    counts with the leaf's responsibility. An evaluation at hyperparameters for which a leaf cannot be
    factorised is minus infinity.
    """
    laws = [experts.laws[k][0] for k in outputs]  # theta is for all leaves
    chosen = [processes[k] for k in outputs]
    ends = np.cumsum([len(p.theta) for p in chosen])[:-1]

    def objective(theta: Vector) -> tuple[float, Vector]:
        for process, part in zip(chosen, np.split(theta, ends), strict=True):
            process.theta = torch.from_numpy(part.copy())
        naturals = [p.natural(law) for p, law in zip(chosen, laws, strict=True)]
        if not all(bool(torch.isfinite(n).all()) for n in naturals):
            return -np.inf, np.zeros_like(theta)
        evidence, gradients = experts.log_evidence_and_gradient(naturals, outputs, scale_rows)
        if not np.all(np.isfinite(evidence)) or not all(np.all(np.isfinite(g)) for g in gradients):
            return -np.inf, np.zeros_like(theta)
        value, responsibility = float(evidence.sum()), np.ones(len(evidence))
        if tree is not None:
            posterior = infer(tree, evidence.sum(axis=1))
            value, responsibility = posterior.log_evidence, np.exp(posterior.log_responsibilities)
        parts = []
        for process, law, gradient in zip(chosen, laws, gradients, strict=True):
            log_prior, by_prior = process.log_prior()
            value += log_prior
            by_natural = torch.from_numpy(responsibility @ gradient)
            parts.append((process.pull_back(law, by_natural) + by_prior).numpy())
        return value, np.concatenate(parts)

    return objective


def learn(
    tree: Node | None,
    experts: Experts,
    processes: Sequence[Process],
    *,
    optimizer: str,
    rng: np.random.Generator,
    max_iter: int | None = None,
    tolerance: float = TOLERANCE,
    n_restarts: int = 0,
    scale_rows: float | None = None,
    report: Callable[[str], None] = lambda message: None,
    remember: Callable[[Objective], Objective] = lambda objective: objective,
) -> list[Learned]:
    """Set every process to the theta that maximises the evidence of a tree, or of leaves without one.

    Without sum nodes the outputs do not meet and are learned one by one; in a tree they are learned together.
    Each restart begins at a random step away. ``remember`` makes objectives that are told what was evaluated
    before (:mod:`dsmgp.checkpoint`).
    """
    sets = [[k] for k in range(len(processes))] if tree is None else [list(range(len(processes)))]
    n_rows = max(len(experts.leaf_rows.flat), 1)
    results = []
    for outputs in sets:
        objective = evidence_objective(tree, experts, processes, outputs, scale_rows)
        start = np.concatenate([processes[k].theta.numpy() for k in outputs])
        best: Learned | None = None
        if start.size:
            starts = [start, *(start + rng.normal(size=start.shape) for _ in range(n_restarts))]
            for number, theta in enumerate(starts):
                # The optimiser's own matrices are tiny: on busy cores threads wait for one another longer than
                # that takes.
                with nullcontext() if experts.has_large else one_thread():
                    found = maximise(
                        remember(objective), theta, n_rows, optimizer, max_iter, tolerance
                    )
                report(
                    f"start {number}: objective {found.objective:.6g} "
                    f"after {found.n_evaluations} evaluations"
                )
                if best is None or found.objective > best.objective:
                    best = found
        if best is None or not np.isfinite(best.objective):
            best = Learned(start, objective(start)[0])
        ends = np.cumsum([len(processes[k].theta) for k in outputs])[:-1]
        for k, part in zip(outputs, np.split(best.theta, ends), strict=True):
            processes[k].theta = torch.from_numpy(part.copy())
        results.append(best)
    return results


def maximise(
    objective: Objective,
    start: Vector,
    n_rows: int,
    optimizer: str,
    max_iter: int | None,
    tolerance: float,
) -> Learned:
    """The best theta that an optimiser sees on its way from a start."""
    steps = OPTIMIZERS[optimizer] if max_iter is None else max_iter
    seen = Learned(start.copy(), -np.inf)

    def loss(theta: Vector) -> tuple[float, Vector]:
        if stopping() and np.isfinite(seen.objective):
            raise Enough
        value, gradient = objective(theta)
        seen.n_evaluations += 1
        tick(seen.n_evaluations / steps)
        seen.path.append(value)
        if value > seen.objective:
            seen.objective, seen.theta = value, theta.copy()
        # Per row, so that tolerances mean the same for any number of rows. A finite penalty where
        # there is no value: the line search of L-BFGS cannot step back from infinity.
        return (-value / n_rows if np.isfinite(value) else 1e10), -gradient / n_rows

    try:
        seen.n_iterations = _search(loss, start, optimizer, steps, tolerance)
    except Enough:  # asked to end: the best theta seen stays
        seen.n_iterations = max(1, seen.n_evaluations - 1)
    return seen


def _search(loss: Objective, start: Vector, optimizer: str, steps: int, tolerance: float) -> int:
    """Minimise a loss that remembers its best; the number of iterations."""
    if optimizer == "lbfgs":
        options = {"maxiter": steps, "ftol": tolerance, "gtol": 1e-5, "maxcor": 20}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        return max(int(found.nit), 1)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    kinds = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    stepper = kinds[optimizer]([parameter], lr=LEARNING_RATE)
    for iteration in range(steps):
        value, gradient = loss(parameter.detach().numpy().copy())
        if value >= 1e10:
            return iteration
        parameter.grad = torch.from_numpy(gradient)
        stepper.step()
    return steps
