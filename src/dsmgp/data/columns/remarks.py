"""Remarks on data and predictions that a user should look at: identifiers, leaks, constants, intervals beyond what is possible.

Each remark is a sentence with what to do. None is an error: only the user knows whether a column is known
when predictions are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.arrays import Array
from dsmgp.data.columns.values import Values

__all__ = [
    "evaluation_remarks",
    "n_training_rows",
    "prediction_remarks",
    "spread_rows",
    "training_remarks",
]

# Rows below which nothing is said that a few rows cannot show.
MIN_ROWS = 20
# Share of different texts from which a column identifies rows.
IDENTIFYING = 0.9
# Correlation with a target from which a column is nearly a copy, and the least number of distinct values on both sides.
COPY, MIN_DISTINCT = 0.9999, 10
# Share of rows with one value of a target that is worth a remark, and how many times as frequent as the next it is.
LARGE_SHARE, TIMES_NEXT = 0.2, 5
# Rows for which intervals are computed, which takes longer than means.
N_INTERVALS = 2000
# Rows by which a column is compared with a target.
N_COMPARED = 20_000
LEVEL = 0.9


def training_remarks(
    columns: Mapping[str, Values],
    Y: Array,
    target_names: Sequence[str],
    leave_out: Callable[[str], str] = lambda name: f"leave it out with --drop {name!r}",
    is_sample: bool = False,
) -> list[str]:
    """Return remarks on a training table.

    Parameters
    ----------
    columns : mapping of str to Values
        The columns that become inputs.
    Y : ndarray of shape (n, n_targets)
    target_names : sequence of str
    leave_out : callable
        Says how a column of some name is left out.
    is_sample : bool
        Whether there are further rows: nothing is said then that other rows may contradict.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=40)
    >>> columns = {"id": Values.of_numbers(np.arange(40.0)), "x": Values.of_numbers(x)}
    >>> for remark in training_remarks(columns, x[:, None] ** 2, ["y"]):
    ...     print(remark)
    column 'id' numbers the rows; if it is an identifier rather than a time or a place, leave it out with --drop 'id'
    """
    targets = [(name, np.asarray(y, np.float64)) for name, y in zip(target_names, Y.T, strict=True)]
    remarks: list[str] = []
    for name, values in columns.items():
        remedy = leave_out(name)
        about = [] if is_sample else [*_constant(name, values, remedy)]
        about = about or [*_identifier(name, values, len(columns), remedy)]
        remarks += about or ([] if is_sample else [*_rare_levels(name, values)])
        if values.kind != "category":
            remarks += _copies(name, values, targets, remedy)
    for name, y in targets:
        about = [] if is_sample else [*_flag(name, y)]
        remarks += about or [*_frequent_value(name, y)]
    return remarks


def prediction_remarks(
    distribution: Any, Y_train: Array, target_names: Sequence[str] | None = None
) -> list[str]:
    """Return remarks on predictive distributions, whose intervals may reach beyond what the training targets suggest is possible.

    Parameters
    ----------
    distribution : Mixture
        Of n rows; intervals are computed for some of them.
    Y_train : ndarray of shape (n_train, n_targets)
    target_names : sequence of str, optional
        y, or y0, y1, ..., if left out.
    """
    n, n_targets = len(distribution), Y_train.shape[1]
    if n == 0:
        return []
    names = target_names or (["y"] if n_targets == 1 else [f"y{k}" for k in range(n_targets)])
    rows = spread_rows(n, N_INTERVALS)
    ends = distribution[rows].interval(LEVEL)
    low, high = (end.reshape(len(rows), n_targets) for end in ends)
    remarks = []
    for k, name in enumerate(names):
        if _is_flag(Y_train[:, k]):  # its remark says to ignore the intervals
            continue
        least, largest = Y_train[:, k].min(), Y_train[:, k].max()
        below, above = np.mean(low[:, k] < 0), np.mean(high[:, k] > 1)
        if least >= 0 and below > 0:
            remedy = (
                'fit with output_warp="positive" (--output-warp positive)'
                if least > 0
                else "cut intervals off at 0"
            )
            remarks.append(
                f"target {name!r} is never negative in the training rows, but the {LEVEL:.0%} interval begins below 0 in "
                f"{_percent(below)} of the rows; {remedy}"
            )
        if least >= 0 and largest <= 1 and above > 0:
            remarks.append(
                f"target {name!r} lies between 0 and 1 in the training rows, but the {LEVEL:.0%} interval ends above 1 in "
                f"{_percent(above)} of the rows; cut intervals off at 1"
            )
    return remarks


def evaluation_remarks(
    X: Array, Y: Array, X_train: Array, Y_train: Array, not_compared: Sequence[str] = ()
) -> list[str]:
    """Return remarks on rows by which a model is evaluated: those that it was trained on flatter it.

    Parameters
    ----------
    X, X_train : ndarray of shape (n, n_inputs) and (n_train, n_inputs)
    Y, Y_train : ndarray of shape (n, n_targets) and (n_train, n_targets)
    not_compared : sequence of str
        Columns that have no input among those of X. Without any input nothing is said.

    Examples
    --------
    >>> X = np.arange(6.0)[:, None]
    >>> print(*evaluation_remarks(X[:4], X[:4], X[2:], X[2:]))
    2 of 4 rows are training rows (equal in all inputs and targets), which makes the scores too good; evaluate on rows that the model has not seen
    """
    n_known = n_training_rows(X, Y, X_train, Y_train)
    if not n_known:
        return []
    which = "all" if n_known == len(X) else f"{n_known:,} of"
    verb = "is a training row" if len(X) == 1 else "are training rows"
    equal = "all inputs and targets"
    if not_compared:
        equal = f"targets and in all inputs but {', '.join(map(repr, not_compared))}"
    return [
        f"{which} {len(X):,} row{'s' * (len(X) != 1)} {verb} (equal in {equal}), which makes the scores too good; "
        "evaluate on rows that the model has not seen"
    ]


def n_training_rows(X: Array, Y: Array, X_train: Array, Y_train: Array) -> int:
    """Return how many rows are training rows, by inputs and targets; 0 if there are no inputs to compare.

    Examples
    --------
    >>> X = np.arange(6.0)[:, None]
    >>> n_training_rows(X[:4], X[:4], X[2:], X[2:])
    2
    """
    return _n_common(_row_bits(X, Y), _row_bits(X_train, Y_train)) if X.shape[1] else 0


def _constant(name: str, values: Values, remedy: str) -> Iterator[str]:
    present = values.data[~values.missing]
    if not len(present):
        yield f"column {name!r} has no values; {remedy}"
    elif len(present) > 1 and (present == present[0]).all():
        every = "every row" if len(present) == len(values) else "every row that has one"
        yield f"column {name!r} has the same value in {every} and explains nothing; {remedy}"


def _identifier(name: str, values: Values, n_columns: int, remedy: str) -> Iterator[str]:
    """Yield a remark on a column that numbers or names the rows; the only input of a table may well be a time."""
    present = values.data[~values.missing]
    if len(present) < MIN_ROWS:
        return
    if values.kind == "category":
        if len(values.levels) >= IDENTIFYING * len(present):
            yield (
                f"column {name!r} has {len(values.levels):,} different texts in {len(present):,} rows and seems to name the rows; "
                f"{remedy}"
            )
        return
    counts_up = (present == np.floor(present)).all() if values.kind == "number" else False
    if counts_up and n_columns > 1 and (np.diff(present) > 0).all():
        yield (
            f"column {name!r} numbers the rows; if it is an identifier rather than a time or a place, {remedy}"
        )


def _rare_levels(name: str, values: Values) -> Iterator[str]:
    if values.kind != "category" or len(values) < MIN_ROWS:
        return
    n_single = int((np.bincount(values.data[~values.missing]) == 1).sum())
    if n_single:
        yield (
            f"column {name!r}: {n_single} of {len(values.levels)} levels occur in one row only, so that their predictions rest on "
            "that row; merge rare levels into one"
        )


def _copies(
    name: str, values: Values, targets: Sequence[tuple[str, Array]], remedy: str
) -> Iterator[str]:
    """Yield a remark for each target that the column follows too well, up to units or a monotone function."""
    rows = spread_rows(len(values), N_COMPARED)
    present = ~values.missing[rows]
    x = values.data[rows][present].astype(np.float64)
    for target, outputs in targets:
        y = outputs[rows][present]
        if min(len(np.unique(x)), len(np.unique(y))) < MIN_DISTINCT:
            continue
        linear, ranks = abs(_correlation(x, y)), abs(_correlation(_ranks(x), _ranks(y)))
        if max(linear, ranks) > COPY:
            yield (
                f"column {name!r} is nearly a copy of the target {target!r} (correlation {max(linear, ranks):.5f}); if it is not "
                f"known when predictions are made, {remedy}"
            )


def _correlation(x: Array, y: Array) -> float:
    x, y = _centred(x), _centred(y)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def _centred(x: Array) -> Array:
    """Return values of mean 0, at most 1 in magnitude: squares of huge or tiny ones are out of range."""
    x = x / np.abs(x).max()
    x = x - x.mean()
    return x / np.abs(x).max()


def _ranks(values: Array) -> Array:
    """Return the ranks; those of equal values are averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - 0.5 * (counts - 1))[inverse]


