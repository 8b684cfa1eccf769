"""A report on a fitted model and its predictions: one HTML file with its figures inside. Needs ``dsmgp[plots]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import ArrayLike

from dsmgp._util.atomic_write import atomic_write
from dsmgp.regressor import DSMGPRegressor
from dsmgp.report.evaluation import Evaluation
from dsmgp.report.numbers import count, number
from dsmgp.report.results import collect

__all__ = ["report_html", "write_report"]


def write_report(
    path: str | Path,
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    targets: Sequence[str] = ("y",),
    title: str = "",
) -> None:
    """Write :func:`report_html` to a file, completely or not at all.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, X[:, 0])
    >>> page = getfixture("tmp_path") / "report.html"
    >>> write_report(page, model, X, X[:, 0])
    >>> page.read_text().startswith("<!doctype html>")
    True
    """
    write_page(path, Evaluation.of(model, X, y, targets), title)


def report_html(
    model: DSMGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    targets: Sequence[str] = ("y",),
    title: str = "",
) -> str:
    """Return a page that works offline: a verdict, scores, calibration, residuals, importance of columns, least certain rows, remarks, settings.

    Parameters
    ----------
    model : DSMGPRegressor
        A fitted estimator.
    X, y : array-like or frame
        Rows on which it is evaluated, preferably not in the training set. Rows without a target are left out.
    targets : sequence of str
        Names of the outputs.
    title : str
        Heading of the page.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = DSMGPRegressor("rbf", max_iter=5, random_state=0).fit(X, X[:, 0])
    >>> "<title>A line</title>" in report_html(model, X, X[:, 0], title="A line")
    True
    """
    return page_html(Evaluation.of(model, X, y, targets), title)


def write_page(path: str | Path, evaluation: Evaluation, title: str) -> None:
    """Write the page of an evaluation to a file, completely or not at all."""
    page = page_html(evaluation, title).encode()
    atomic_write(path, lambda file: file.write(page))


def page_html(evaluation: Evaluation, title: str) -> str:
    """Return the page of an evaluation."""
    results = collect(evaluation, title)
    environment = Environment(
        loader=PackageLoader("dsmgp.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "count": count}
    environment.tests["numeric"] = _is_numeric
    return environment.get_template("report.html.j2").render(results)


def _is_numeric(text: str) -> bool:
    """Return whether a cell of a table holds a number, which is aligned to the right."""
    try:
        float(text.rstrip("%").replace(",", ""))
    except ValueError:
        return False
    return True
