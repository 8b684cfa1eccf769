"""The results that a report shows, as plain values: the template ``report.html.j2`` turns them into a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp import __version__
from dsmgp._util.arrays import Array
from dsmgp._util.dates import format_position
from dsmgp.progress import span
from dsmgp.regressor import DSMGPRegressor
from dsmgp.report.evaluation import Evaluation
from dsmgp.report.figures import (
    calibration_figures,
    change_figures,
    dependence_figures,
    importance_figures,
    observed_figures,
    residual_figures,
    split_figures,
)
from dsmgp.report.importance import MAX_DRAWN
from dsmgp.report.least_certain import least_certain
from dsmgp.report.numbers import number
from dsmgp.report.references import compare
from dsmgp.report.verdict import (
    MANY_KNOWN,
    Statement,
    accuracy,
    calibration,
    reach,
    suspicions,
    training_rows,
)
from dsmgp.scores import joint_nlpd, score_each
from dsmgp.tree.nodes import leaves

__all__ = ["collect"]

# Least probability of a change point that is listed, and the most that are listed.
LIKELY, MAX_CHANGES = 0.5, 50
# Expected number of splits below which an input is not drawn.
FEW_SPLITS = 1e-3


# Lines of the tables of scores: name, key and meaning.
SCORES = [
    ("RMSE", "rmse", "root mean square error"),
    ("RMSE of a linear model", "linear", "least squares on the same inputs and training rows"),
    ("RMSE of a constant", "constant", "always predicts the training mean"),
    ("MAE", "mae", "mean absolute error"),
    ("R²", "r2", "share of the variance explained; 1 is perfect"),
    ("NLPD", "nlpd", "negative log predictive density; lower is better, on the same rows"),
    ("CRPS", "crps", "error of the whole predictive distribution, in the units of the target"),
]
INTERVALS = [
    ("rows in 50% intervals", "coverage_50", "should be about 50%"),
    ("rows in 90% intervals", "coverage_90", "should be about 90%"),
    ("width of 90% intervals", "interval_width_90", "on average"),
    ("standard deviation", "std", "of the target itself, for comparison"),
]


def collect(evaluation: Evaluation, title: str) -> dict[str, Any]:
    """Return everything that the page shows, by the names that the template uses."""
    targets = _targets(evaluation)
    results: dict[str, Any] = {
        "title": title or f"Report on {', '.join(evaluation.targets)}",
        "version": __version__,
        "verdict": _verdict(evaluation, targets),
        "data": _data(evaluation),
        "remarks": {
            "training": list(evaluation.model.state_.schema.remarks),
            "here": evaluation.remarks,
        },
        "model": _model(evaluation.model),
        "targets": targets,
        "scores": _lines(targets, SCORES),
        "intervals": _lines(targets, INTERVALS),
        "joint_nlpd": joint_nlpd(evaluation.y, evaluation.distribution),
        "settings": _settings(evaluation.model),
    }
    steps: list[tuple[str, Callable[[Evaluation], Any]]] = [
        ("observed_figures", observed_figures),
        ("calibration_figures", calibration_figures),
        ("residual_figures", residual_figures),
        ("importance_figures", importance_figures),
        ("dependence_figures", dependence_figures),
        ("uncertain", least_certain),
        ("structure", _structure),
    ]
    for k, (name, step) in enumerate(steps):
        with span(k / len(steps), (k + 1) / len(steps), name.replace("_", " ")):
            results[name] = step(evaluation)
    return results


def _verdict(evaluation: Evaluation, targets: list[dict[str, Any]]) -> list[Statement]:
    """Return the statements that the page begins with."""
    n_rows = len(evaluation.rows)
    several = len(targets) > 1
    judged = []
    for target in targets:
        name = target["name"] if several else ""
        judged.append(accuracy(target["comparison"], name))
        judged.append(calibration(target["scores"]["coverage_90"], n_rows, name))
    n_known = evaluation.model.state_.n_training_rows(evaluation.rows, evaluation.observed)
    if n_known > MANY_KNOWN * n_rows:
        judged = [replace(statement, grade="not judged") for statement in judged]
    first = training_rows(n_known, n_rows)
    statements = [*([first] if first else []), *judged]
    found = evaluation.model.state_.outside_rows(evaluation.rows)
    left = sorted(found.columns, key=lambda name: -found.columns[name][0])
    ratio = _ratio(evaluation.uncertainty, evaluation.outside)
    statements.append(reach(found.n_outside, n_rows, left, ratio))
    remarks = [*evaluation.model.state_.schema.remarks, *evaluation.remarks]
    return [*statements, suspicions(remarks)]


def _settings(model: DSMGPRegressor) -> dict[str, list[tuple[str, ...]]]:
    """Return all settings, and those that are not the defaults with the defaults."""
    defaults = DSMGPRegressor().get_params(deep=False)
    settings = model.get_params(deep=False)
    texts = [(name, str(value), str(defaults[name])) for name, value in settings.items()]
    return {
        "all": [(name, value) for name, value, _ in texts],
        # A seed changes nothing that a reader could judge.
        "changed": [
            entry for entry in texts if entry[1] != entry[2] and entry[0] != "random_state"
        ],
    }


def _data(evaluation: Evaluation) -> dict[str, Any]:
    """Return the ranges of all columns in training and evaluation rows."""
    training, columns = evaluation.model.state_.rows, evaluation.model.state_.schema.columns.columns
    train, outputs, rows = training.X, training.Y, evaluation.rows
    return {
        "n_train": len(train),
        "n_columns": len(columns),
        "n_rows": len(rows),
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
    if fitted.has_change_points:
        along = model.state_.schema.input_names[fitted.split_dimension]
        return described | {"changes_along": along}
    sizes = [leaf.n_rows for leaf in leaves(model.tree_)]
    return described | {
        "changes_along": None,
        "n_leaves": len(sizes),
        "min_rows": min(sizes),
        "max_rows": max(sizes),
        "weights": fitted.weights,
        "score_kind": model.state_.score_kind,
        "loo": model.loo_score_,
        "loo_new_inputs": model.loo_score_new_inputs_,
    }


def _targets(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the scores of every target, and the comparison with a constant and a linear model."""
    training = evaluation.model.state_.rows
    scores = score_each(evaluation.y, evaluation.distribution, training.Y.mean(axis=0))
    mean = evaluation.distribution.mean.reshape(evaluation.observed.shape)
    comparisons = compare(mean, evaluation.rows, evaluation.observed, training.X, training.Y)
    return [
        {
            "name": name,
            "scores": values,
            "comparison": comparison,
            "constant": comparison.constant,
            "linear": comparison.linear,
            "std": float(evaluation.observed[:, k].std()),
        }
        for k, (name, values, comparison) in enumerate(
            zip(evaluation.targets, scores, comparisons, strict=True)
        )
    ]


