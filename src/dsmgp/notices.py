"""Warnings that name the line of the user's own code, and are shown once for it."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

__all__ = ["FactorisationWarning", "warn_user"]

PACKAGE = os.path.dirname(__file__) + os.sep
# Actions of Python's filters by which a warning is not repeated.
ONCE = ("default", "module", "once")
# What was shown where, under which filters. Python keeps such a list too, but empties it whenever filters are set,
# even for a moment, and scikit-learn's checks do that in every fit.
_shown: dict[tuple[type[Warning], str, str, int], tuple[object, ...]] = {}


class FactorisationWarning(UserWarning):
    """A leaf's covariance matrix needed more noise than it has to be factorised.

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


def warn_user(
    message: str, category: type[Warning] = UserWarning, topic: str | None = None
) -> None:
    """Warn at the line from which the library was called.

    ``topic`` says what it is about: under Python's own filters a line is told of it once, whatever the numbers
    in the message. Without one it is the message.
    """
    frame = _callers_frame()
    file, line = frame.f_code.co_filename, frame.f_lineno
    module = str(frame.f_globals.get("__name__", "<unknown>"))
    if _action(message, category, module, line) in ONCE:
        place, filters = (category, topic or message, file, line), tuple(warnings.filters)
        if _shown.get(place) == filters:
            return
        _shown[place] = filters
    warnings.warn_explicit(message, category, file, line, module)


def _callers_frame() -> FrameType:
    """The nearest one that is not the library's, or the outermost there is."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _action(message: str, category: type[Warning], module: str, line: int) -> str:
    """What Python's filters say is to be done."""
    for action, text, kind, where, number in warnings.filters:
        if (
            issubclass(category, kind)
            and _matches(text, message)
            and _matches(where, module)
            and number in (0, line)
        ):
            return action
    return "default"


def _matches(pattern: object, text: str) -> bool:
    """Patterns are compiled, but for those that Python itself starts with, which are names."""
    if pattern is None or isinstance(pattern, str):
        return pattern is None or pattern == text
    return bool(pattern.match(text))  # type: ignore[attr-defined]
