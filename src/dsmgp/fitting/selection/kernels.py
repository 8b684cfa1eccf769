"""Choosing the output scaling and the kernel: each candidate learns on a few leaves, and leave-one-out decides."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.weighted import weighted_median
from dsmgp.experts.interface import LeafGPs, LeafPosterior
from dsmgp.experts.loo import Components
from dsmgp.fitting.learning.family import FitContext, learn_family, loo_posterior
from dsmgp.fitting.training_data import TrainingData, build_family, set_up_leaves
from dsmgp.gp.named_process import NamedProcess
from dsmgp.gp.process import Family, Process
from dsmgp.gp.scaling import OutputScaling
from dsmgp.mixture.distribution import Mixture
from dsmgp.mixture.gating import fit_gate
from dsmgp.progress import span
from dsmgp.tree.nodes import Leaf

__all__ = [
    "CANDIDATES",
    "KernelRanking",
    "choose_outputs",
    "kernel_score",
    "loo_predictions",
    "outputs_score",
    "rank_kernels",
]

logger = logging.getLogger("dsmgp")

#: From smooth to rough, so that each is a good start for its neighbours.
CANDIDATES = ("rbf", "matern52", "matern32", "matern12")
# A trial need not end far closer to its optimum than kernels are apart.
TRIAL_ITERATIONS, TRIAL_TOLERANCE = 30, 1e-4
# More evidence by this many nats per row counts as another optimum.
FAR_BETTER = 0.01
# Starts that differ in kind from the usual one, as factors of its length scales and of its noise variance: rough and noiseless, and smooth and noisy.
OTHER_STARTS = ((0.2, 1e-3), (4.0, 5.0))
# So many iterations from each; it goes on where evidence is then not below that of the best optimum by more than these nats per row, and is
# followed if its leave-one-out score is better by the last of these.
FIRST_ITERATIONS, NEARLY_AS_GOOD, BETTER_OPTIMUM = 10, 0.05, 0.05
# Outputs less correlated than this are not mixed.
MIN_CORRELATION = 0.1


@dataclass(frozen=True, eq=False)
class KernelRanking:
    """Candidate kernels after their trials, best first.

    Attributes
    ----------
    scores : dict of str to float
        Leave-one-out score of each kernel; lower is better.
    families : list of Family
        What each has learned, in the same order.
    n_evaluations : int
    """

    scores: dict[str, float]
    families: list[Family]
    n_evaluations: int


def choose_outputs(
    sample: TrainingData,
    data: TrainingData,
    leaves: Sequence[Leaf],
    kernel: Any,
    context: FitContext,
) -> tuple[OutputScaling, int]:
    """Choose the output scaling in which several outputs are learned best.

    Candidates: each output on its own, principal components, and each output less its regression on those before it, in both
    orders.

    Parameters
    ----------
    sample : TrainingData
        The rows that scaling and kernels are computed from.
    data : TrainingData
        The rows of the leaves.
    leaves : sequence of Leaf
        Where each candidate is tried, with the given kernel.

    Returns
    -------
    OutputScaling
    int
        Number of evaluations of the evidence.
    """
    Y, standardize, warps = sample.Y, context.config.standardize, sample.outputs.warps
    weights = sample.row_weights
    # Noise that is known output by output would be correlated in mixed outputs.
    if sample.n_outputs == 1 or sample.noise is not None:
        return sample.outputs, 0
    if _max_correlation(sample.outputs.to_latent(Y), weights) <= MIN_CORRELATION:
        return sample.outputs, 0
    order = range(sample.n_outputs)
    candidates = [
        sample.outputs,
        OutputScaling.rotated(Y, standardize, warps, weights),
        OutputScaling.chained(Y, standardize, order, warps, weights),
        OutputScaling.chained(Y, standardize, order[::-1], warps, weights),
    ]
    scores, n_evaluations = [], 0
    for outputs in candidates:
        family = build_family(kernel, sample.with_outputs(outputs), context.config)
        scaled = data.with_outputs(outputs)
        gps = set_up_leaves(leaves, family.leaf_kernels, scaled, context.config)
        results = learn_family(
            gps, family, context, max_iter=TRIAL_ITERATIONS, tolerance=TRIAL_TOLERANCE
        )
        n_evaluations += sum(result.n_evaluations for result in results)
        posterior = loo_posterior(gps, family)
        scores.append(outputs_score(posterior, outputs))
        loading = outputs.loading.round(3).tolist()
        logger.info("outputs as %s: leave-one-out score %.4f", loading, scores[-1])
    return candidates[int(np.argmin(scores))], n_evaluations


def rank_kernels(gps: LeafGPs, sample: TrainingData, context: FitContext) -> KernelRanking:
    """Score every candidate kernel after learning on the leaves of ``gps``; kernels are computed from the rows of ``sample``.

    The evidence may have an optimum that explains as noise what is signal of short length scale, and smooth kernels are drawn to
    it. So candidates are learned from smooth to rough and, from the beginning again, from rough to smooth; where the second pass
    ends with far more evidence it has found another optimum, and leave-one-out decides between the two. The best kernel is learned
    once more from starts that differ in kind, and if one of them leads to a clearly better score, the others start where it ended.
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
    n_evaluations = sum(t.n_evaluations for trials in (first, second) for t in trials.values())
    with span(0.8, 1.0, "trying other starts"):
        better, n_more = _from_other_starts(gps, sample, context, ranked)
    return KernelRanking(
        {trial.family.kernel: score for score, trial in better},
        [trial.family for _, trial in better],
        n_evaluations + n_more,
    )


