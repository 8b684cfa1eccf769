"""The verdict of a report: references by least squares, grades within what chance explains, remarks that matter."""

import numpy as np
import pytest

from dsmgp.data.columns.remarks import training_remarks
from dsmgp.data.columns.values import Values
from dsmgp.report.references import compare
from dsmgp.report.verdict import accuracy, calibration, reach, suspicions, training_rows


def test_references_are_the_mean_and_least_squares(rng):
    X, rows = rng.normal(size=(80, 3)), rng.normal(size=(30, 3))
    slopes = rng.normal(size=(3, 2))
    Y, observed = X @ slopes + rng.normal(size=(80, 2)), rows @ slopes + rng.normal(size=(30, 2))
    with_one = np.column_stack([X, np.ones(80)])
    solved = np.linalg.lstsq(with_one, Y, rcond=None)[0]
    predicted = np.column_stack([rows, np.ones(30)]) @ solved
    mean = rng.normal(size=(30, 2))
    for k, found in enumerate(compare(mean, rows, observed, X, Y)):

        def error(predictions, k=k):
            return np.sqrt(np.mean((observed[:, k] - predictions) ** 2))

        assert found.rmse == pytest.approx(error(mean[:, k]))
        assert found.linear == pytest.approx(error(predicted[:, k]))
        assert found.constant == pytest.approx(error(Y[:, k].mean()))


def test_a_column_that_is_constant_in_training_does_not_spoil_the_linear_model(rng):
    X = np.column_stack([rng.normal(size=50), np.ones(50)])
    y = X[:, :1]
    (found,) = compare(y, X, y, X, y)
    assert found.linear == pytest.approx(0.0, abs=1e-9)


def test_a_small_advantage_is_not_called_clear(rng):
    X, y = rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    close = np.full_like(y, y.mean()) + 1e-3 * rng.normal(size=y.shape)
    (found,) = compare(close, X, y, X, y)
    assert not found.beats_constant
    assert not found.beats_linear


def test_a_model_that_is_clearly_worse_than_a_line_is_told_so(rng):
    X = rng.normal(size=(60, 1))
    y = 3 * X + 0.1 * rng.normal(size=(60, 1))
    (found,) = compare(0.5 * y, X, y, X, y)
    assert found.beats_constant
    assert found.loses_to_linear
    assert accuracy(found).grade == "poor"
    assert accuracy(found).text.startswith("Clearly worse than a linear model: the RMSE is")


@pytest.mark.parametrize(("share", "grade"), [(0.9, "good"), (0.8, "poor"), (1.0, "fair")])
def test_calibration_is_graded(share, grade):
    assert calibration(share, 300).grade == grade


def test_calibration_allows_for_chance(rng):
    """Of calibrated models about one in twenty is called something else."""
    shares = rng.binomial(200, 0.9, size=2000) / 200
    grades = [calibration(share, 200).grade for share in shares]
    assert 0.9 < np.mean([grade == "good" for grade in grades]) < 0.99
    assert "too few to judge" in calibration(0.5, 10).text


def test_one_row_is_written_as_one():
    assert reach(0, 1, [], None).text == "The row lies within the range of the training data."
    assert reach(1, 1, ["a"], None).text.startswith("The row lies outside")
    assert reach(1, 300, ["a"], None).text.startswith("1 of 300 rows (less than 1%) lies outside")
    assert "(in a, b, c and 1 more)" in reach(9, 300, list("abcd"), None).text


def test_training_rows_are_counted():
    assert training_rows(0, 10) is None
    assert training_rows(1, 1).text.startswith("The row is a training row:")
    assert training_rows(1, 50).text.startswith("1 of 50 rows is a training row, which")
    assert training_rows(3, 50).grade == "poor"


def test_remarks_on_identifiers_and_copies_are_suspicious(rng):
    y = rng.normal(size=60)
    columns = {
        "id": Values.of_numbers(np.arange(60.0)),
        "copy": Values.of_numbers(3 * y + 1),
        "fine": Values.of_numbers(rng.normal(size=60)),
        "name": Values.of_texts([f"row {k}" for k in range(60)]),
    }
    remarks = training_remarks(columns, y[:, None], ["y"])
    found = suspicions(remarks)
    assert found.grade == "poor"
    for word in ("'id' numbers", "'copy' is nearly", "'name' has"):
        assert word in found.text
    assert "'fine'" not in found.text
