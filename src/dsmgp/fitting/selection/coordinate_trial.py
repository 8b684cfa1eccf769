"""Trials of coordinates, step by step: each step takes the best candidate so far and returns it, or a better one.

What a candidate has learned counts only as far as it holds elsewhere. Rows are the same for all candidates, and a more complicated one
replaces a simpler one only if its gain is clear: more than twice the standard error of the difference.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsmgp._util.arrays import Index
from dsmgp._util.weighted import weighted_median
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.rows.scaled_rows import ScaledRows
from dsmgp.fitting.selection.candidate_scores import CandidateScores
from dsmgp.fitting.selection.trial_candidates import (
    Candidate,
    Trial,
    boosted_trees_compete,
    judge,
    learn,
    learn_network_on,
    with_boosted_trees,
    with_metric,
    with_network,
    without_weak_features,
)
from dsmgp.fitting.selection.trial_rows import TrialRows
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import OutputWarp, normal_scores

__all__ = [
    "Best",
    "learned_coordinates",
    "start",
    "try_boosted_trees",
    "try_input_warps",
    "try_metric",
    "try_network",
    "try_output_warps",
]

logger = logging.getLogger("dsmgp")

# The kernels of which candidates are compared with the best, where the kernel is yet to be chosen: what looks like a gain with a smooth
# kernel may be one that a rough kernel has anyway.
TRIAL_KERNELS = ("rbf", "matern32", "matern12")
# A function counts as known if half of the squared errors are below this share of the output's variance.
EXACT = 1.5e-6
# Strengths of the output warps that are tried, 1 being normal scores.
STRENGTHS = (0.5, 1.0)
# Share of the rows that the network of the model is not learned on, and most of them: the gate is fitted to these.
NETWORK_HELD_OUT, MOST_HELD_OUT = 0.2, 10_000
# Boosted trees have passed one test before they are tried, and are one candidate: a gain of one standard error will do.
CLEAR_OF_TREES = {"n_errors": 1.0, "least": 0.02}


@dataclass(frozen=True, eq=False)
class Best:
    """The best candidate so far.

    Attributes
    ----------
    candidate : Candidate
    scores : CandidateScores
    first : Candidate
        What was started with: the coordinates that the user asked for.
    gains : dict of str to float
        By step that was taken, the gain over the step before.
    learned_on : ndarray of int
        Rows of the training set that a metric was learned on.
    """

    candidate: Candidate
    scores: CandidateScores
    first: Candidate
    gains: dict[str, float] = field(default_factory=dict)
    learned_on: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def is_exact(self) -> bool:
        """Whether outputs follow from the inputs nearly without error, so that there is nothing to gain."""
        small = self.scores.small
        return bool((weighted_median(small.error[0], small.row_weights) < EXACT).all())

    @property
    def n_features(self) -> int:
        return len(self.candidate.coordinates.columns)


def start(
    data: ScaledRows,
    context: FitContext,
    coordinates: Coordinates | None,
    output_warps: Sequence[OutputWarp | None],
) -> Best:
    """Draw the rows of a trial, and begin with what the user asked for.

    Parameters
    ----------
    data : ScaledRows
        The training set.
    context : FitContext
    coordinates : Coordinates or None
        None for the inputs as they are.
    output_warps : sequence of OutputWarp or None
        By output; empty if no output is warped.
    """
    config = context.config
    if not isinstance(config.executor, LocalExecutor):
        # A few leaves are computed here sooner than sent to workers.
        config = replace(config, executor=LocalExecutor(), device="cpu")
    # A generator of its own: where nothing is chosen, the fit is that of a configuration without a choice.
    rng = np.random.default_rng(0)
    rows = TrialRows.drawn(data, config, rng)
    trial = Trial(rows, replace(context, config=config, rng=rng))
    automatic = isinstance(config.kernel, str) and config.kernel == "auto"
    kernels: Sequence[Any] = TRIAL_KERNELS if automatic else [config.kernel]
    folds = trial.folds(coordinates or Coordinates.identity(trial.n_inputs), output_warps)
    candidates = [learn(Candidate(kernel, folds)) for kernel in kernels]
    judged = [judge(candidate) for candidate in candidates]
    best = int(np.argmax([scores.gain_over(judged[0])[0] for scores in judged]))
    return Best(candidates[best], judged[best], candidates[best])


def try_input_warps(best: Best) -> Best:
    """Try normal scores of all columns, and columns both as they are and warped, the less relevant of the two dropped."""
    rows, n_inputs = best.candidate.trial.rows.all_rows, best.candidate.trial.n_inputs
    rank = Coordinates.of_columns(rows.X, [("rank",)] * n_inputs, rows.row_weights)
    if rank.is_identity:
        return best
    ranked = learn(best.candidate.in_coordinates(rank))
    both = Coordinates.of_columns(rows.X, [("raw", "rank")] * n_inputs, rows.row_weights)
    side_by_side = without_weak_features(learn(best.candidate.in_coordinates(both)))
    return _best_of(best, "input warp", [ranked, side_by_side])


def try_output_warps(best: Best) -> Best:
    """Try output warps of several strengths."""
    rows, candidates = best.candidate.trial.rows.all_rows, []
    for strength in STRENGTHS:
        warps = tuple(normal_scores(y, strength, weights=rows.row_weights) for y in rows.Y.T)
        if all(warp is None for warp in warps):
            return best
        candidates.append(learn(best.candidate.with_output_warps(warps)))
    return _best_of(best, "output warp", candidates)


def try_metric(best: Best, forced: bool, also_raw: bool) -> Best:
    """Try a linear map of the features so far and, if these are warped, of the columns as they are.

    Parameters
    ----------
    best : Best
    forced : bool
        Whether to take it if it gains nothing.
    also_raw : bool
        Whether the columns were as they are at the start.
    """
    starts = [best.candidate]
    if also_raw and not best.candidate.coordinates.is_identity:
        starts.append(best.first)
    taken = _best_of(best, "metric", [with_metric(start) for start in starts], forced)
    if taken is best:
        return best
    gains, rows = dict(taken.gains), taken.candidate.trial.rows
    if all(warp is None for warp in taken.candidate.coordinates.warps):
        gains.pop("input warp", None)
    return replace(taken, gains=gains, learned_on=rows.used[rows.learned_on(0)])


def try_network(best: Best, forced: bool) -> Best:
    """Try a network of the coordinates so far, whose outputs are further coordinates."""
    return _best_of(best, "network", [with_network(best.candidate)], forced)


def try_boosted_trees(best: Best, forced: bool) -> Best:
    """Try predictions of boosted trees as further coordinates, if trees predict about as well as large leaves do."""
    if not (forced or boosted_trees_compete(best.candidate, best.scores)):
        return best
    candidate = with_boosted_trees(best.candidate)
    if candidate is None:
        return best
    return _best_of(best, "boosted trees", [candidate], forced, CLEAR_OF_TREES)


def learned_coordinates(best: Best) -> tuple[Coordinates, Index]:
    """Return the coordinates of the best candidate, and the rows of the training set that they were learned on.

    A network is learned again, on more rows than when it was judged.
    """
    before = best.candidate.without_network
    if before is None:
        return best.candidate.coordinates, best.learned_on
    trial = best.candidate.trial
    n_rows = len(trial.rows.all_rows.X)
    n_held_out = min(round(NETWORK_HELD_OUT * n_rows), MOST_HELD_OUT)
    learned_on = np.sort(trial.context.rng.permutation(n_rows)[n_held_out:])
    fold = before.with_output_warps(best.candidate.output_warps).folds[0]
    with_network = learn_network_on(fold, before.families[0], learned_on)
    return replace(with_network, trees=best.candidate.coordinates.trees), learned_on


def _best_of(
    best: Best,
    step: str,
    candidates: Sequence[Candidate],
    forced: bool = False,
    clear: Mapping[str, float] | None = None,
) -> Best:
    """Return the first candidate with a clear gain, unless another's gain over it is clear; ``best`` itself if there is none.

    With ``forced`` the first candidate is taken even without a gain; ``clear`` is another rule of what is clear.
    """
    taken = best
    for k, candidate in enumerate(candidates):
        scores = judge(candidate)
        gain, error = scores.gain_over(best.scores)
        logger.info("%s %d: gain %.4f +- %.4f per row", step, k, gain, error)
        if scores.is_clear(taken.scores, **(clear or {})) or (forced and taken is best):
            gains = {**best.gains, step: gain}
            taken = replace(best, candidate=candidate, scores=scores, gains=gains)
    return taken
