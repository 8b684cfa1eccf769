"""Choosing the kernel: each candidate learns on a few leaves, and leave-one-out decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsmgp.components import Components
from dsmgp.experts import Conditioned, Experts
from dsmgp.gate import fit_gate
from dsmgp.loo import LeaveOneOut
from dsmgp.process import Process
from dsmgp.tree import Leaf

__all__ = ["CANDIDATES", "Choice", "choose_kernel", "left_out_score"]

logger = logging.getLogger("dsmgp")

#: From smooth to rough, so that each is a good start for the next.
CANDIDATES = ("rbf", "matern52", "matern32", "matern12")


@dataclass(frozen=True)
class Choice:
    """A kernel's name and its leave-one-out scores (lower is better), for each that was tried."""

    kernel: str
    scores: dict[str, float]


def left_out_score(
    leaves: Sequence[Leaf], conditioned: Conditioned, labels: NDArray[np.int64]
) -> float:
    """How well rows left out of their leaf are predicted: their law and, as much, their mean. Lower is better.

    The sum of the mean negative log density, in the units of the experts, and of the log of the root mean square
    error. Densities alone would buy sharp peaks with a worse mean. The worse of two: each row left out alone, which is what a random split measures, and left out with all
    its twins, which is what new inputs will see. A kernel or a noise that is good under one only is not good:
    noise going to zero looks fine on twins left out together and is a disaster on rows seen twice.
    """
    loo = LeaveOneOut(leaves, conditioned, labels)
    rows = np.unique(np.concatenate([leaf.rows for leaf in leaves if leaf.rows is not None]))
    scales = loo.scales_without(rows)
    plain = loo.components(rows)
    path = np.where(plain.leaf >= 0, 0.0, -np.inf)
    gate = fit_gate(plain, scales, path, loo.Y[rows], local_scale=True)

    def score(found: Components) -> float:
        square = (loo.Y[rows][:, None, :] - found.mean) ** 2 / found.variance / scales
        log_terms = [
            np.log(w) - 0.5 * (square / c + np.log(c * found.variance * scales)).sum(-1)
            for w, c in zip(gate.shape_weights, gate.shape_variances, strict=True)
        ]
        # Rows stand in one leaf each here, so there is nothing to weigh.
        density = float(-np.logaddexp.reduce(log_terms)[:, 0].mean())
        error = loo.Y[rows] - found.mean[:, 0]
        logger.info("  negative log density %.4f, error %.4f", density, np.sqrt(np.mean(error**2)))
        return density + float(0.5 * np.log(np.mean(error**2, axis=0)).sum())

    return max(score(plain), score(loo.components(rows, grouped=True)))


def choose_kernel(
    build: Callable[[str], list[Process]],
    learn: Callable[[list[Process], Experts], object],
    experts_of: Callable[[list[Process]], Experts],
    leaves: Sequence[Leaf],
    leave_out: NDArray[np.int64],
) -> tuple[Choice, list[Process]]:
    """The candidate with the best score, and its processes as learned."""
    scores: dict[str, float] = {}
    kept: dict[str, list[Process]] = {}
    before: list[Process] | None = None
    for name in CANDIDATES:
        processes = build(name)
        if before is not None:
            for new, old in zip(processes, before, strict=True):
                new.theta = old.theta
        experts = experts_of(processes)
        learn(processes, experts)
        naturals = [p.natural(law).detach() for p, law in zip(processes, experts.laws, strict=True)]
        conditioned = experts.condition(naturals, memory=0, leave_out=leave_out)
        scores[name] = left_out_score(leaves, conditioned, leave_out)
        kept[name] = before = processes
        logger.info("kernel %s: leave-one-out score %.4f", name, scores[name])
    best = min(scores, key=scores.__getitem__)
    return Choice(best, scores), kept[best]
