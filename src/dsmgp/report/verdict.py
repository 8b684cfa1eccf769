"""The verdict that a report begins with: how good predictions are, how well calibrated, how far from the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsmgp._util.significance import chance_range, interval_grade
from dsmgp.report.numbers import count, number
from dsmgp.report.references import Comparison

__all__ = ["Statement", "accuracy", "calibration", "reach", "suspicions", "training_rows"]

# Share of rows outside the training data from which scores say little about other rows.
MANY_OUTSIDE = 0.2
# Parts of remarks on columns and rows that may make a model look better than it is.
SUSPICIOUS = ("numbers the rows", "seems to name the rows", "nearly a copy")
# Share of training rows among the rows above which accuracy and calibration are not judged.
MANY_KNOWN = 0.05


@dataclass(frozen=True)
class Statement:
    """A statement of the verdict.

    Attributes
    ----------
    about : str
        Rows, accuracy, calibration, range or columns.
    grade : "good", "fair", "poor", or "not judged"
    text : str
    """

    about: str
    grade: str
    text: str


def training_rows(n_known: int, n_rows: int) -> Statement | None:
    """Return how many of the rows are training rows, by which a model cannot be judged; None if none is.

    Examples
    --------
    >>> training_rows(100, 100).text
    'All 100 rows are training rows: how the model does on new rows cannot be judged by them.'
    >>> training_rows(3, 100).text
    '3 of 100 rows are training rows, which makes the scores slightly too good.'
    """
    if not n_known:
        return None
    which = f"{n_known:,} of {count(n_rows, 'row')} {'is' if n_known == 1 else 'are'}"
    if n_known == n_rows:
        which = "The row is" if n_rows == 1 else f"All {count(n_rows, 'row')} are"
    which += " a training row" if n_known == 1 else " training rows"
    if n_known > MANY_KNOWN * n_rows:
        text = f"{which}: how the model does on new rows cannot be judged by them."
        return Statement("Rows", "poor", text)
    return Statement("Rows", "fair", f"{which}, which makes the scores slightly too good.")


def accuracy(comparison: Comparison, target: str = "") -> Statement:
    """Return how good predictions are beside a constant and a linear model.

    Examples
    --------
    >>> statement = accuracy(Comparison(0.2, 1.0, 0.5, True, True, False), "price")
    >>> print(statement.grade, statement.text, sep=": ")
    good: Clearly better than a linear model: the RMSE of price is 0.2, against 0.5 for a linear model and 1 for a constant.
    """
    if comparison.beats_constant and comparison.beats_linear:
        grade, words = "good", "Clearly better than a linear model"
    elif comparison.loses_to_linear:
        grade, words = "poor", "Clearly worse than a linear model"
    elif comparison.beats_constant:
        grade, words = "fair", "Better than a constant, but not clearly better than a linear model"
    else:
        grade, words = "poor", "Not clearly better than a constant"
    of_target = f" of {target}" if target else ""
    errors = (
        f"the RMSE{of_target} is {number(comparison.rmse)}, against {number(comparison.linear)} for a linear model "
        f"and {number(comparison.constant)} for a constant."
    )
    return Statement("Accuracy", grade, f"{words}: {errors}")


def calibration(coverage: float, n_rows: int, target: str = "") -> Statement:
    """Return whether 90% intervals cover as many rows as they should, within what chance explains.

    Examples
    --------
    >>> print(calibration(0.89, 400).text)
    Well calibrated: 90% intervals cover 89.0% of the rows, within the 87.1% to 92.9% that chance explains on 400 rows.
    >>> print(calibration(0.7, 400, "price").text)
    Too confident: 90% intervals of price cover only 70.0% of the rows; chance explains 87.1% to 92.9% on 400 rows.
    """
    of_target = f" of {target}" if target else ""
    covers = f"90% intervals{of_target} cover {{}}{coverage:.1%} of the rows"
    if (grade := interval_grade(coverage, n_rows)) == "few":
        text = f"{covers.format('')}. {count(n_rows, 'row')} are too few to judge."
        return Statement("Calibration", "fair", text)
    low, high = chance_range(n_rows)
    by_chance, rows = f"{low:.1%} to {high:.1%}", count(n_rows, "row")
    if grade == "calibrated":
        text = f"Well calibrated: {covers.format('')}, within the {by_chance} that chance explains on {rows}."
        return Statement("Calibration", "good", text)
    why = f"; chance explains {by_chance} on {rows}."
    if grade == "narrow":
        return Statement("Calibration", "poor", f"Too confident: {covers.format('only ')}{why}")
    return Statement("Calibration", "fair", f"Too cautious: {covers.format('')}{why}")


def reach(n_outside: int, n_rows: int, columns: Sequence[str], ratio: float | None) -> Statement:
    """Return how many rows lie outside the training data, and whether predictions there are less certain.

    Parameters
    ----------
    n_outside, n_rows : int
    columns : sequence of str
        Inputs whose training range is left.
    ratio : float, optional
        Median standard deviation of these rows relative to the others.

    Examples
    --------
    >>> reach(0, 50, [], None).text
    'All 50 rows lie within the range of the training data.'
    >>> print(reach(5, 50, ["age"], 3.0).text)
    5 of 50 rows (10%) lie outside the range of the training data (in age): the model extrapolates there. Predictive standard deviations there are 3 times those of the other rows.
    """
    if not n_outside:
        text = f"All {count(n_rows, 'row')} lie within the range of the training data."
        if n_rows == 1:
            text = "The row lies within the range of the training data."
        return Statement("Range", "good", text)
    share = n_outside / n_rows
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    named = ", ".join(columns[:3]) + f" and {len(columns) - 3} more" * (len(columns) > 3)
    which = (
        f"{n_outside:,} of {count(n_rows, 'row')} ({percent}) {'lies' if n_outside == 1 else 'lie'}"
    )
    if n_outside == n_rows:
        which = "The row lies" if n_rows == 1 else f"All {count(n_rows, 'row')} lie"
    text = f"{which} outside the range of the training data (in {named}): the model extrapolates there."
    if ratio is not None:
        text += (
            f" Predictive standard deviations there are {ratio:.2g} times those of the other rows"
        )
        text += "." if ratio > 1.5 else ", so they do not signal the extrapolation."
    return Statement("Range", "poor" if share > MANY_OUTSIDE else "fair", text)


def suspicions(remarks: Sequence[str]) -> Statement:
    """Return the columns that make a model look better than it is: identifiers, copies of the target.

    Examples
    --------
    >>> suspicions(["column 'id' numbers the rows; leave it out"]).text
    "Column 'id' numbers the rows; leave it out."
    >>> suspicions(["column 'size': 3 missing"]).text
    'No column looks like an identifier or a copy of the target.'
    """
    found = [remark for remark in remarks if any(part in remark for part in SUSPICIOUS)]
    if not found:
        return Statement(
            "Columns", "good", "No column looks like an identifier or a copy of the target."
        )
    sentences = " ".join(f"{remark[:1].upper()}{remark[1:]}." for remark in found)
    return Statement("Columns", "poor", sentences)
