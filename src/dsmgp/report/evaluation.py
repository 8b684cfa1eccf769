"""The rows on which a report evaluates a model, and their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_consistent_length

from dsmgp._util.arrays import Array, Index
from dsmgp._util.dates import format_day
from dsmgp._util.errors import InputError
from dsmgp.data.columns.remarks import spread_rows
from dsmgp.data.frames import taken
from dsmgp.data.unknown_inputs import mixture_at
from dsmgp.data.user_tables import target_numbers
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution
from dsmgp.regressor import DSMGPRegressor
from dsmgp.report.importance import MAX_DRAWN, Importance, importance
from dsmgp.report.numbers import number

__all__ = ["Evaluation"]

# Rows that plots show at most.
MAX_PLOTTED = 5_000


@dataclass(frozen=True)
class Evaluation:
    """A fitted model, the rows on which it is evaluated, and its predictions there.

    Attributes
    ----------
    model : DSMGPRegressor
    X : array-like
        The inputs as the user gave them.
    rows : ndarray of shape (n, n_inputs)
        The same as numbers; dates are days.
    observed : ndarray of shape (n, n_outputs)
    y : ndarray of shape (n,) or (n, n_outputs)
        The same in the shape of the model's training outputs.
    distribution : Mixture
    uncertainty : ndarray of shape (n,)
        Predictive standard deviations relative to those of the training outputs, averaged over outputs.
    names, targets : list of str
        Names of inputs and outputs.
    remarks : list of str
        On these rows and on the predictions.
    row_numbers : ndarray of shape (n,)
        Numbers of the rows in the user's table, from 1; those of rows without a target are missing.
    """

    model: DSMGPRegressor
    X: ArrayLike
    rows: Array
    observed: Array
    y: Array
    distribution: PredictiveDistribution
    uncertainty: Array
    names: list[str]
    targets: list[str]
    remarks: list[str]
    row_numbers: Index

    @classmethod
    def of(
        cls,
        model: DSMGPRegressor,
        X: ArrayLike,
        y: ArrayLike,
        targets: Sequence[str],
        remarks: Sequence[str] = (),
        row_numbers: Index | None = None,
    ) -> Evaluation:
        """Predict the rows of X that have a target.

        Parameters
        ----------
        model : DSMGPRegressor
        X, y : array-like or frame
        targets : sequence of str
        remarks : sequence of str
            On how the rows were read.
        row_numbers : ndarray of shape (n,), optional
            Numbers of the rows in the user's table; 1, 2, ... if left out.
        """
        state = model.state_
        observed, _ = target_numbers(y)
        if observed.shape[1] != len(targets):
            raise InputError(
                f"expected a name for each of {observed.shape[1]} outputs, got {list(targets)}"
            )
        check_consistent_length(X, observed)
        said = list(remarks)
        if row_numbers is None:
            row_numbers = np.arange(1, len(observed) + 1)
        known = np.flatnonzero(~np.isnan(observed).any(axis=1))
        n_left_out = len(observed) - len(known)
        if not len(known):
            raise InputError("expected rows with a target, got none")
        if n_left_out:
            said.append(f"{n_left_out} row{'s' * (n_left_out > 1)} without a target left out")
            X, observed, row_numbers = taken(X, known), observed[known], row_numbers[known]
        rows = state.schema.to_rows(X)
        distribution = mixture_at(state.predictive, rows, squeeze=state.schema.single_output)
        said += state.schema.remarks_on(X)
        said += state.evaluation_remarks(rows.X, observed, distribution, targets)
        training_std = state.rows.Y.std(axis=0)
        std = distribution.std.reshape(len(observed), -1)
        return cls(
            model,
            X,
            rows.X,
            observed,
            state.schema.shaped(observed),
            distribution,
            (std / np.where(training_std > 0, training_std, 1.0)).mean(axis=1),
            state.schema.input_names,
            list(targets),
            said,
            row_numbers,
        )

    @cached_property
    def drawn(self) -> tuple[Any, Array]:
        """Inputs as the user gave them and observations of the rows that plots show, evenly spread if there are many."""
        rows = spread_rows(len(self.rows), MAX_PLOTTED)
        if len(rows) == len(self.rows):
            return self.X, self.observed
        return taken(self.X, rows), self.observed[rows]

    @cached_property
    def outside(self) -> NDArray[np.bool_]:
        """Which rows lie outside the training data."""
        return np.asarray(self.distribution.outside > 0)

    @cached_property
    def importance(self) -> Importance:
        """How much predictions rely on each column; computed when first read."""
        return importance(self)

    @property
    def most_important(self) -> list[str]:
        """The columns that plots show, the most important first."""
        names = [name for name, _ in self.model.state_.schema.groups]
        return names if len(names) == 1 else self.importance.ranked[:MAX_DRAWN]

    @property
    def draws_function(self) -> bool:
        """Whether the function is drawn with its change points: it has one input and one output."""
        has_changes = self.model.state_.model.has_change_points
        return has_changes and len(self.names) == 1 and len(self.targets) == 1

    def input_text(self, dimension: int, value: float) -> str:
        """Return a value of an input as text: a number or a date."""
        dates = self.model.state_.schema.displayed_dates.get(dimension)
        return number(value) if dates is None else format_day(value, dates)
