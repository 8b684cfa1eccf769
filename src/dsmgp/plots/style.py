"""What all plots share: Axes, colours, legends, date axes.

The only module of this package that imports matplotlib, and only when something is drawn: the estimator has
the plots as methods, and must be importable without matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsmgp._util.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dsmgp.regressor import DSMGPRegressor

__all__ = [
    "BAND",
    "INTERVAL",
    "MODEL",
    "OBSERVED",
    "SPLIT",
    "add_legend",
    "axes_or_new",
    "per_output",
    "show_dates",
]

# One hue for predictions, one for observations, one for splits.
MODEL, BAND, INTERVAL = "#08306b", "#2171b5", "#c6dbef"
OBSERVED, SPLIT = "#333333", "#cb181d"


def axes_or_new(ax: Axes | None) -> Axes:
    """Return ``ax``, or the Axes of a new figure if it is None."""
    try:
        from matplotlib import pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"plots need {error.name}; pip install 'dsmgp[plots]'", name=error.name
        ) from error
    return plt.figure().gca() if ax is None else ax


def per_output(values: Array) -> Array:
    """Reshape (n,) or (n, n_outputs) to (n, n_outputs)."""
    return values.reshape(len(values), -1)


def add_legend(ax: Axes) -> None:
    """Add a translucent legend in a fixed corner: matplotlib's search for the best place is slow."""
    ax.legend(loc="upper right", framealpha=0.7, edgecolor="none", fontsize="small")


def show_dates(ax: Axes, model: DSMGPRegressor, dimension: int) -> None:
    """Label the x-axis with dates if the input holds days since the first training row."""
    dates = model.state_.schema.displayed_dates.get(dimension)
    if dates is None:
        return
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def date_text(days: float, _: int) -> str:
        low, high = sorted(ax.get_xlim())
        text = str(dates.to_dates(days))
        return text[:10] if high - low > 3.0 else text[:16].replace("T", "\n")

    ax.xaxis.set_major_formatter(FuncFormatter(date_text))
    ax.xaxis.set_major_locator(MaxNLocator(4))
