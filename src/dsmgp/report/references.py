"""What predictions are compared with: a constant, and a linear model of the same inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LinearRegression

from dsmgp._util.arrays import Array
from dsmgp._util.significance import is_clear

__all__ = ["Comparison", "compare"]

# Training rows to which the linear model is fitted.
MAX_ROWS = 50_000


@dataclass(frozen=True)
class Comparison:
    """The error of a model on some rows beside those of a constant and of a linear model.

    Attributes
    ----------
    rmse, constant, linear : float
        Root mean square errors.
    beats_constant, beats_linear, loses_to_linear : bool
        Whether the error of the model is clearly smaller, or larger: by more than two standard errors of the difference.
    """

    rmse: float
    constant: float
    linear: float
    beats_constant: bool
    beats_linear: bool
    loses_to_linear: bool


def compare(mean: Array, rows: Array, observed: Array, X: Array, Y: Array) -> list[Comparison]:
    """Compare predictive means with a constant and a linear model, output by output.

    Parameters
    ----------
    mean, observed : ndarray of shape (n, n_outputs)
    rows : ndarray of shape (n, n_inputs)
    X, Y : ndarray of shape (n_train, n_inputs) and (n_train, n_outputs)
        Training rows; of many, some are used.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 50)[:, None]
    >>> (found,) = compare(x**2, x, x**2, x, x**2)
    >>> found.rmse, found.beats_constant, found.beats_linear
    (0.0, True, True)
    """
    some = np.linspace(0, len(X) - 1, min(len(X), MAX_ROWS)).astype(np.int64)
    X, Y = X[some], Y[some]
    spread = X.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    linear = LinearRegression().fit((X - X.mean(axis=0)) / scale, Y)
    at_rows = linear.predict((rows - X.mean(axis=0)) / scale).reshape(observed.shape)
    squares = [np.square(observed - each) for each in (mean, Y.mean(axis=0), at_rows)]
    return [_comparison(*(table[:, k] for table in squares)) for k in range(observed.shape[1])]


def _comparison(own: Array, constant: Array, linear: Array) -> Comparison:
    """Compare the squared errors of one output."""
    rmse, of_constant, of_linear = (
        float(np.sqrt(squares.mean())) for squares in (own, constant, linear)
    )
    return Comparison(
        rmse,
        of_constant,
        of_linear,
        beats_constant=_is_smaller(own, constant),
        beats_linear=_is_smaller(own, linear),
        loses_to_linear=_is_smaller(linear, own),
    )


def _is_smaller(own: Array, other: Array) -> bool:
    """Return whether squared errors are clearly smaller, by a paired comparison."""
    difference = other - own
    error = difference.std() / np.sqrt(len(difference))
    return is_clear(difference.mean(), error)
