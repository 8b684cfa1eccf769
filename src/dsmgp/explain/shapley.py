"""Shapley values of predictive means and standard deviations, column by column of the user's table.

The worth of a set S of columns, at a row x, is the average prediction of rows that have the columns of S from x and the others
from a background row: the marginal (interventional) expectation. The Shapley value of a column is what it adds to that, averaged
over all orders in which columns can be added. With few columns all sets are evaluated; with more, orders are sampled for each
background row, each together with its reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import factorial

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array, Index
from dsmgp.explain.explanation import Explanation
from dsmgp.mixture.fitted_model import Predictive

__all__ = ["random_rows", "shapley_values"]

# Columns up to which all of their sets are evaluated: 254 times as many rows as there are in the background.
EXACT_COLUMNS = 8
# Numbers in the rows that are predicted at once, and predictions that are held at once.
AT_ONCE = 2**22

Mask = NDArray[np.bool_]


def shapley_values(
    model: Predictive,
    X: Array,
    background: Array,
    groups: Sequence[tuple[str, Index]],
    n_samples: int,
    rng: np.random.Generator,
    include_noise: bool = True,
    output_names: Sequence[str] = ("y",),
    squeeze: bool = True,
) -> Explanation:
    """Compute the Shapley values of the predictions at rows.

    Parameters
    ----------
    model : Predictive
    X : ndarray of shape (n, n_inputs)
    background : ndarray of shape (n_background, n_inputs)
    groups : sequence of (str, ndarray of int)
        Columns, and the inputs that each of them became.
    n_samples : int
        Orders of the columns for each background row, where not all sets are evaluated; at least four, and made even.
    rng : Generator
    include_noise : bool
        Whether standard deviations are those of y or of f.
    output_names : sequence of str
    squeeze : bool
        Whether to leave out the axis of the outputs, of which there is one.
    """
    n_columns = len(groups)
    column_of_input = np.empty(X.shape[1], dtype=np.int64)
    for number, (_, inputs) in enumerate(groups):
        column_of_input[inputs] = number
    predictions = _Predictions(model, background, column_of_input, include_noise)
    method: _Exact | _Sampled
    if n_columns <= EXACT_COLUMNS:
        method = _Exact(n_columns, len(background))
    else:
        method = _Sampled(n_columns, len(background), (n_samples + 1) // 2, rng)
    values = np.empty((len(X), n_columns, 2, predictions.n_outputs))
    errors = np.zeros_like(values)
    step = max(1, AT_ONCE // max(1, method.n_mixed * 2 * predictions.n_outputs))
    for first in range(0, len(X), step):
        rows = slice(first, first + step)
        mixed = predictions.of_mixed_rows(X[rows], method)
        values[rows], errors[rows] = method.combine(
            predictions.of_rows(X[rows]), mixed, predictions.of_background
        )
    base = predictions.of_background.mean(axis=0)  # (2, n_outputs)
    if squeeze:
        values, errors, base = values[..., 0], errors[..., 0], base[..., 0]
    mean_base, std_base = base.tolist() if squeeze else base
    exact = isinstance(method, _Exact)
    return Explanation(
        columns=tuple(name for name, _ in groups),
        mean_values=values[:, :, 0],
        std_values=values[:, :, 1],
        mean_base=mean_base,
        std_base=std_base,
        mean_values_error=None if exact else errors[:, :, 0],
        std_values_error=None if exact else errors[:, :, 1],
        output_names=tuple(output_names),
    )


def random_rows(X: Array, n_rows: int, rng: np.random.Generator) -> Array:
    """Draw rows for the background, in their order; all of them where there are no more."""
    chosen = rng.choice(len(X), min(n_rows, len(X)), replace=False)
    return np.asarray(X[np.sort(chosen)])


class _Predictions:
    """Means and standard deviations (axis of length 2) of rows that have some columns from a background row."""

    def __init__(
        self, model: Predictive, background: Array, column_of_input: Index, include_noise: bool
    ) -> None:
        self._model, self._background = model, background
        self._column_of_input, self._include_noise = column_of_input, include_noise
        self.n_outputs = model.outputs.n_outputs
        self.of_background = self.of_rows(background)

    def of_rows(self, rows: Array) -> Array:
        """Predict rows as they are, (n, 2, n_outputs)."""
        return np.stack(self._model.moments(rows, self._include_noise), axis=1)

    def of_mixed_rows(self, X: Array, method: _Exact | _Sampled) -> Array:
        """Predict all mixed rows of each row of X, (n, n_mixed, 2, n_outputs)."""
        n, n_mixed = len(X), method.n_mixed
        predicted = np.empty((n * n_mixed, 2, self.n_outputs))
        for block in self._blocks(n * n_mixed):
            row, number = np.divmod(np.arange(block.start, block.stop), n_mixed)
            columns, background_row = method.mixed(number)
            from_row = columns[:, self._column_of_input]
            rows = np.where(from_row, X[row], self._background[background_row])
            predicted[block] = self.of_rows(rows)
        return predicted.reshape(n, n_mixed, 2, self.n_outputs)

    def _blocks(self, n_rows: int) -> Iterator[slice]:
        """Yield slices of rows that fit in memory."""
        step = max(1, AT_ONCE // len(self._column_of_input))
        for first in range(0, n_rows, step):
            yield slice(first, min(first + step, n_rows))


class _Exact:
    """Evaluate all sets of columns with every background row."""

    def __init__(self, n_columns: int, n_background: int) -> None:
        self._n_background = n_background
        all_sets = (np.arange(2**n_columns)[:, None] >> np.arange(n_columns)) & 1 == 1
        sizes = all_sets.sum(axis=1)
        # Weight of a set with the column, and (negative) of one without: the share of orders in which it arises.
        share = [
            factorial(k) * factorial(n_columns - k - 1) / factorial(n_columns)
            for k in range(n_columns)
        ]
        with_column = np.array([0.0, *share])[sizes][:, None]
        without = np.array([*share, 0.0])[sizes][:, None]
        self._weights = np.where(all_sets, with_column, -without)  # (n_sets, n_columns)
        self._inner_sets = all_sets[1:-1]
        self.n_mixed = len(self._inner_sets) * n_background

    def mixed(self, numbers: Index) -> tuple[Mask, Index]:
        """Return which columns of mixed rows come from the row itself, and the background row of the others."""
        chosen, background_row = np.divmod(numbers, self._n_background)
        return self._inner_sets[chosen], background_row

    def combine(
        self, at_rows: Array, mixed: Array, of_background: Array
    ) -> tuple[Array, Array | float]:
        """Return the values, (n, n_columns, 2, n_outputs), and their standard errors."""
        n, n_sets = len(at_rows), len(self._weights)
        worth = np.empty((n, n_sets, *at_rows.shape[1:]))
        worth[:, 0], worth[:, -1] = of_background.mean(axis=0), at_rows
        by_set = (n, n_sets - 2, self._n_background, *at_rows.shape[1:])
        worth[:, 1:-1] = mixed.reshape(by_set).mean(axis=2)
        return np.einsum("sc,ns...->nc...", self._weights, worth), 0.0


class _Sampled:
    """Add columns in random orders, each also in reverse, starting from every background row equally often.

    What columns add along one order sums to the prediction less that of the background row, so values sum to what they should.
    """

    def __init__(
        self, n_columns: int, n_background: int, n_pairs: int, rng: np.random.Generator
    ) -> None:
        shape = (n_background, n_pairs, n_columns)
        forward = rng.permuted(np.broadcast_to(np.arange(n_columns), shape), axis=-1)
        orders = np.stack([forward, forward[..., ::-1]], axis=2)
        self._shape = orders.shape  # (n_background, n_pairs, 2, n_columns)
        # At which place of an order each column is added.
        self._place = np.argsort(orders, axis=-1)
        self.n_mixed = orders[..., 1:].size

    def mixed(self, numbers: Index) -> tuple[Mask, Index]:
        """Return which columns of mixed rows come from the row itself, and the background row of the others."""
        _, n_pairs, _, n_columns = self._shape
        order, step = np.divmod(numbers, n_columns - 1)
        there = self._place.reshape(-1, n_columns)[order] <= step[:, None]
        return there, order // (2 * n_pairs)

    def combine(
        self, at_rows: Array, mixed: Array, of_background: Array
    ) -> tuple[Array, Array | float]:
        """Return the values, (n, n_columns, 2, n_outputs), and their standard errors."""
        n_background, n_pairs, _, n_columns = self._shape
        values, errors = np.empty((2, len(at_rows), n_columns, *at_rows.shape[1:]))
        for row in range(len(at_rows)):
            path = np.empty((*self._shape[:3], n_columns + 1, *at_rows.shape[1:]))
            path[..., 0, :, :] = of_background[:, None, None]
            path[..., 1:-1, :, :] = mixed[row].reshape(
                *self._shape[:3], n_columns - 1, *at_rows.shape[1:]
            )
            path[..., -1, :, :] = at_rows[row]
            steps = np.diff(path, axis=3)
            added = np.take_along_axis(steps, self._place[..., None, None], axis=3)
            pairs = added.mean(axis=2)  # (n_background, n_pairs, n_columns, 2, n_outputs)
            values[row] = pairs.mean(axis=(0, 1))
            # Background rows are strata: only what differs between orders from the same row is an error.
            variance = pairs.var(axis=1, ddof=1).sum(axis=0) / n_pairs
            errors[row] = np.sqrt(variance) / n_background
        return values, errors
