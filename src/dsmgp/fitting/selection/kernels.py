"""Choosing the kernel: each candidate learns on a few leaves, and leave-one-out decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.experts.interface import LeafGPs
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.learning.family import TRIAL_ITERATIONS, learn_on_trial, loo_posterior
from dsmgp.fitting.rows.leaf_setup import build_family
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.loo_predictions import kernel_score
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import Family, Process
from dsmgp.progress import span

__all__ = ["CANDIDATES", "KernelRanking", "rank_kernels"]

logger = logging.getLogger("dsmgp")

#: From smooth to rough, so that each is a good start for its neighbours.
CANDIDATES = ("rbf", "matern52", "matern32", "matern12")
# More evidence by this many nats per row counts as another optimum.
FAR_BETTER = 0.01
# Starts that differ in kind from the usual one, as factors of its length scales and of its noise variance:
# rough and noiseless, and smooth and noisy.
OTHER_STARTS = ((0.2, 1e-3), (4.0, 5.0))
# So many iterations from each; it goes on where evidence is then not below that of the best optimum by more
# than these nats per row, and is followed if its leave-one-out score is better by the last of these.
FIRST_ITERATIONS, NEARLY_AS_GOOD, BETTER_OPTIMUM = 10, 0.05, 0.05


@dataclass(frozen=True, eq=False)
class KernelRanking:
    """Candidate kernels after their trials, best first.

    Attributes
    ----------
    scores : dict of str to float
        Leave-one-out score of each kernel; lower is better.
    families : list of Family
        What each has learned, in the same order.
    """

    scores: dict[str, float]
    families: list[Family]


def rank_kernels(gps: LeafGPs, sample: ScaledRows, context: FitContext) -> KernelRanking:
    """Score every candidate kernel after learning on the leaves of ``gps``; kernels are computed from the rows of ``sample``.

    The evidence may have an optimum that explains as noise what is signal of short length scale, and smooth
    kernels are drawn to it. So candidates are learned from smooth to rough and, from the beginning again,
    from rough to smooth; where the second pass ends with far more evidence it has found another optimum, and
    leave-one-out decides between the two. The best kernel is learned once more from starts that differ in
    kind, and if one of them leads to a clearly better score, the others start where it ended.
    """
    with span(0.0, 0.5, "trying kernels"):
        first = _learn_in_turn(gps, sample, context, CANDIDATES)
    with span(0.5, 0.8, "trying kernels"):
        second = _learn_in_turn(gps, sample, context, CANDIDATES[::-1])
    margin = FAR_BETTER * gps.n_observations
    ranked: list[tuple[float, _Trial]] = []
    for kernel in CANDIDATES:
        optima = [first[kernel]]
        if (second[kernel].evidence > first[kernel].evidence + margin).any():
            optima.append(second[kernel])
        scores = [kernel_score(loo_posterior(gps, trial.family)) for trial in optima]
        best = int(np.argmin(scores))
        logger.info("kernel %s: leave-one-out score %.4f", kernel, scores[best])
        ranked.append((scores[best], optima[best]))
    ranked.sort(key=lambda scored: scored[0])
    with span(0.8, 1.0, "trying kernels", "trying other starts"):
        ranked = _from_other_starts(gps, sample, context, ranked)
    return KernelRanking(
        {trial.family.kernel: score for score, trial in ranked},
        [trial.family for _, trial in ranked],
    )


def _from_other_starts(
    gps: LeafGPs, sample: ScaledRows, context: FitContext, ranked: list[tuple[float, _Trial]]
) -> list[tuple[float, _Trial]]:
    """Return the ranking after learning the best kernel from other starts.

    It stays as it is unless another start leads to a clearly better score.
    """
    score, best = ranked[0]
    kernel = best.family.kernel
    if not all(isinstance(process, NamedProcess) for process in best.family.processes):
        return ranked
    least = best.evidence.sum() - NEARLY_AS_GOOD * gps.n_observations
    found: _Trial | None = None
    for factors in OTHER_STARTS:
        start = build_family(kernel, sample, context.config)
        start = start.with_processes(_moved(process, *factors) for process in start.processes)
        trial = _learned(gps, start, context, FIRST_ITERATIONS)
        if not trial.evidence.sum() > least:
            continue
        trial = _learned(gps, trial.family, context)
        own = kernel_score(loo_posterior(gps, trial.family))
        if own < score - BETTER_OPTIMUM:
            logger.info("kernel %s from another start: leave-one-out score %.4f", kernel, own)
            found, score = trial, own
    if found is None:
        return ranked
    better = [(score, found)]
    for former, trial in ranked[1:]:
        again = build_family(trial.family.kernel, sample, context.config)
        learned = _learned(gps, _at_thetas_of(again, found.family), context)
        own = kernel_score(loo_posterior(gps, learned.family))
        better.append((own, learned) if own < former else (former, trial))
    better.sort(key=lambda scored: scored[0])
    return better


def _moved(process: Process, length_factor: float, noise_factor: float) -> Process:
    """Return a process of a named kernel at other length scales and another noise variance, which stays above its least value."""
    theta = np.array(process.theta, dtype=np.float64)
    is_length = np.array([name == "lengthscale" for name in process.names], dtype=bool)
    theta[is_length] += np.log(length_factor)
    theta[-1] += np.log(noise_factor)  # of the noise, less its least value
    return process.with_theta(theta)


def _at_thetas_of(family: Family, learned: Family) -> Family:
    """Return a family at the hyperparameters of another of the same layout."""
    pairs = zip(family.processes, learned.processes, strict=True)
    return family.with_processes(process.with_theta(other.theta) for process, other in pairs)


@dataclass(frozen=True, eq=False)
class _Trial:
    """A family that has learned, and the evidence of every output."""

    family: Family
    evidence: Array


def _learn_in_turn(
    gps: LeafGPs, sample: ScaledRows, context: FitContext, kernels: Sequence[str]
) -> dict[str, _Trial]:
    """Learn one kernel after the other, each starting where the one before it ended."""
    trials: dict[str, _Trial] = {}
    previous: Family | None = None
    for k, kernel in enumerate(kernels):
        family = build_family(kernel, sample, context.config)
        if previous is not None:
            family = _at_thetas_of(family, previous)
        with span(
            k / len(kernels), (k + 1) / len(kernels), "trying kernels", f"trying kernel {kernel}"
        ):
            trials[kernel] = _learned(gps, family, context)
        previous = trials[kernel].family
    return trials


def _learned(
    gps: LeafGPs, family: Family, context: FitContext, max_iter: int = TRIAL_ITERATIONS
) -> _Trial:
    learned, results = learn_on_trial(gps, family, context, max_iter)
    return _Trial(learned, np.array([result.objective for result in results]))
