"""The error of a request or of data that cannot be used."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """What was given cannot be used; the message says what was expected, and what to do.

    Its class tells the command line that the message is for the user. Any other ``ValueError``, such as that of a sum of arrays of
    different shapes, is a fault of this package.
    """
