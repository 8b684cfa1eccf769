"""The results that a report shows, as plain values: the template ``report.html.j2`` turns them into a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_consistent_length

from dsmgp import __version__
from dsmgp._util.arrays import Array
from dsmgp._util.dates import format_day, format_position
from dsmgp.data.frames import taken
from dsmgp.data.input_schema import target_numbers
from dsmgp.data.unknown_inputs import mixture_at
from dsmgp.mixture.distribution import Mixture
from dsmgp.regressor import DSMGPRegressor
from dsmgp.report.figures import (
    MAX_DRAWN,
    calibration_figures,
    change_figures,
    relevance_figures,
    residual_figures,
    split_figures,
)
from dsmgp.scores import joint_nlpd, score_each
from dsmgp.tree.nodes import leaves

__all__ = ["Evaluation", "collect", "number"]

# Rows in the table of the least certain predictions.
MAX_UNCERTAIN = 10
# Least number of rows for which a twentieth of them is a meaningful share.
MIN_RANKED = 20
# Least probability of a change point that is listed, and the most that are listed.
LIKELY, MAX_CHANGES = 0.5, 50
# Expected number of splits below which an input is not drawn.
FEW_SPLITS = 1e-3


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
    """

    model: DSMGPRegressor
    X: ArrayLike
    rows: Array
    observed: Array
    y: Array
    distribution: Mixture
    uncertainty: Array
    names: list[str]
    targets: list[str]
    remarks: list[str]

    @classmethod
    def of(
        cls,
        model: DSMGPRegressor,
        X: ArrayLike,
        y: ArrayLike,
        targets: Sequence[str],
        remarks: Sequence[str] = (),
    ) -> Evaluation:
        """Predict the rows of X that have a target.

        Parameters
        ----------
        model : DSMGPRegressor
        X, y : array-like or frame
        targets : sequence of str
        remarks : sequence of str
            On how the rows were read.
        """
        state = model.state_
        observed, _ = target_numbers(y)
        if observed.shape[1] != len(targets):
            raise ValueError(
                f"expected a name for each of {observed.shape[1]} outputs, got {list(targets)}"
            )
        check_consistent_length(X, observed)
        said = list(remarks)
        known = np.flatnonzero(~np.isnan(observed).any(axis=1))
        n_left_out = len(observed) - len(known)
        if not len(known):
            raise ValueError("expected rows with a target, got none")
        if n_left_out:
            said.append(f"{n_left_out} row{'s' * (n_left_out > 1)} without a target left out")
            X, observed = taken(X, known), observed[known]
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
        )

    def input_text(self, dimension: int, value: float) -> str:
        """Return a value of an input as text: a number or a date."""
        dates = self.model.state_.schema.displayed_dates.get(dimension)
        return number(value) if dates is None else format_day(value, dates)


def collect(evaluation: Evaluation, title: str) -> dict[str, Any]:
    """Return everything that the page shows, by the names that the template uses."""
    changes_or_splits = (
        _changes(evaluation)
        if evaluation.model.state_.model.change_dimension is not None
        else _splits(evaluation)
    )
    parameters = evaluation.model.get_params(deep=False)
    return {
        "title": title or f"Report on {', '.join(evaluation.targets)}",
        "version": __version__,
        "data": _data(evaluation),
        "remarks": {
            "training": list(evaluation.model.state_.schema.remarks),
            "here": evaluation.remarks,
        },
        "model": _model(evaluation.model),
        "targets": _targets(evaluation),
        "joint_nlpd": joint_nlpd(evaluation.y, evaluation.distribution),
        "residual_figures": residual_figures(evaluation),
        "calibration_figures": calibration_figures(evaluation),
        "relevance_figures": relevance_figures(evaluation),
        "uncertain": _uncertain(evaluation),
        **changes_or_splits,
        "settings": [(name, str(value)) for name, value in parameters.items()],
    }


def _data(evaluation: Evaluation) -> dict[str, Any]:
    """Return the ranges of all columns in training and evaluation rows, and how far rows lie outside."""
    training, columns = evaluation.model.state_.rows, evaluation.model.state_.schema.columns.columns
    train, outputs, rows = training.X, training.Y, evaluation.rows
    outside = evaluation.distribution.outside > 0
    return {
        "n_train": len(train),
        "n_inputs": len(evaluation.names),
        "n_rows": len(rows),
        "outside": float(outside.mean()),
        "outside_ratio": _ratio(evaluation.uncertainty, outside),
        "ranges": [_column_cells(evaluation, k) for k in range(len(columns))]
        + [
            [name, *map(number, _ranges(outputs, evaluation.observed, k))]
            for k, name in enumerate(evaluation.targets)
        ],
    }


def _column_cells(evaluation: Evaluation, place: int) -> list[str]:
    """Return the name of a column and its ranges; of a category, its levels in training."""
    state = evaluation.model.state_
    column = state.schema.columns.columns[place]
    if column.kind == "category":
        return [column.name, f"{len(column.levels)} levels", *[""] * 5]
    k = int(state.schema.groups[place][1][0])
    ranges = _ranges(state.rows.X, evaluation.rows, k)
    return [column.name, *(evaluation.input_text(k, value) for value in ranges)]


