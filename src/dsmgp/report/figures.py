"""The figures of a report: plots as PNG images that the page holds itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from dsmgp.plots.relevance import has_length_scales, relevance

if TYPE_CHECKING:
    from dsmgp.report.results import Evaluation

__all__ = [
    "MAX_DRAWN",
    "Figure",
    "calibration_figures",
    "change_figures",
    "relevance_figures",
    "residual_figures",
    "split_figures",
]

#: Inputs that are drawn at most.
MAX_DRAWN = 6
STYLE: dict[Any, Any] = {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}
WIDTH, DPI = 5.2, 150  # inches, dots per inch


@dataclass(frozen=True)
class Figure:
    """A plot with its title and caption; ``png`` is in base64, width and height in pixels."""

    title: str
    caption: str
    png: str
    width: int
    height: int


def draw(plot: Callable[..., Any], title: str, caption: str, height: float = 3.1) -> Figure:
    """Draw a plot, a function of Axes, ``height`` inches high."""
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
        plot(ax=canvas.add_subplot())
        file = io.BytesIO()
        canvas.savefig(file, format="png", dpi=DPI)
    png = base64.b64encode(file.getvalue()).decode()
    return Figure(title, caption, png, round(DPI * WIDTH), round(DPI * height))


def residual_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw the residuals of every target."""
    model, X, observed = evaluation.model, evaluation.X, evaluation.observed
    caption = "Observed minus predicted. About nine in ten points should lie in the shaded band, without a pattern."
    return [
        draw(partial(model.plot_residuals, X, observed, output=k), f"Residuals of {name}", caption)
        for k, name in enumerate(evaluation.targets)
    ]


def calibration_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw coverage and the probability integral transform."""
    model, X, y = evaluation.model, evaluation.X, evaluation.y
    return [
        draw(
            partial(model.plot_calibration, X, y),
            "Coverage",
            "Share of rows inside central intervals against the probability of the interval. A calibrated model lies on the diagonal.",
        ),
        draw(
            partial(model.plot_pit, X, y),
            "Probability integral transform",
            "Where observations lie in their predictive distributions. Flat: calibrated. A hump: intervals too wide. A bowl: too narrow. "
            "A slope: a bias.",
        ),
    ]


def relevance_figures(evaluation: Evaluation) -> list[Figure]:
    """Draw the relevance of the inputs, and the partial dependence on the most relevant."""
    model = evaluation.model
    names = [name for name, _ in model.state_.schema.groups]
    figures, order = [], np.arange(len(names))
    if has_length_scales(model):
        order = np.argsort(-relevance(model))
        caption = "How fast the function varies along each column, per standard deviation of that column, relative to the fastest."
        height = max(2.2, 0.28 * min(len(names), 20) + 0.8)
        figures.append(draw(model.plot_relevance, "Relevance of columns", caption, height))
    features = [names[k] for k in order.tolist()]
    caption = "Prediction with this input set, averaged over the rows, and the interval of an observation around it."
    return figures + [
        draw(
            partial(model.plot_dependence, evaluation.X, feature, output=k),
            f"{target} along {feature}",
            caption,
        )
        for feature in features[:MAX_DRAWN]
        for k, target in enumerate(evaluation.targets)
    ]


def split_figures(evaluation: Evaluation, dimensions: list[int]) -> list[Figure]:
    """Draw the posterior over splits along some inputs, and the tree."""
    model, names = evaluation.model, evaluation.names
    figures = [
        draw(
            partial(model.plot_splits, k),
            f"Splits along {names[k]}",
            "Expected number of splits, by position.",
        )
        for k in dimensions
    ]
    caption = "Sums choose between partitions, products split, leaves hold the Gaussian processes."
    return [*figures, draw(model.plot_tree, "The tree", caption)]


def change_figures(evaluation: Evaluation, dimension: int, level: float) -> list[Figure]:
    """Draw the probability of changes, and the function if it has one input and one output."""
    model, names = evaluation.model, evaluation.names
    figures = [
        draw(
            partial(model.plot_changepoints, level),
            f"Changes along {names[dimension]}",
            "Probability of a change in the gap between two rows. Lines mark change points that can be located; shading, where they lie.",
        )
    ]
    if len(names) == 1 and len(evaluation.targets) == 1:
        plot = partial(model.plot_predictive, evaluation.X, evaluation.y)
        caption = "Mean, density and 90% interval of an observation, and the rows."
        figures.append(draw(plot, "The function", caption))
    return figures