def _lines(targets: list[dict[str, Any]], lines: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    """Return lines of a table: the name of a score, its value for each target, and what it means.

    Parameters
    ----------
    targets : list of dict
    lines : sequence of tuple of str
        Name, key and meaning.
    """

    def text(target: dict[str, Any], key: str) -> str:
        value = target[key] if key in target else target["scores"][key]
        return f"{value:.1%}" if key.startswith("coverage") else number(value)

    return [[name, *(text(target, key) for target in targets), words] for name, key, words in lines]


def _structure(evaluation: Evaluation) -> dict[str, Any] | None:
    """Return where the function changes or the model splits, if there is a posterior over that which predictions use."""
    state = evaluation.model.state_
    if state.model.has_change_points:
        return _changes(evaluation)
    if state.model.weights == "posterior" and state.stacking is None:
        return _splits(evaluation)
    return None


def _splits(evaluation: Evaluation) -> dict[str, Any]:
    """Return figures of the inputs with the most splits."""
    n_splits = np.array(
        [evaluation.model.split_posterior(k).expected for k in range(len(evaluation.names))]
    )
    most = [k for k in np.argsort(-n_splits, kind="stable").tolist() if n_splits[k] > FEW_SPLITS]
    figures = split_figures(evaluation, most[:MAX_DRAWN])
    return {"changes": None, "any_splits": bool(most), "figures": figures}


def _shown(position: Any) -> str:
    """Return a position as text: a date with its time, or a number as in the other tables."""
    return format_position(position) if isinstance(position, np.datetime64) else number(position)


def _changes(evaluation: Evaluation) -> dict[str, Any]:
    """Return the probable change points, the outliers, and their figures."""
    model = evaluation.model
    fitted = model.state_.model
    dimension = fitted.split_dimension
    likely = model.changepoints(LIKELY)
    splits = model.split_posterior(dimension)
    listed = sorted(likely, key=lambda change: -change.probability)[:MAX_CHANGES]
    rows = []
    for change in sorted(listed, key=lambda change: change.position):
        position, low, high = map(_shown, (change.position, change.low, change.high))
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
    return {"changes": changes, "any_splits": False, "figures": figures}