def _is_flag(y: Array) -> bool:
    return len(y) > 1 and np.array_equal(np.unique(y), [0.0, 1.0])


def _flag(name: str, y: Array) -> Iterator[str]:
    if _is_flag(y):
        yield (
            f"target {name!r} has the values 0 and 1 only and is predicted as a number: read the mean as the probability of a 1, and "
            "ignore the intervals"
        )


def _frequent_value(name: str, y: Array) -> Iterator[str]:
    """Yield a remark on a target of which one value stands out, such as the 0 of days without rain."""
    if len(y) < MIN_ROWS:
        return
    values, counts = np.unique(y, return_counts=True)
    if len(values) == 1:
        yield f"target {name!r} has the same value in every row; there is nothing to predict"
        return
    *_, following, most = np.sort(counts)
    if most > LARGE_SHARE * len(y) and most >= TIMES_NEXT * following:
        value, share = values[counts.argmax()], _percent(most / len(y))
        yield (
            f"target {name!r} is {value:g} in {share} of the rows, which no smooth density describes well; consider one model for "
            f"whether it is {value:g} and another for the other rows"
        )


def _row_bits(X: Array, Y: Array) -> NDArray[np.uint64]:
    """Return the bits of all numbers of each row, equal for equal rows."""
    rows = np.ascontiguousarray(np.column_stack([X, Y]).astype(np.float64) + 0.0)  # -0.0 is 0.0
    rows[np.isnan(rows)] = np.nan  # one of the many
    return rows.view(np.uint64)


def _n_common(rows: NDArray[np.uint64], others: NDArray[np.uint64]) -> int:
    """Return how many rows are among others; whole rows are compared only where their hashes are equal."""
    hashes, other_hashes = _hashes(rows), _hashes(others)
    rows = rows[np.isin(hashes, other_hashes)]
    others = others[np.isin(other_hashes, hashes)]
    known = {row.tobytes() for row in others}
    return sum(row.tobytes() in known for row in rows)


def _hashes(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each row (FNV-1a of its 64-bit words)."""
    hashes = np.full(len(rows), 0xCBF29CE484222325, dtype=np.uint64)
    for word in rows.T:
        # Low bits of most floats are 0: the high ones are folded in.
        hashes = (hashes ^ word ^ (word >> np.uint64(32))) * np.uint64(0x100000001B3)
    return hashes


def spread_rows(n: int, most: int) -> NDArray[np.int64]:
    """Return the numbers of at most ``most`` of n rows, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def _percent(share: float) -> str:
    return "less than 1%" if 0 < share < 0.01 else f"{share:.0%}"
