"""Warnings name the line of the user's own code, and are shown once for each line."""

import ast
import inspect
import warnings
from pathlib import Path

import numpy as np
import pytest

import dsmgp
from dsmgp import ChangePoints, DSMGPRegressor, FactorisationWarning
from dsmgp._util.warnings import warn_user
from dsmgp.linalg.device_memory import within_memory

SOURCE = Path(dsmgp.__file__).parent
# Distinct, and closer than the covariance can tell.
CLOSE = np.repeat(np.linspace(-1, 1, 3)[:, None], 20, axis=0) + 1e-12 * np.arange(60)[:, None]


def fitted(n_rows=60):
    model = DSMGPRegressor("rbf", noise_variance=1e-18, optimizer=None)
    return model.fit(CLOSE[:n_rows], CLOSE[:n_rows, 0])


def caught(action, work):
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        work()
    return found


def test_a_line_of_the_user_is_warned_once_and_by_its_number():
    def work():
        for n in (60, 59, 58):  # whose messages differ
            fitted(n)

    (found,) = caught("default", work)
    assert found.category is FactorisationWarning
    assert found.filename == __file__
    lines, start = inspect.getsourcelines(fitted)
    assert start <= found.lineno < start + len(lines)
    assert "return model.fit" in lines[found.lineno - start]


@pytest.mark.parametrize(("action", "n"), [("always", 3), ("ignore", 0)])
def test_filters_decide(action, n):
    assert len(caught(action, lambda: [fitted() for _ in range(3)])) == n
    with warnings.catch_warnings():
        warnings.simplefilter("error", FactorisationWarning)
        with pytest.raises(FactorisationWarning):
            fitted()


def test_filters_may_name_message_module_or_line():
    def work():
        for _ in range(2):
            warn_user("rows are odd")

    for names in ({"message": "rows"}, {"module": __name__}, {"category": UserWarning}):
        with warnings.catch_warnings(record=True) as found:
            warnings.resetwarnings()
            warnings.filterwarnings("always", **names)
            work()
        assert len(found) == 2
    assert len(caught("default", work)) == 1


def test_two_lines_are_warned_each():
    model = DSMGPRegressor("rbf", noise_variance=1e-18, optimizer=None)

    def work():
        model.fit(CLOSE, CLOSE[:, 0])
        model.fit(CLOSE, CLOSE[:, 0])

    assert len({found.lineno for found in caught("default", work)}) == 2


def test_other_warnings_name_the_user_too():
    X = np.linspace(0, 1, 60)[:, None]
    y = np.sin(9 * X[:, 0])
    model = DSMGPRegressor(
        "rbf", structure=ChangePoints(), leaf_size=10, optimizer=None, noise_variance=0.1
    )
    found = caught("always", lambda: model.fit(X, y))
    assert [w.filename for w in found if "leaf_size" in str(w.message)] == [__file__]


def test_a_shortage_of_a_gpus_memory_names_the_user():
    torch = pytest.importorskip("torch")
    tries = iter([torch.OutOfMemoryError("too large"), None])

    def work():
        error = next(tries)
        if error is not None:
            raise error

    (found,) = caught("always", lambda: within_memory(work, lambda: True))
    assert found.filename == __file__


def test_the_library_warns_in_no_other_way():
    """Any other place would be counted from inside, and change with the code."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                raise AssertionError(f"{path.name}:{node.lineno} warns without a place")
