"""The visual identity of all plots: colours, type, line widths, legends, date axes.

The only module of this package that imports matplotlib, and only when something is drawn: the estimator has
the plots as methods, and must be importable without matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsmgp._util.arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from dsmgp.regressor import DSMGPRegressor

__all__ = [
    "BAND",
    "INTERVAL",
    "MODEL",
    "MUTED",
    "OBSERVED",
    "REFERENCE",
    "SERIES",
    "SPLIT",
    "STYLE",
    "THICK",
    "THIN",
    "add_legend",
    "axes_or_new",
    "density_colours",
    "per_output",
    "show_dates",
    "styled",
]

# The palette of Okabe and Ito, which people with any kind of colour blindness can tell apart: blue for the model, vermilion for
# splits and change points, grey for observations and references.
MODEL, BAND, INTERVAL = "#0072B2", "#56B4E9", "#BBDCF1"
OBSERVED, REFERENCE, MUTED = "#3B3F46", "#8A9099", "#D6DBE0"
SPLIT = "#D55E00"
#: Colours of several outputs, runs or models, in this order.
SERIES = (MODEL, SPLIT, "#009E73", "#CC79A7", "#E69F00", BAND)
#: Line widths: of what a plot is about, and of what it is compared with.
THICK, THIN = 1.8, 0.9

#: Settings of matplotlib for every figure that this package makes.
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": REFERENCE,
    "axes.labelcolor": OBSERVED,
    "axes.linewidth": 0.8,
    "text.color": OBSERVED,
    "xtick.color": REFERENCE,
    "ytick.color": REFERENCE,
    "xtick.labelcolor": OBSERVED,
    "ytick.labelcolor": OBSERVED,
    "lines.linewidth": THICK,
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply :data:`STYLE` to the figures that are made inside.

    Examples
    --------
    >>> import matplotlib as mpl
    >>> with styled():
    ...     mpl.rcParams["axes.spines.top"]
    False
    """
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    settings: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=SERIES)}
    with mpl.rc_context(settings):
        yield


def axes_or_new(ax: Axes | None) -> Axes:
    """Return ``ax``, or the Axes of a new figure if it is None."""
    try:
        from matplotlib import pyplot as plt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"plots need {error.name}; pip install 'dsmgp[plots]'", name=error.name
        ) from error
    if ax is not None:
        return ax
    with styled():
        return plt.figure(layout="constrained").gca()


def per_output(values: Array) -> Array:
    """Reshape (n,) or (n, n_outputs) to (n, n_outputs)."""
    return values.reshape(len(values), -1)


def density_colours() -> Colormap:
    """Return a colour map from nothing to the colour of the band: no background of its own, so that it suits any page."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    colour = to_rgb(MODEL)
    return LinearSegmentedColormap.from_list("dsmgp", [(*colour, 0.0), (*colour, 0.75)])


def add_legend(ax: Axes) -> None:
    """Add a legend above the plot, where it hides nothing."""
    n_entries = len(ax.get_legend_handles_labels()[0])
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=min(n_entries, 4),
        frameon=False,
        fontsize=STYLE["legend.fontsize"],
        labelcolor=OBSERVED,
        borderaxespad=0.2,
        handlelength=1.4,
        columnspacing=1.2,
    )


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
