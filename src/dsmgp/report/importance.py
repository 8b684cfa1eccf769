"""How much predictions rely on each column, for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.data.columns.remarks import spread_rows
from dsmgp.explain.permutation import permutation_importance
from dsmgp.plots.style import BAND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.report.evaluation import Evaluation

__all__ = ["MAX_BARS", "MAX_DRAWN", "Importance", "importance"]

# Least number of rows among which columns are shuffled.
MIN_ROWS = 50
N_REPEATS = 3
# Most rows that are shuffled, and roughly the most predictions that are made for it.
MAX_ROWS, MAX_PREDICTIONS = 1_000, 60_000
#: Bars, and plots of single columns, that are drawn at most.
MAX_BARS, MAX_DRAWN = 20, 6


@dataclass(frozen=True, eq=False)
class Importance:
    """Importance of the columns of a table.

    Attributes
    ----------
    columns : tuple of str
    values : ndarray of shape (n_columns,)
    label : str
        What the values are.
    caption : str
        The same as a sentence.
    """

    columns: tuple[str, ...]
    values: Array
    label: str
    caption: str

    @property
    def ranked(self) -> list[str]:
        """The columns, the most important first."""
        return [self.columns[k] for k in np.argsort(-self.values, kind="stable").tolist()]

    def plot(self, ax: Axes) -> Axes:
        """Draw a bar for each of the most important columns."""
        order = np.argsort(-self.values, kind="stable")[:MAX_BARS][::-1]
        ax.barh([self.columns[k] for k in order], np.maximum(self.values[order], 0.0), color=BAND)
        ax.set_xlabel(self.label)
        return ax


def importance(evaluation: Evaluation) -> Importance:
    """Return how much the scores of the rows rise when a column is shuffled; with few rows, the shares of feature_importances_.

    Length scales would not do: they say how fast the function varies along a column, not by how much.
    """
    model = evaluation.model
    state = model.state_
    groups = state.schema.groups
    names = tuple(name for name, _ in groups)
    if len(evaluation.rows) < MIN_ROWS:
        caption = (
            "Share of each column in the variation of the predicted mean (total effects), as the "
            f"report has fewer than {MIN_ROWS} rows."
        )
        # Columns that were left out of the fit have importances, too.
        shares = dict(zip(state.schema.column_names, model.feature_importances_, strict=True))
        values = np.array([shares[name] for name in names])
        return Importance(names, values, "share in the variation of predictions", caption)
    # RMSEs of targets in different units cannot be added up.
    score, text = ("rmse", "RMSE") if len(evaluation.targets) == 1 else ("nlpd", "NLPD")
    n_rows = MAX_PREDICTIONS // (N_REPEATS * len(groups))
    rows = spread_rows(len(evaluation.rows), min(max(n_rows, MIN_ROWS), MAX_ROWS))
    found = permutation_importance(
        state.predictive,
        evaluation.rows[rows],
        evaluation.observed[rows],
        groups,
        N_REPEATS,
        [score],
        np.random.default_rng(0),
    )
    caption = (
        f"Increase of the {text} when the values of a column are shuffled among the rows of this report. "
        "Columns that carry the same information can stand in for each other, and then have low bars."
    )
    return Importance(names, found.importances_mean[score], f"increase of the {text}", caption)