def _from_other_starts(
    gps: LeafGPs, sample: TrainingData, context: FitContext, ranked: list[tuple[float, _Trial]]
) -> tuple[list[tuple[float, _Trial]], int]:
    """Return the ranking after learning the best kernel from other starts, and the number of evaluations.

    It stays as it is unless another start leads to a clearly better score.
    """
    score, best = ranked[0]
    kernel = best.family.kernel
    if not all(isinstance(process, NamedProcess) for process in best.family.processes):
        return ranked, 0
    least = best.evidence.sum() - NEARLY_AS_GOOD * gps.n_observations
    n_evaluations = 0
    found: _Trial | None = None
    for factors in OTHER_STARTS:
        start = build_family(kernel, sample, context.config)
        start.processes = [_moved(process, *factors) for process in start.processes]
        trial = _learned(gps, start, context, FIRST_ITERATIONS)
        n_evaluations += trial.n_evaluations
        if not trial.evidence.sum() > least:
            continue
        trial = _learned(gps, trial.family, context)
        n_evaluations += trial.n_evaluations
        own = kernel_score(loo_posterior(gps, trial.family))
        if own < score - BETTER_OPTIMUM:
            logger.info("kernel %s from another start: leave-one-out score %.4f", kernel, own)
            found, score = trial, own
    if found is None:
        return ranked, n_evaluations
    better = [(score, found)]
    for former, trial in ranked[1:]:
        again = build_family(trial.family.kernel, sample, context.config)
        again.processes = _at_thetas_of(again.processes, found.family.processes)
        learned = _learned(gps, again, context)
        n_evaluations += learned.n_evaluations
        own = kernel_score(loo_posterior(gps, learned.family))
        better.append((own, learned) if own < former else (former, trial))
    better.sort(key=lambda scored: scored[0])
    return better, n_evaluations


def _moved(process: Process, length_factor: float, noise_factor: float) -> Process:
    """Return a process of a named kernel at other length scales and another noise variance, which stays above its least value."""
    theta = np.array(process.theta, dtype=np.float64)
    is_length = np.array([name == "lengthscale" for name in process.names], dtype=bool)
    theta[is_length] += np.log(length_factor)
    theta[-1] += np.log(noise_factor)  # of the noise, less its least value
    return process.with_theta(theta)


def _at_thetas_of(processes: Sequence[Process], learned: Sequence[Process]) -> list[Process]:
    """Return processes at the hyperparameters of others of the same layout."""
    pairs = zip(processes, learned, strict=True)
    return [process.with_theta(other.theta) for process, other in pairs]


@dataclass(frozen=True, eq=False)
class _Trial:
    """A family that has learned, the evidence of every output, and evaluations spent."""

    family: Family
    evidence: Array
    n_evaluations: int


def _learn_in_turn(
    gps: LeafGPs, sample: TrainingData, context: FitContext, kernels: Sequence[str]
) -> dict[str, _Trial]:
    """Learn one kernel after the other, each starting where the one before it ended."""
    trials: dict[str, _Trial] = {}
    previous: Family | None = None
    for k, kernel in enumerate(kernels):
        family = build_family(kernel, sample, context.config)
        if previous is not None:
            family.processes = _at_thetas_of(family.processes, previous.processes)
        with span(k / len(kernels), (k + 1) / len(kernels), f"trying kernel {kernel}"):
            trials[kernel] = _learned(gps, family, context)
        previous = family
    return trials


def _learned(
    gps: LeafGPs, family: Family, context: FitContext, max_iter: int = TRIAL_ITERATIONS
) -> _Trial:
    """Learn a family, in place."""
    results = learn_family(gps, family, context, max_iter=max_iter, tolerance=TRIAL_TOLERANCE)
    evidence = np.array([result.objective for result in results])
    return _Trial(family, evidence, sum(result.n_evaluations for result in results))


