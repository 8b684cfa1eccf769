"""Fits under several hypotheses, stacked by cross-validation: what a small table gets instead of a choice by leave-one-out.

A hypothesis is a configuration of the fit: how inputs are warped, the mean of the GPs, and whether the output is warped. Each is fitted to
all rows. The log densities of rows under hyperparameters that have not seen them (:mod:`dsmgp.fitting.hypotheses.held_out`) weigh the hypotheses
(:mod:`dsmgp.mixture.weights.stacking`), and estimate how well the mixture predicts new rows. Among the rows a kernel can stand in for a
line, and hypotheses hardly differ that do beyond them: so blocks of rows at the edges of the data, left out together, weigh them, too.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from dsmgp._util.arrays import Array, Index
from dsmgp.data.columns.folds import dealt_folds
from dsmgp.data.input_schema import InputSchema
from dsmgp.distributed.executor import LocalExecutor
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.fit import fit_rows
from dsmgp.fitting.hypotheses.at_edges import blocks_of, log_densities_at_edges
from dsmgp.fitting.hypotheses.held_out import HeldOut, held_out_log_densities
from dsmgp.fitting.learning.context import FitContext
from dsmgp.fitting.outside.edge_blocks import EdgeBlock
from dsmgp.fitting.rows.training_rows import TrainingRows
from dsmgp.fitting.selection.coordinates import LEAST_ROWS, MOST_FEATURES
from dsmgp.fitting.state import FittedState
from dsmgp.gp.transforms.coordinates import Coordinates
from dsmgp.gp.transforms.output_warp import normal_scores
from dsmgp.mixture.weights.stacking import (
    StackedPredictions,
    Stacking,
    cross_fitted_weights,
    stack,
)
from dsmgp.progress import span, stopping

__all__ = ["HYPOTHESES", "Hypothesis", "fit_hypotheses", "hypotheses_pay"]

logger = logging.getLogger("dsmgp")

# With fewer rows there is too little to learn from in a fold; from LEAST_ROWS on leave-one-out chooses the coordinates.
FEWEST_ROWS = 40
# Hypotheses whose output is warped, too: so many, those of most weight.
N_WARPED = 2
# Weight of the rows in blocks at the edges of the data, relative to the rows left out one by one. They err together, and input
# warps have seen them.
EDGE_SHARE = 0.1


@dataclass(frozen=True)
class Hypothesis:
    """What a fit assumes.

    Attributes
    ----------
    input_warp : "rank", "both", or None
    mean : "zero" or "linear"
    output_warp : "rank" or None
    """

    input_warp: str | None
    mean: str
    output_warp: str | None = None

    def __str__(self) -> str:
        inputs = {"rank": "normal scores", "both": "inputs and normal scores"}
        output = "" if self.output_warp is None else ", output by normal scores"
        return f"{inputs.get(str(self.input_warp), 'inputs as they are')}, {self.mean} mean{output}"

    def of(self, config: FitConfig) -> FitConfig:
        """Return the configuration of a fit under this hypothesis."""
        return replace(
            config,
            input_warp=self.input_warp,
            mean=self.mean,
            mean_is_open=False,
            metric="diagonal",
            output_warp=self.output_warp,
            hypotheses=None,
        )


#: The simplest first: it is the fit that is made without others. The output of the best of them is then warped, too.
HYPOTHESES = tuple(
    Hypothesis(warp, mean) for mean in ("zero", "linear") for warp in (None, "rank", "both")
)


def hypotheses_pay(rows: TrainingRows, config: FitConfig) -> bool:
    """Return whether hypotheses are to be stacked: the configuration leaves them open, and leave-one-out cannot choose."""
    return (
        config.hypotheses == "stack"
        and rows.Y.shape[1] == 1
        and rows.X.shape[1] <= MOST_FEATURES
        and FEWEST_ROWS <= len(rows) < LEAST_ROWS
    )


def fit_hypotheses(
    rows: TrainingRows, schema: InputSchema, config: FitConfig, rng: np.random.Generator
) -> FittedState:
    """Fit all hypotheses and weigh them by stacking.

    Fits run in this process and on the CPU, whatever the executor and the device: tables are small, and results are then the same.

    Returns
    -------
    FittedState
        That of the heaviest hypothesis, with the others of notable weight as alternatives. A fit that is asked to stop
        returns the first hypothesis alone.
    """
    config = replace(config, executor=LocalExecutor(), device="cpu")
    simple, warps_output = _distinct(rows, schema), _may_warp_output(rows, config)
    n_warped = N_WARPED * warps_output
    trials = _Trials(rows, schema, config, _folds(rows, schema), rng, len(simple) + n_warped)
    for hypothesis in simple:
        trials.add(hypothesis)
        if stopping():
            return trials.members[0]
    weights = trials.weights()
    for k in np.argsort(-weights, kind="stable")[:n_warped].tolist():
        trials.add(replace(simple[k], output_warp="rank"))
        if stopping():
            return trials.members[0]
    return trials.stacked()


class _Trials:
    """Hypotheses that have been tried.

    Attributes
    ----------
    hypotheses : list of Hypothesis
    members : list of FittedState
        Fits to all rows.
    held_out : list of HeldOut
        Predictions of the rows.
    at_edges : list of ndarray of shape (n_edge_rows,), or of None
        Log densities of the rows in blocks at the edges, left out together; a row may be in several blocks.
    """

    def __init__(
        self,
        rows: TrainingRows,
        schema: InputSchema,
        config: FitConfig,
        fold: Index,
        rng: np.random.Generator,
        n_trials: int,
    ) -> None:
        self._rows, self._schema, self._config, self._fold = rows, schema, config, fold
        # Hypotheses are compared on the same random trees.
        self._rng, self._n_trials = rng, n_trials
        self._seed = int(copy.deepcopy(rng).integers(2**63))
        self.hypotheses: list[Hypothesis] = []
        self.members: list[FittedState] = []
        self.held_out: list[HeldOut] = []
        self.at_edges: list[Array | None] = []
        self._blocks: list[EdgeBlock] = []
        self.n_evaluations = 0

    def add(self, hypothesis: Hypothesis) -> None:
        """Fit a hypothesis and cross-validate it; without the latter if the fit is asked to stop."""
        config, rng = hypothesis.of(self._config), copy.deepcopy(self._rng)
        with self._span(0.0, 0.6, "fitting hypotheses", str(hypothesis)):
            member = fit_rows(self._rows, self._schema, FitContext(config, rng))
        if not self.members:
            self._blocks = blocks_of(member, config)
        self.members.append(member)
        self.n_evaluations += member.search.n_evaluations
        if stopping():
            return
        with self._span(0.6, 1.0, "cross-validating hypotheses", f"cross-validating: {hypothesis}"):
            held_out = held_out_log_densities(member, self._fold, config, self._seed)
        if held_out is not None:
            self.hypotheses.append(hypothesis)
            self.held_out.append(held_out)
            mean = hypothesis.mean
            self.at_edges.append(log_densities_at_edges(member, mean, self._blocks, config))
            self.n_evaluations += held_out.n_evaluations

    def weights(self) -> Array:
        """Return the weights of the hypotheses so far."""
        return stack(self._densities, self._density_weights)

    def stacked(self) -> FittedState:
        """Return the state of all hypotheses of notable weight."""
        weights = self.weights()
        order = np.argsort(-weights, kind="stable")
        kept = order[weights[order] > 0].tolist()
        names = tuple(str(self.hypotheses[k]) for k in kept)
        for name, weight in zip(names, weights[kept], strict=True):
            logger.info("hypothesis of weight %.2f: %s", weight, name)
        heaviest, *others = (self.members[k] for k in kept)
        by_row = self._cross_fitted
        return replace(
            heaviest,
            search=replace(heaviest.search, n_evaluations=self.n_evaluations),
            alternatives=tuple(others),
            stacking=Stacking(
                names, weights[kept], self._scores(by_row), left_out=self._left_out(by_row)
            ),
        )

    @property
    def _edge_rows(self) -> Index:
        """Numbers of the rows in blocks at the edges, if all hypotheses can leave them out."""
        if not self._blocks or any(each is None for each in self.at_edges):
            return np.empty(0, dtype=np.int64)
        return np.concatenate([block.rows for block in self._blocks])

    @property
    def _densities(self) -> Array:
        """Log densities by hypothesis: of all rows alone, then of all rows left out with their duplicates, then of those at the edges."""
        columns = []
        for held_out, at_edges in zip(self.held_out, self.at_edges, strict=True):
            edges = at_edges if at_edges is not None and len(self._edge_rows) else np.empty(0)
            columns.append(np.append(held_out.log_densities, edges))
        return np.stack(columns, axis=-1)

    @property
    def _density_weights(self) -> Array:
        """Return the weights of these densities."""
        weights = np.ones(len(self._rows)) if self._rows.weights is None else self._rows.weights
        at_edges = weights[self._edge_rows]
        if len(at_edges):
            at_edges = EDGE_SHARE * weights.sum() / at_edges.sum() * at_edges
        return np.concatenate([0.5 * weights, 0.5 * weights, at_edges])

    @property
    def _cross_fitted(self) -> Array:
        """Weights of the hypotheses for each row that have not seen its fold, (n_rows, n_hypotheses)."""
        fold = np.concatenate([self._fold, self._fold, self._fold[self._edge_rows]])
        weights = cross_fitted_weights(self._densities, fold, self._density_weights)
        return weights[: len(self._fold)]

    def _scores(self, weights: Array) -> tuple[float, float]:
        """Return the mean negative log densities of the mixture, under weights of the hypotheses by row."""
        both_ways = np.stack([each.log_densities for each in self.held_out], axis=-1)
        mixed = logsumexp(both_ways, axis=2, b=weights)
        alone, at_new_inputs = -np.average(mixed, axis=1, weights=self._rows.weights)
        return float(alone), float(at_new_inputs)

    def _left_out(self, weights: Array) -> StackedPredictions:
        """Return predictions of all rows by the mixture, under weights of the hypotheses by row."""
        mean, cdf = np.stack([(each.mean, each.cdf) for each in self.held_out], axis=-1)
        return StackedPredictions((weights * mean).sum(axis=1), (weights * cdf).sum(axis=1))

    @contextmanager
    def _span(self, first: float, last: float, stage: str, text: str) -> Iterator[None]:
        """Report progress through part of the next trial."""
        done = len(self.held_out)
        shares = (done + first) / self._n_trials, (done + last) / self._n_trials
        with span(*shares, stage, text):
            yield


def _distinct(rows: TrainingRows, schema: InputSchema) -> list[Hypothesis]:
    """Return the hypotheses that differ: flags and the like have no normal scores to warp to.

    Where inputs are effects of levels, a linear mean could tell a row's own output from the effect of its level, which was learned
    without it, and the indicator of the level.
    """
    hypotheses = list(HYPOTHESES)
    if any(column.effects for column in schema.columns.columns):
        hypotheses = [each for each in hypotheses if each.mean == "zero"]
    kinds = [("rank",)] * rows.X.shape[1]
    if Coordinates.of_columns(rows.X, kinds, rows.weights).is_identity:
        hypotheses = [each for each in hypotheses if each.input_warp is None]
    return hypotheses


def _may_warp_output(rows: TrainingRows, config: FitConfig) -> bool:
    """Whether the output may be warped: known noise is Gaussian in its units, and few distinct values have no normal scores."""
    return (
        config.output_warp is not None
        and rows.noise is None
        and normal_scores(rows.Y[:, 0], weights=rows.weights) is not None
    )


def _folds(rows: TrainingRows, schema: InputSchema) -> Index:
    """Return the fold of each row: that without which the effects among its inputs were learned, where there are any."""
    if rows.effects is not None:
        return rows.effects.folds
    order = schema.input_order(rows.X, rows.Y)
    X = rows.X if order is None else rows.X[:, order]
    return dealt_folds(X, rows.Y[:, 0], equal_rows(X))