def _ranges(train: Array, rows: Array, column: int) -> list[float]:
    """Return minimum, median and maximum of a column in training and evaluation rows."""
    statistics = (np.min, np.median, np.max)
    return [float(f(values[:, column])) for values in (train, rows) for f in statistics]


def _ratio(uncertainty: Array, chosen: NDArray[np.bool_]) -> float | None:
    """Return the median uncertainty of the chosen rows relative to the others, where that exists."""
    if chosen.all() or not chosen.any():
        return None
    others = float(np.median(uncertainty[~chosen]))
    return float(np.median(uncertainty[chosen])) / others if others > 0 else None


def _model(model: DSMGPRegressor) -> dict[str, Any]:
    """Return kernels, summary and, of a mixture, its leaves and leave-one-out scores."""
    fitted = model.state_.model
    described = {
        "kernels": list(dict.fromkeys(family.kernel for family in fitted.families)),
        "summary": model.summary(),
    }
    if fitted.change_dimension is not None:
        return described
    sizes = [leaf.n_rows for leaf in leaves(model.tree_)]
    return described | {
        "n_leaves": len(sizes),
        "min_rows": min(sizes),
        "max_rows": max(sizes),
        "weights": fitted.weights,
        "score_kind": "leave-one-out" if model.state_.stacking is None else "cross-validated",
        "loo": model.loo_score_,
        "loo_new_inputs": model.loo_score_new_inputs_,
    }


def _targets(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return scores and calibration of every target."""
    baseline = evaluation.model.state_.rows.Y.mean(axis=0)
    scores = score_each(evaluation.y, evaluation.distribution, baseline)
    margin = 1.96 * np.sqrt(0.09 / len(evaluation.rows))  # of the coverage of a calibrated model
    return [
        {
            "name": name,
            "scores": values,
            "std": float(evaluation.observed[:, k].std()),
            "calibration": "good"
            if abs(values["coverage_90"] - 0.9) <= margin
            else "narrow"
            if values["coverage_90"] < 0.9
            else "wide",
        }
        for k, (name, values) in enumerate(zip(evaluation.targets, scores, strict=True))
    ]


def _uncertain(evaluation: Evaluation) -> dict[str, Any]:
    """Return the least certain rows, and how much less certain than the median they are."""
    uncertainty, n_rows = evaluation.uncertainty, len(evaluation.rows)
    low, high = (end.reshape(n_rows, -1) for end in evaluation.distribution.interval(0.9))
    mean = evaluation.distribution.mean.reshape(n_rows, -1)
    heads, rows = ["row"], []
    for name in evaluation.targets:
        heads += [f"{name} predicted", "90% from", "to", "observed"]
    for row in np.argsort(-uncertainty, kind="stable")[:MAX_UNCERTAIN].tolist():
        cells = [str(row + 1)]
        for k in range(len(evaluation.targets)):
            cells += [number(table[row, k]) for table in (mean, low, high, evaluation.observed)]
        inputs = evaluation.rows[row, :MAX_DRAWN]
        rows.append(cells + [evaluation.input_text(k, value) for k, value in enumerate(inputs)])
    median, ratio = float(np.median(uncertainty)), None
    if n_rows >= MIN_RANKED and median > 0:
        ratio = float(np.quantile(uncertainty, 0.95)) / median
    return {"heads": heads + evaluation.names[:MAX_DRAWN], "rows": rows, "ratio": ratio}


def _splits(evaluation: Evaluation) -> dict[str, Any]:
    """Return figures of the inputs with the most splits."""
    n_splits = np.array(
        [evaluation.model.split_posterior(k).expected for k in range(len(evaluation.names))]
    )
    most = [k for k in np.argsort(-n_splits, kind="stable").tolist() if n_splits[k] > FEW_SPLITS]
    figures = split_figures(evaluation, most[:MAX_DRAWN])
    return {"changes": None, "splits": {"any": bool(most)}, "structure_figures": figures}


def _changes(evaluation: Evaluation) -> dict[str, Any]:
    """Return the probable change points, the outliers, and their figures."""
    model = evaluation.model
    fitted = model.state_.model
    dimension = fitted.change_dimension
    assert dimension is not None
    likely = model.changepoints(LIKELY)
    splits = model.split_posterior(dimension)
    listed = sorted(likely, key=lambda change: -change.probability)[:MAX_CHANGES]
    rows = []
    for change in sorted(listed, key=lambda change: change.position):
        position, low, high = map(format_position, (change.position, change.low, change.high))
        inside = splits.within(change.low, change.high)
        rows.append((position, f"{change.probability:.2f}", low, high, f"{inside:.2f}"))
    outliers = fitted.outlier_probability
    changes = {
        "along": evaluation.names[dimension],
        "expected": splits.expected,
        "n_likely": len(likely),
        "n_listed": MAX_CHANGES,
        "level": LIKELY,
        "rows": rows,
        "outliers": None if outliers is None else (np.flatnonzero(outliers > LIKELY) + 1).tolist(),
    }
    figures = change_figures(evaluation, dimension, LIKELY)
    return {"changes": changes, "splits": None, "structure_figures": figures}


def number(value: float) -> str:
    """Write a number with five digits; prices and populations in full rather than with an exponent.

    Examples
    --------
    >>> number(0.123456), number(252110.4), number(3e12)
    ('0.12346', '252,110', '3e+12')
    """
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e10 else f"{value:.5g}"
