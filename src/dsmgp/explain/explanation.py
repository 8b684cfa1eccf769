"""The result of an explanation: Shapley values of predictive means and standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array

__all__ = ["Explanation"]

# Rows, and columns of each, that the text shows at most.
MOST_ROWS, MOST_COLUMNS = 3, 12


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Shapley values: what each column adds to the predictions of some rows, beside the average over a background.

    For each row, ``mean_base`` plus the sum of its ``mean_values`` is the predictive mean, and so for the standard deviation.
    Arrays of several outputs have an axis for them at the end; a base is then an array of shape (n_outputs,).

    Attributes
    ----------
    columns : tuple of str
        Columns of the user's table.
    mean_values, std_values : ndarray of shape (n, n_columns) or (n, n_columns, n_outputs)
        Shapley values of the predictive mean and of the predictive standard deviation.
    mean_base, std_base : float or ndarray of shape (n_outputs,)
        Averages of both over the background rows.
    mean_values_error, std_values_error : ndarray of the shape of the values, or None
        Standard errors of the values where permutations were sampled; None where the values are exact.
    output_names : tuple of str

    Examples
    --------
    >>> import numpy as np
    >>> from dsmgp import DSMGPRegressor
    >>> X = np.random.default_rng(0).uniform(size=(100, 2))
    >>> model = DSMGPRegressor("rbf", random_state=0).fit(X, 10 * X[:, 0])
    >>> explanation = model.explain([[1.0, 0.5]])
    >>> explanation.columns, explanation.mean_values.round(1) + 0.0
    (('x0', 'x1'), array([[4.5, 0. ]]))
    >>> total = explanation.mean_base + explanation.mean_values.sum(axis=1)
    >>> bool(np.allclose(total, model.predict([[1.0, 0.5]])))
    True
    >>> explanation.mean_values_error is None  # with few columns values are exact
    True
    """

    columns: tuple[str, ...]
    mean_values: Array
    std_values: Array
    mean_base: float | Array
    std_base: float | Array
    mean_values_error: Array | None = None
    std_values_error: Array | None = None
    output_names: tuple[str, ...] = ("y",)

    def __len__(self) -> int:
        return len(self.mean_values)

    def __repr__(self) -> str:
        """A table for each of the first rows, with the columns that move its mean most."""
        kind = "exact" if self.mean_values_error is None else "by sampled permutations"
        lines = [f"Shapley values of {_count(len(self), 'row')}, {kind}"]
        for row in range(min(len(self), MOST_ROWS)):
            for output, name in enumerate(self.output_names):
                title = f"row {row}" + f", {name}" * (len(self.output_names) > 1)
                lines += ["", *self._lines(row, output, title)]
        if len(self) > MOST_ROWS:
            lines += ["", f"and {_count(len(self) - MOST_ROWS, 'more row')}"]
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """Return a frame of pandas with a line for each row and column.

        Columns of the frame are ``row`` (its position), ``column``, with several outputs ``output``, the Shapley values ``mean``
        and ``std``, and, where they were sampled, their standard errors ``mean_error`` and ``std_error``.

        Examples
        --------
        >>> values = np.array([[1.0, -0.5]])
        >>> Explanation(("a", "b"), values, 0.1 * values, 3.0, 1.0).to_frame()
           row column  mean   std
        0    0      a   1.0  0.10
        1    0      b  -0.5 -0.05
        """
        import pandas as pd

        shape = (len(self), len(self.columns), len(self.output_names))
        row, column, output = (index.ravel() for index in np.indices(shape))
        table: dict[str, Any] = {"row": row, "column": np.array(self.columns, dtype=object)[column]}
        if len(self.output_names) > 1:
            table["output"] = np.array(self.output_names, dtype=object)[output]
        table |= {"mean": self.mean_values.ravel(), "std": self.std_values.ravel()}
        if self.mean_values_error is not None and self.std_values_error is not None:
            table["mean_error"] = self.mean_values_error.ravel()
            table["std_error"] = self.std_values_error.ravel()
        return pd.DataFrame(table)

    def _lines(self, row: int, output: int, title: str) -> list[str]:
        """Describe one prediction of one output."""
        shape = (len(self), len(self.columns), len(self.output_names))
        tables = [
            values.reshape(shape)[row, :, output] for values in (self.mean_values, self.std_values)
        ]
        bases = [float(np.ravel(base)[output]) for base in (self.mean_base, self.std_base)]
        order = np.argsort(-np.abs(tables[0]), kind="stable")
        shown, rest = order[:MOST_COLUMNS], order[MOST_COLUMNS:]
        names = ["average", *(self.columns[k] for k in shown), "prediction"]
        texts = [
            _aligned([base, *table[shown], table[rest].sum(), base + table.sum()])
            for base, table in zip(bases, tables, strict=True)
        ]
        if len(rest):
            names.insert(-1, _count(len(rest), "other column"))
        else:
            texts = [[*text[:-2], text[-1]] for text in texts]
        width = max(map(len, names))
        return [
            f"{title:<{width + 2}} {'mean':>12} {'std':>12}",
            *(
                f"  {name:<{width}} {mean:>12} {std:>12}"
                for name, mean, std in zip(names, *texts, strict=True)
            ),
        ]


def _aligned(numbers: list[float]) -> list[str]:
    """Write the first and last number plainly and what is added in between with its sign, all to the same decimal place."""
    largest = max(map(abs, numbers))
    form = ".4g"
    if 1e-4 <= largest < 1e7:
        form = f".{max(0, 3 - int(np.floor(np.log10(largest))))}f"
    signs = ["", *["+"] * (len(numbers) - 2), ""]
    return [f"{number:{sign}{form}}" for number, sign in zip(numbers, signs, strict=True)]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
