"""Warnings that name the line of the user's own code, and are shown once for each line."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

__all__ = ["ExtrapolationWarning", "FactorisationWarning", "warn_user"]

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
# What was shown where, and under which filters. Python keeps such a record too, but discards it whenever filters are
# set, even for a moment, and scikit-learn's checks do that in every fit.
_shown: dict[tuple[type[Warning], str, str, int], tuple[object, ...]] = {}


class FactorisationWarning(UserWarning):
    """A leaf's covariance matrix could be factorised only with jitter added to its diagonal.

    Examples
    --------
    To have it raised instead of shown:

    >>> import warnings
    >>> from dsmgp import DSMGPRegressor
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", FactorisationWarning)
    ...     model = DSMGPRegressor("rbf", random_state=0).fit(
    ...         [[0.0], [0.0], [1.0]], [0.0, 0.1, 1.0]
    ...     )
    """


class ExtrapolationWarning(UserWarning):
    """Many rows to predict lie outside the training data, or some lie far outside.

    Examples
    --------
    To silence it:

    >>> import warnings
    >>> from dsmgp import DSMGPRegressor, ExtrapolationWarning
    >>> model = DSMGPRegressor("rbf", random_state=0).fit([[0.0], [0.5], [1.0]], [0.0, 0.5, 1.0])
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ExtrapolationWarning)
    ...     model.predict([[100.0]]).round(1)
    array([0.5])
    """


def warn_user(
    message: str, category: type[Warning] = UserWarning, topic: str | None = None
) -> None:
    """Warn at the line from which the library was called.

    Parameters
    ----------
    message : str
        The message.
    category : type
        Its category.
    topic : str, optional
        What the warning is about, the message if left out. Where Python's filters show a warning once per line, a line
        is warned about a topic once, whatever the numbers in the message.
    """
    frame = _user_frame()
    file, line = frame.f_code.co_filename, frame.f_lineno
    place, filters = (category, topic or message, file, line), tuple(warnings.filters)
    if _shown.get(place) == filters:
        return
    registry: dict[str | tuple[str, type[Warning], int], int] = {}
    module = str(frame.f_globals.get("__name__", "<unknown>"))
    warnings.warn_explicit(message, category, file, line, module, registry)
    if (message, category, line) in registry:  # Python would not show it again
        _shown[place] = filters


def _user_frame() -> FrameType:
    """Return the innermost frame outside of the library and of the import machinery, or the outermost frame."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith((PACKAGE, "<frozen importlib")) and frame.f_back:
        frame = frame.f_back
    return frame
