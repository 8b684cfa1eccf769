"""Fits under several hypotheses, stacked by cross-validation: what a small table gets instead of a choice by leave-one-out.

A hypothesis is a configuration of the fit: how inputs are warped, and the mean of the GPs. Each is fitted to all rows, and to the
rows outside of each fold, where everything is learned anew. The log densities of the folds' rows weigh the hypotheses
(:mod:`dsmgp.fitting.stacking`), and estimate how well the mixture predicts new rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.data.effects import N_FOLDS, fold_of_rows
from dsmgp.data.input_schema import InputSchema
from dsmgp.experts.points import equal_rows
from dsmgp.fitting.config import FitConfig
from dsmgp.fitting.coordinates import LEAST_ROWS, MOST_FEATURES
from dsmgp.fitting.in_memory import fit_rows
from dsmgp.fitting.stacking import Stacking, stack, stacked_log_density
from dsmgp.fitting.state import FittedState, TrainingRows
from dsmgp.gp.coordinates import Coordinates
from dsmgp.progress import span, stopping

__all__ = ["HYPOTHESES", "N_FOLDS", "Hypothesis", "fit_hypotheses", "hypotheses_pay"]

logger = logging.getLogger("dsmgp")

# With fewer rows there is too little to learn from in a fold; from LEAST_ROWS on leave-one-out chooses the coordinates.
FEWEST_ROWS = 60
# Share of rows with an input that another row has, too, up to which it makes no difference whether folds divide such rows.
FEW_DUPLICATES = 0.1


@dataclass(frozen=True)
class Hypothesis:
    """What a fit assumes.

    Attributes
    ----------
    input_warp : {"rank", "both"} or None
    mean : {"zero", "linear"}
    """

    input_warp: str | None
    mean: str

    def __str__(self) -> str:
        inputs = {"rank": "normal scores", "both": "inputs and normal scores"}
        return f"{inputs.get(str(self.input_warp), 'inputs as they are')}, {self.mean} mean"

    def of(self, config: FitConfig) -> FitConfig:
        """Return the configuration of a fit under this hypothesis."""
        return replace(
            config,
            input_warp=self.input_warp,
            mean=self.mean,
            mean_is_open=False,
            metric="diagonal",
            output_warp=None,
            hypotheses=False,
        )


#: The simplest first: it is the fit that is made without others.
HYPOTHESES = tuple(
    Hypothesis(warp, mean) for mean in ("zero", "linear") for warp in (None, "rank", "both")
)


def hypotheses_pay(rows: TrainingRows, config: FitConfig) -> bool:
    """Return whether hypotheses are to be stacked: the configuration leaves them open, and leave-one-out cannot choose."""
    return (
        config.hypotheses
        and rows.Y.shape[1] == 1
        and rows.X.shape[1] <= MOST_FEATURES
        and FEWEST_ROWS <= len(rows) < LEAST_ROWS
    )


def fit_hypotheses(
    rows: TrainingRows, schema: InputSchema, config: FitConfig, rng: np.random.Generator
) -> FittedState:
    """Fit all hypotheses and weigh them by stacking.

    Returns
    -------
    FittedState
        That of the heaviest hypothesis, with the others of notable weight as alternatives. A fit that is asked to stop
        returns the first hypothesis alone.
    """
    candidates, folds = _distinct(rows), _Folds.of(rows, schema)
    progress = _Progress(len(candidates) * (1 + N_FOLDS * (1 + folds.divide_inputs)))
    configs = [hypothesis.of(config) for hypothesis in candidates]
    members: list[FittedState] = []
    for hypothesis, each in zip(candidates, configs, strict=True):
        with progress.next(str(hypothesis)):
            members.append(fit_rows(rows, schema, each, rng))
        if stopping():
            return members[0]
    validation = _Validation(rows, schema, rng, progress)
    densities = validation.log_densities(folds.drawn(rng), configs)
    if densities is None:
        return members[0]
    weights = stack(densities, rows.weights)
    order = np.argsort(-weights, kind="stable")
    kept = order[weights[order] > 0]
    names, weights = [str(candidates[k]) for k in kept], weights[kept]
    for name, weight in zip(names, weights, strict=True):
        logger.info("hypothesis of weight %.2f: %s", weight, name)
    score = _mean_loss(densities[:, kept], weights, rows.weights)
    at_new_inputs = score
    if folds.divide_inputs:
        densities = validation.log_densities(folds.drawn_by_input(rng), [configs[k] for k in kept])
        if densities is None:
            return members[0]
        at_new_inputs = _mean_loss(densities, weights, rows.weights)
    heaviest, *others = (members[k] for k in kept)
    n_evaluations = sum(member.search.n_evaluations for member in members)
    return replace(
        heaviest,
        search=replace(heaviest.search, n_evaluations=n_evaluations + validation.n_evaluations),
        alternatives=tuple(others),
        stacking=Stacking(tuple(names), weights, (score, at_new_inputs)),
    )


def _distinct(rows: TrainingRows) -> list[Hypothesis]:
    """Return the hypotheses that differ: flags and the like have no normal scores to warp to."""
    kinds = [("rank",)] * rows.X.shape[1]
    if Coordinates.of_columns(rows.X, kinds, rows.weights).is_identity:
        return [hypothesis for hypothesis in HYPOTHESES if hypothesis.input_warp is None]
    return list(HYPOTHESES)


def _mean_loss(log_densities: Array, weights: Array, row_weights: Array | None) -> float:
    """Return the mean negative log density of the mixture."""
    return float(-np.average(stacked_log_density(log_densities, weights), weights=row_weights))


@dataclass(frozen=True, eq=False)
class _Folds:
    """How rows are divided for cross-validation.

    Attributes
    ----------
    y : ndarray of shape (n_rows,)
    labels : ndarray of shape (n_rows,)
        Equal for rows with equal inputs.
    fixed : ndarray of shape (n_rows,), or None
        The fold of each row, where it is not free: the effects of levels among the inputs of a row were learned without the rows of
        its fold there, so with these folds they are what a fit without them would have seen.
    """

    y: Array
    labels: Index
    fixed: Index | None

    @classmethod
    def of(cls, rows: TrainingRows, schema: InputSchema) -> _Folds:
        has_effects = any(column.effects for column in schema.columns.columns)
        fixed = fold_of_rows(len(rows)) if has_effects else None
        return cls(rows.Y[:, 0], equal_rows(rows.X), fixed)

    @cached_property
    def duplicates(self) -> float:
        """Share of the rows with an input that another row has, too."""
        counts = np.unique(self.labels, return_counts=True)[1]
        return float(counts[counts > 1].sum() / len(self.labels))

    @property
    def divide_inputs(self) -> bool:
        """Whether rows are divided in two ways, as leaving out all rows of an input differs from leaving out rows."""
        enough = len(np.unique(self.labels)) >= N_FOLDS
        return self.fixed is None and enough and self.duplicates > FEW_DUPLICATES

    def drawn(self, rng: np.random.Generator) -> Index:
        """Return the fold of each row."""
        if self.fixed is not None:
            return self.fixed
        if self.duplicates > FEW_DUPLICATES:
            return _dealt(self.y, rng)
        return self.drawn_by_input(rng)

    def drawn_by_input(self, rng: np.random.Generator) -> Index:
        """Return the fold of each row, the same for rows with equal inputs."""
        _, group, counts = np.unique(self.labels, return_inverse=True, return_counts=True)
        group = group.reshape(-1)
        return _dealt(np.bincount(group, self.y) / counts, rng)[group]


def _dealt(values: Array, rng: np.random.Generator) -> Index:
    """Deal values to folds at random, each five of neighbouring size to five folds.

    Scores then depend less on the draw than with folds whose outputs happen to differ.
    """
    n = len(values)
    hands = np.tile(np.arange(N_FOLDS), (-(-n // N_FOLDS), 1))
    fold = np.empty(n, dtype=np.int64)
    order = np.lexsort((rng.permutation(n), values))
    fold[order] = rng.permuted(hands, axis=1).reshape(-1)[:n]
    return fold


class _Validation:
    """Fits without each fold, which predict its rows."""

    def __init__(
        self,
        rows: TrainingRows,
        schema: InputSchema,
        rng: np.random.Generator,
        progress: _Progress,
    ) -> None:
        self._rows, self._schema, self._rng, self._progress = rows, schema, rng, progress
        self.n_evaluations = 0

    def log_densities(self, fold: Index, configs: Sequence[FitConfig]) -> Array | None:
        """Return the log density of each row under fits without its fold, (n_rows, n_configs); None if asked to stop."""
        rows = self._rows
        densities = np.empty((len(rows), len(configs)))
        for number in np.unique(fold).tolist():
            inside = np.flatnonzero(fold == number)
            others = rows.removed(inside)
            seed = int(self._rng.integers(2**63))
            for k, config in enumerate(configs):
                # Hypotheses are compared on the same random trees.
                rng = np.random.default_rng(seed)
                with self._progress.next(f"cross-validating, fold {number + 1}"):
                    fitted = fit_rows(others, self._schema, _on_cpu(config), rng)
                if stopping():
                    return None
                noise = None if rows.noise is None else rows.noise[inside]
                predicted = fitted.mixture.mixture(rows.X[inside], known_noise=noise)
                densities[inside, k] = predicted.logpdf(rows.Y[inside, 0])
                self.n_evaluations += fitted.search.n_evaluations
        return densities


def _on_cpu(config: FitConfig) -> FitConfig:
    """Return a configuration for fits too small for a GPU."""
    return config if config.device_type == "cpu" else replace(config, device="cpu")


class _Progress:
    """Reports of progress through a number of fits."""

    def __init__(self, n_fits: int) -> None:
        self._n_fits, self._done = n_fits, 0

    @contextmanager
    def next(self, text: str) -> Iterator[None]:
        """Enter the next fit."""
        with span(self._done / self._n_fits, (self._done + 1) / self._n_fits, text):
            yield
        self._done += 1