def kernel_score(posterior: LeafPosterior) -> float:
    """Score the leave-one-out predictions of leaves, each of its rows in one leaf. Lower is better.

    The sum of the mean negative log density, in the units of the leaf GPs, and of the log of the root mean squared error: densities
    alone would trade a worse mean for sharp peaks. The worse of two: each row left out alone, which is what a random split
    measures, and left out with all its duplicates, which is what new inputs will see. Noise near zero looks fine on duplicates left
    out together and is a disaster on rows seen twice.
    """
    left_out = loo_predictions(posterior, None)
    y, known_noise, weights = left_out.observed, left_out.known_noise, left_out.row_weights
    trust = None if weights is None else np.repeat(weights[:, None], y.shape[1], axis=1)
    if known_noise is not None:  # errors that are mostly known noise say little about a kernel
        usual = weighted_median(left_out.predictions[0].var - known_noise, weights)
        share = usual / (usual + known_noise)
        trust = share if trust is None else share * trust

    def score(predicted: Mixture) -> float:
        error = np.average((y - predicted.component_means[:, 0]) ** 2, axis=0, weights=trust)
        error = np.maximum(error, np.finfo(np.float64).tiny)  # a constant output has no error
        density = np.average(predicted.joint_logpdf(y), weights=weights)
        return float(-density + 0.5 * np.log(error).sum())

    return max(score(predicted) for predicted in left_out.predictions)


def outputs_score(posterior: LeafPosterior, outputs: OutputScaling) -> float:
    """Score the leave-one-out predictions of several outputs, jointly and one by one. Lower is better.

    The sum of the joint negative log density and those of the marginals. The joint one alone rewards whatever makes correlated
    outputs independent, however much worse each of them is then predicted.
    """
    left_out = loo_predictions(posterior, outputs)
    y, predicted = outputs.from_experts(left_out.observed), left_out.predictions[0]
    densities = predicted.joint_logpdf(y), predicted.logpdf(y).sum(axis=1)
    joint, marginal = (np.average(each, weights=left_out.row_weights) for each in densities)
    return float(-joint - marginal)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows of disjoint leaves, each predicted from the leaf's other rows.

    Attributes
    ----------
    predictions : tuple of Mixture
        Each row left out alone, and left out with its duplicates.
    observed : ndarray of shape (n_rows, n_outputs)
        Observations in the units of the leaf GPs.
    known_noise : ndarray of shape (n_rows, n_outputs) or None
        Their known noise variances.
    row_weights : ndarray of shape (n_rows,) or None
        Their weights.
    """

    predictions: tuple[Mixture, Mixture]
    observed: Array
    known_noise: Array | None
    row_weights: Array | None


def loo_predictions(posterior: LeafPosterior, outputs: OutputScaling | None) -> LeftOut:
    """Predict every row of disjoint leaves from the leaf's other rows, in the units of ``outputs``.

    Each row is in one leaf, so there is no mixture of leaves: a prediction is the leaf's, spread over the shapes of a gate.
    """
    loo = posterior.leave_one_out()
    rows = np.unique(posterior.leaf_rows.flat)
    scales = loo.scales_without(rows)
    alone, grouped = (loo.components(rows, with_duplicates) for with_duplicates in (False, True))
    known_noise, row_weights = loo.known_noise(rows), loo.weights(rows)
    gate = fit_gate(
        alone,
        scales,
        np.zeros(alone.leaf.shape),
        loo.observed(rows),
        local_scale=True,
        known_noise=known_noise,
        row_weights=row_weights,
    )
    weights = np.tile(gate.shape_weights, (len(rows), 1))

    def mixture(components: Components) -> Mixture:
        variance = components.variance * scales * gate.shape_variances[:, None]
        if known_noise is not None:
            variance = variance + known_noise[:, None, :]
        means = np.repeat(components.mean, len(gate.shape_weights), axis=1)
        return Mixture(weights, means, variance, outputs, squeeze=False)

    predictions = mixture(alone), mixture(grouped)
    return LeftOut(predictions, loo.observed(rows), known_noise, row_weights)


def _max_correlation(Y: Array, weights: Array | None) -> float:
    """Return the largest absolute correlation between two outputs."""
    centred = Y - np.average(Y, axis=0, weights=weights)
    if weights is not None:
        centred = centred * np.sqrt(weights)[:, None]
    scale = np.sqrt(np.square(centred).sum(axis=0))
    varying = centred[:, scale > 0] / scale[scale > 0]
    if varying.shape[1] < 2:
        return 0.0
    matrix = varying.T @ varying
    return float(np.max(np.abs(matrix - np.diag(np.diag(matrix)))))
