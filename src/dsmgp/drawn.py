"""Pictures as methods of an estimator: each is a function of :mod:`dsmgp.plots`, which is loaded when one is asked for.

Signatures are written out, as completion and help know no others before that; a test holds them to the functions'.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Drawn"]


class Drawn:
    """Methods that draw; all return the Axes they drew on."""

    def plot_predictive(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        level: float = 0.9,
        n_points: int = 400,
        ax: Axes | None = None,
    ) -> Axes:
        """The predictive law over one input: its density as shading, its mean and a central interval.

        Parameters
        ----------
        X, y : array-like
            Rows that set the range shown; with ``y`` they are drawn as points.
        level : float
            Probability that the interval holds.
        n_points : int
            Points of the grid along the input.
        ax : Axes, optional
            Where to draw; a new figure if left out.
        """
        return self._draw("plot_predictive", X, y, level=level, n_points=n_points, ax=ax)

    def plot_dependence(
        self,
        X: ArrayLike,
        feature: int | str = 0,
        *,
        output: int = 0,
        level: float = 0.9,
        n_points: int = 60,
        ax: Axes | None = None,
    ) -> Axes:
        """Partial dependence on one input: what is predicted with that input set, averaged over the rows of ``X``.

        The line is the average of the means. Around it, as shading and as an interval, is how sure the model is of an
        observation: the average of the rows' laws, each moved to the average mean, since how rows differ in their other inputs is
        no uncertainty. Ticks below show where the input's values lie. A column of text in the table that a model was fitted to by ``dsmgp fit``
        is drawn level by level.

        Parameters
        ----------
        X : array-like
            Rows whose other inputs are averaged over (a sample of them if there are many).
        feature : int or str
            Number or name of the input, or the name of a column of text.
        output : int
            Which of several outputs.
        level : float
            Probability that the interval of a new observation holds.
        """
        return self._draw(
            "plot_dependence", X, feature, output=output, level=level, n_points=n_points, ax=ax
        )

    def plot_splits(
        self, dimension: int | str = 0, *, n_bins: int = 60, ax: Axes | None = None
    ) -> Axes:
        """Posterior probability of the cuts along one input, by position.

        The height of a bar is the expected number of cuts inside it.
        """
        return self._draw("plot_splits", dimension, n_bins=n_bins, ax=ax)

    def plot_changepoints(
        self, level: float = 0.5, dimension: int | str | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Changes that are at least so probable: a line at each, with the interval that holds it, over the probabilities of all gaps."""
        return self._draw("plot_changepoints", level, dimension, ax=ax)

    def plot_tree(self, *, ax: Axes | None = None) -> Axes:
        """The structure: sums, products and leaves, each as heavy as its posterior probability.

        A tree of very many nodes is cut off below; the title says so.
        """
        return self._draw("plot_tree", ax=ax)

    def plot_relevance(self, *, n_most: int = 20, ax: Axes | None = None) -> Axes:
        """How fast the function varies along each input, over the fastest: inverse length-scales per standard deviation.

        The average over the leaves' kernels, weighed as the model weighs its leaves. Needs kernels with length-scales.
        """
        return self._draw("plot_relevance", n_most=n_most, ax=ax)

    def plot_calibration(self, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
        """Coverage of central intervals: the share of rows inside, against the probability they should hold.

        The grey band is where 95% of calibrated models would lie with so many rows.
        """
        return self._draw("plot_calibration", X, y, ax=ax)

    def plot_pit(
        self, X: ArrayLike, y: ArrayLike, *, n_bins: int = 20, ax: Axes | None = None
    ) -> Axes:
        """Where in its law each observation lies (probability integral transform): flat if the model is calibrated.

        A hump means intervals that are too wide, a bowl means intervals that are too narrow, a slope means a bias.
        """
        return self._draw("plot_pit", X, y, n_bins=n_bins, ax=ax)

    def plot_residuals(
        self, X: ArrayLike, y: ArrayLike, *, output: int = 0, ax: Axes | None = None
    ) -> Axes:
        """What was observed less what was predicted, against the prediction; shaded where 90% should lie."""
        return self._draw("plot_residuals", X, y, output=output, ax=ax)

    def plot_learning(self, *, ax: Axes | None = None) -> Axes:
        """The objective during learning, one line for each search: how far each evaluation was from the best."""
        return self._draw("plot_learning", ax=ax)

    def _draw(self, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            plots = import_module("dsmgp.plots")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"pictures need {error.name}; pip install 'dsmgp[plots]'", name=error.name
            ) from error
        return getattr(plots, name)(self, *arguments, **options)
