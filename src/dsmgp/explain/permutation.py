"""Permutation importance: how much worse the predictions of given rows become when a column is shuffled among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmgp import scores
from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.validation import check_choice
from dsmgp.mixture.fitted_model import Predictive
from dsmgp.mixture.predictive.predictive_distribution import PredictiveDistribution

__all__ = ["SCORES", "PermutationImportance", "permutation_importance"]

#: Scores of predictions, all of which are better where they are lower.
SCORES: Mapping[str, Callable[[Array, PredictiveDistribution], float]] = {
    "nlpd": scores.nlpd,
    "rmse": lambda y, distribution: scores.rmse(y, distribution.mean),
    "mae": lambda y, distribution: scores.mae(y, distribution.mean),
    "crps": scores.crps,
}
# Columns that the text shows at most.
MOST_COLUMNS = 20


@dataclass(frozen=True, eq=False, repr=False)
class PermutationImportance:
    """By how much scores of predictions rise when a column is shuffled.

    Attributes
    ----------
    columns : tuple of str
        Columns of the user's table.
    baseline : dict of str to float
        The scores of the rows as they are.
    importances : dict of str to ndarray of shape (n_columns, n_repeats)
        By score, how much larger it is for each column and repeat.

    Examples
    --------
    >>> increases = np.array([[2.0, 4.0], [0.0, 0.1]])
    >>> result = PermutationImportance(("a", "b"), {"nlpd": 0.5}, {"nlpd": increases})
    >>> result.importances_mean, result.importances_std
    ({'nlpd': array([3.  , 0.05])}, {'nlpd': array([1.  , 0.05])})
    >>> result
    Increase of scores when a column is shuffled, 2 repeats
    <BLANKLINE>
                     nlpd
      as it is        0.5
      a                +3 ± 1
      b             +0.05 ± 0.05
    """

    columns: tuple[str, ...]
    baseline: dict[str, float]
    importances: dict[str, Array]

    @property
    def importances_mean(self) -> dict[str, Array]:
        """By score, the mean over repeats, (n_columns,)."""
        return {score: table.mean(axis=1) for score, table in self.importances.items()}

    @property
    def importances_std(self) -> dict[str, Array]:
        """By score, the standard deviation over repeats, (n_columns,)."""
        return {score: table.std(axis=1) for score, table in self.importances.items()}

    def __repr__(self) -> str:
        """A table of the columns, the most important by the first score first."""
        means, stds = self.importances_mean, self.importances_std
        first = next(iter(self.importances))
        order = np.argsort(-means[first], kind="stable")[:MOST_COLUMNS]
        width = max(len("as it is"), *(len(self.columns[k]) for k in order))
        n_repeats = self.importances[first].shape[1]
        lines = [
            f"Increase of scores when a column is shuffled, {n_repeats} repeat{'s' * (n_repeats > 1)}",
            "",
            f"  {'':<{width}}" + "".join(f"  {score:>9}{'':10}" for score in means),
            f"  {'as it is':<{width}}"
            + "".join(f"  {self.baseline[s]:>9.4g}{'':10}" for s in means),
        ]
        for k in order.tolist():
            cells = (f"  {means[s][k]:>+9.3g} ± {stds[s][k]:<7.2g}" for s in means)
            lines.append(f"  {self.columns[k]:<{width}}" + "".join(cells))
        if len(order) < len(self.columns):
            lines.append(f"  and {len(self.columns) - len(order)} more")
        return "\n".join(line.rstrip() for line in lines)

    def to_frame(self) -> Any:
        """Return a frame of pandas with a row for each column, and mean and standard deviation of the increase of each score.

        Examples
        --------
        >>> increases = np.array([[2.0, 4.0], [0.0, 0.2]])
        >>> PermutationImportance(("a", "b"), {"nlpd": 0.5}, {"nlpd": increases}).to_frame()
           nlpd  nlpd_std
        a   3.0       1.0
        b   0.1       0.1
        """
        import pandas as pd

        means, stds = self.importances_mean, self.importances_std
        table: dict[str, Array] = {}
        for score in means:
            table |= {score: means[score], f"{score}_std": stds[score]}
        return pd.DataFrame(table, index=list(self.columns))


def permutation_importance(
    model: Predictive,
    X: Array,
    y: Array,
    groups: Sequence[tuple[str, Index]],
    n_repeats: int,
    names: Sequence[str],
    rng: np.random.Generator,
) -> PermutationImportance:
    """Score predictions of rows in which one column at a time is shuffled.

    All scores come from the same predictions, and a repeat shuffles every column in the same way, so that columns can be compared.

    Parameters
    ----------
    model : Predictive
    X : ndarray of shape (n, n_inputs)
    y : ndarray of shape (n, n_outputs)
    groups : sequence of (str, ndarray of int)
        Columns, and the inputs that each of them became, which are shuffled together.
    n_repeats : int
    names : sequence of str
        Some of :data:`SCORES`.
    rng : Generator
    """
    if not names:
        raise InputError(f"expected one score or more, of {', '.join(SCORES)}, got none")
    for name in names:
        check_choice("scores", name, SCORES)

    def score(rows: Array) -> Array:
        distribution = model.mixture(rows, squeeze=False)
        return np.array([SCORES[name](y, distribution) for name in names])

    baseline = score(X)
    increases = np.empty((len(names), len(groups), n_repeats))
    for repeat in range(n_repeats):
        order = rng.permutation(len(X))
        for column, (_, inputs) in enumerate(groups):
            shuffled = X.copy()
            shuffled[:, inputs] = X[np.ix_(order, inputs)]
            increases[:, column, repeat] = score(shuffled) - baseline
    return PermutationImportance(
        columns=tuple(name for name, _ in groups),
        baseline=dict(zip(names, baseline.tolist(), strict=True)),
        importances=dict(zip(names, increases, strict=True)),
    )
