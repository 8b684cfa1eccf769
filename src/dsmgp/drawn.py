"""Pictures as methods of an estimator: each is a function of :mod:`dsmgp.plots`, which is loaded when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Drawn"]


class Drawn:
    """Methods that draw; all return the Axes they drew on. Arguments are those of the functions."""

    def plot_predictive(self, *arguments: Any, **options: Any) -> Any:
        """The predictive law over one input; see :func:`dsmgp.plots.plot_predictive`."""
        return self._draw("plot_predictive", *arguments, **options)

    def plot_dependence(self, *arguments: Any, **options: Any) -> Any:
        """Partial dependence on one input; see :func:`dsmgp.plots.plot_dependence`."""
        return self._draw("plot_dependence", *arguments, **options)

    def plot_splits(self, *arguments: Any, **options: Any) -> Any:
        """Posterior probability of cuts along an input; see :func:`dsmgp.plots.plot_splits`."""
        return self._draw("plot_splits", *arguments, **options)

    def plot_changepoints(self, *arguments: Any, **options: Any) -> Any:
        """Changes of the function along an input; see :func:`dsmgp.plots.plot_changepoints`."""
        return self._draw("plot_changepoints", *arguments, **options)

    def plot_tree(self, *arguments: Any, **options: Any) -> Any:
        """The structure; see :func:`dsmgp.plots.plot_tree`."""
        return self._draw("plot_tree", *arguments, **options)

    def plot_relevance(self, *arguments: Any, **options: Any) -> Any:
        """How fast the function varies along each input; see :func:`dsmgp.plots.plot_relevance`."""
        return self._draw("plot_relevance", *arguments, **options)

    def plot_calibration(self, *arguments: Any, **options: Any) -> Any:
        """Coverage of intervals on rows; see :func:`dsmgp.plots.plot_calibration`."""
        return self._draw("plot_calibration", *arguments, **options)

    def plot_pit(self, *arguments: Any, **options: Any) -> Any:
        """Where in their laws observations lie; see :func:`dsmgp.plots.plot_pit`."""
        return self._draw("plot_pit", *arguments, **options)

    def plot_residuals(self, *arguments: Any, **options: Any) -> Any:
        """Residuals on rows; see :func:`dsmgp.plots.plot_residuals`."""
        return self._draw("plot_residuals", *arguments, **options)

    def plot_learning(self, *arguments: Any, **options: Any) -> Any:
        """The objective during learning; see :func:`dsmgp.plots.plot_learning`."""
        return self._draw("plot_learning", *arguments, **options)

    def _draw(self, name: str, *arguments: Any, **options: Any) -> Any:
        try:
            plots = import_module("dsmgp.plots")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"pictures need {error.name}; pip install 'dsmgp[plots]'", name=error.name
            ) from error
        return getattr(plots, name)(self, *arguments, **options)
