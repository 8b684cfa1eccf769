"""The figures of a report: plots as PNG images that the page holds itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure as Canvas

from dsmgp.plots.style import add_legend, styled
from dsmgp.report.importance import MAX_BARS, MAX_DRAWN
from dsmgp.report.numbers import count

if TYPE_CHECKING:
    from dsmgp.report.evaluation import Evaluation

__all__ = [
    "Figure",
    "calibration_figures",
    "change_figures",
    "dependence_figures",
    "importance_figures",
    "observed_figures",
    "residual_figures",
    "split_figures",
]

WIDTH, DPI = 4.7, 160  # inches, dots per inch


@dataclass(frozen=True)
class Figure:
    """A plot; ``png`` is in base64, width and height in pixels, ``alt`` describes it to those who do not see it."""

    title: str
    caption: str
    alt: str
    png: str
    width: int
    height: int


def draw(
    plot: Callable[..., Any], title: str, caption: str, alt: str, height: float = 2.9
) -> Figure:
    """Draw a plot, a function of Axes, ``height`` inches high."""
    with styled():
        canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
        plot(ax=canvas.add_subplot())
        file = io.BytesIO()
        # Without a background of its own: the page has a light and a dark one.
        canvas.savefig(file, format="png", dpi=DPI, transparent=True)
    png = base64.b64encode(file.getvalue()).decode()
    return Figure(title, caption, alt, png, round(DPI * WIDTH), round(DPI * height))


def observed_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw observations against predictions, for every target."""
    X, observed = evaluation.drawn
    caption = "Each point is a row; perfect predictions lie on the diagonal." + _sampled(evaluation)
    return [
        draw(
            partial(evaluation.model.plot_observed, X, observed, output=k),
            f"Observed against predicted {name}",
            caption,
            f"Scatter plot of observed against predicted {name} of {count(len(observed), 'row')}, with the diagonal.",
            height=3.4,
        )
        for k, name in enumerate(evaluation.targets)
    ]


def residual_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw the residuals of every target."""
    X, observed = evaluation.drawn
    caption = "Observed minus predicted. About nine in ten points should lie in the shaded band, without a pattern."
    return [
        draw(
            partial(evaluation.model.plot_residuals, X, observed, output=k),
            f"Residuals of {name}",
            caption + _sampled(evaluation),
            f"Scatter plot of the residuals of {name} against its predictions, with the band of 90% intervals.",
        )
        for k, name in enumerate(evaluation.targets)
    ]


def calibration_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw coverage and the probability integral transform."""
    model = evaluation.model
    X, observed = evaluation.drawn
    y = model.state_.schema.shaped(observed)
    return [
        draw(
            _with_targets(partial(model.plot_calibration, X, y), evaluation.targets),
            "Coverage",
            "Share of rows inside central intervals against the probability of the interval. A calibrated model lies on the diagonal.",
            "Curve of the share of rows inside intervals against the probability of the intervals, beside the diagonal.",
        ),
        draw(
            partial(model.plot_pit, X, y),
            "Probability integral transform",
            "Where observations lie in their predictive distributions. Flat: calibrated. A hump: intervals too wide. A bowl: too narrow. "
            "A slope: a bias.",
            "Histogram of the probability integral transform, beside the range of a calibrated model.",
        ),
    ]


def importance_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw how much predictions rely on each column, if there are several."""
    if len(evaluation.model.state_.schema.groups) == 1:
        return []
    found = evaluation.importance
    names = ", ".join(found.ranked[:MAX_DRAWN])
    return [
        draw(
            found.plot,
            "Importance of columns",
            found.caption,
            f"Bar chart of the importance of columns, the most important first: {names}.",
            max(2.2, 0.28 * min(len(found.columns), MAX_BARS) + 0.8),
        )
    ]


def dependence_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw the partial dependence on the most important columns, unless the function itself is drawn."""
    if evaluation.draws_function:
        return []
    return [
        draw(
            _with_label(
                partial(evaluation.model.plot_dependence, evaluation.drawn[0], feature, output=k),
                target,
            ),
            f"{target} along {feature}",
            "",
            f"Average prediction of {target} against {feature}, with 90% intervals.",
        )
        for feature in evaluation.most_important
        for k, target in enumerate(evaluation.targets)
    ]


def split_figures(evaluation: Evaluation, dimensions: list[int]) -> list[Figure]:
    """Draw the posterior over splits along some inputs, and the tree."""
    model, names = evaluation.model, evaluation.names
    figures = [
        draw(
            partial(model.plot_splits, k),
            f"Splits along {names[k]}",
            "Expected number of splits under the posterior, by position.",
            f"Histogram of the expected number of splits along {names[k]}.",
        )
        for k in dimensions
    ]
    caption = "Sum nodes choose between partitions, products split, leaves hold the Gaussian processes. Thick lines are probable."
    alt = "Diagram of the tree of sums, products and leaves."
    return [*figures, draw(model.plot_tree, "The tree", caption, alt)]


def change_figures(evaluation: Evaluation, dimension: int, level: float) -> list[Figure]:
    """Draw the probability of changes, and the function if it has one input and one output."""
    model, names = evaluation.model, evaluation.names
    figures = [
        draw(
            partial(model.plot_changepoints, level),
            f"Changes along {names[dimension]}",
            "Probability of a change in the gap between two rows. Triangles mark change points that can be located; shading, where they lie.",
            f"Probability of a change against {names[dimension]}, with the change points marked.",
        )
    ]
    if evaluation.draws_function:
        X, observed = evaluation.drawn
        plot = _with_label(partial(model.plot_predictive, X, observed[:, 0]), evaluation.targets[0])
        caption = "Mean, density and 90% interval of an observation, and the rows."
        alt = f"Predictive mean and 90% interval of {evaluation.targets[0]} against {names[0]}, with the rows as points."
        figures.insert(0, draw(plot, "The function", caption, alt))
    return figures


def _with_label(plot: Callable[..., Any], target: str) -> Callable[..., Any]:
    """Return a plot with the name of a target beside its y-axis: a model that was fitted to an array does not know it."""

    def labelled(ax: Any) -> None:
        plot(ax=ax).set_ylabel(target)

    return labelled


def _with_targets(plot: Callable[..., Any], targets: list[str]) -> Callable[..., Any]:
    """Return a plot whose last lines are labelled with the names of several targets."""

    def labelled(ax: Any) -> None:
        plot(ax=ax)
        if len(targets) > 1:
            for line, target in zip(ax.get_lines()[-len(targets) :], targets, strict=True):
                line.set_label(target)
            add_legend(ax)

    return labelled


def _sampled(evaluation: Evaluation) -> str:
    """Return a sentence that says how many rows are drawn, if not all are."""
    n_drawn, n_rows = len(evaluation.drawn[1]), len(evaluation.rows)
    return "" if n_drawn == n_rows else f" {n_drawn:,} of {count(n_rows, 'row')} are drawn."
