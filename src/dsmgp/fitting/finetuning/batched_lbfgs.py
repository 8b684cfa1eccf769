"""L-BFGS for many small problems at once, each with its own direction, step and end; all are evaluated together.

Fine-tuning maximises the objectives of all leaves with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsmgp._util.arrays import Array, Index

__all__ = ["BatchResult", "Objective", "maximise"]

#: From numbers of problems (n,) and points (n, n_parameters) to values (n,) and gradients (n, n_parameters).
Objective = Callable[[Index, Array], tuple[Array, Array]]

# Steps from which curvature is estimated.
MEMORY = 10
# No parameter moves further than this in one step: parameters are logarithms, or similar.
LONGEST_STEP = 2.0
# A step is accepted if it gains this share of what the gradient predicts (Armijo).
ARMIJO = 1e-4
# A step that was shortened this often ends the search.
MOST_CUTS = 12


@dataclass
class BatchResult:
    """The best point of each problem (n, n_parameters), its value (n,), iterations (n,), and the number of joint evaluations."""

    point: Array
    value: Array
    n_iterations: Index
    n_evaluations: int


def maximise(
    objective: Objective,
    start: Array,
    unit: Array,
    max_iter: int,
    tolerance: float,
    flat: float = 1e-5,
) -> BatchResult:
    """Maximise every problem from its row of ``start``.

    Parameters
    ----------
    objective : callable
    start : ndarray of shape (n, n_parameters)
    unit : ndarray of shape (n,)
        Values and gradients of each problem are divided by it.
    max_iter : int
        Most accepted steps of each problem.
    tolerance : float
        A search ends when a step gains less, relatively where values are above one.
    flat : float
        A search ends where no derivative is larger.

    Examples
    --------
    >>> top = np.array([[1.0, 2.0], [-3.0, 0.5]])
    >>> result = maximise(
    ...     lambda k, x: (-np.square(x - top[k]).sum(1), -2.0 * (x - top[k])),
    ...     np.zeros((2, 2)),
    ...     np.ones(2),
    ...     max_iter=50,
    ...     tolerance=1e-12,
    ... )
    >>> result.point.round(4)
    array([[ 1. ,  2. ],
           [-3. ,  0.5]])
    """
    n, width = start.shape
    x = start.copy()
    value, gradient = _evaluate(objective, np.arange(n), x, unit)
    moves, turns = np.zeros((2, MEMORY, n, width))  # of x and of -gradient
    inverse = np.zeros((MEMORY, n))  # 1 / (move . turn); zero where there is no such step
    n_iterations, n_evaluations = np.zeros(n, np.int64), 1
    active = np.flatnonzero(np.isfinite(value) & (np.abs(gradient).max(axis=1, initial=0) > flat))
    direction = np.zeros_like(x)
    direction[active] = _direction(gradient[active], moves, turns, inverse, active)
    length, cuts = np.ones(n), np.zeros(n, np.int64)
    while active.size and max_iter > 0:
        trial = x[active] + length[active, None] * direction[active]
        reached, slope = _evaluate(objective, active, trial, unit)
        n_evaluations += 1
        predicted = (gradient[active] * direction[active]).sum(axis=1)
        gain = reached - value[active]
        accepted = gain >= ARMIJO * length[active] * predicted  # false where there is no value
        done = np.zeros(len(active), bool)

        k = active[accepted]
        _push(moves, trial[accepted] - x[k], k)
        _push(turns, gradient[k] - slope[accepted], k)
        curvature = (moves[-1, k] * turns[-1, k]).sum(axis=1)
        usable = curvature > 1e-12 * np.square(turns[-1, k]).sum(axis=1)
        _push(inverse, np.where(usable, 1.0 / np.where(usable, curvature, 1.0), 0.0), k)
        done[accepted] = gain[accepted] <= tolerance * np.maximum(np.abs(value[k]), 1.0)
        x[k], value[k], gradient[k] = trial[accepted], reached[accepted], slope[accepted]
        n_iterations[k] += 1
        done[accepted] |= (np.abs(gradient[k]).max(axis=1, initial=0) <= flat) | (
            n_iterations[k] >= max_iter
        )
        direction[k] = _direction(gradient[k], moves, turns, inverse, k)
        length[k], cuts[k] = 1.0, 0

        k = active[~accepted]
        length[k] = _shorter(length[k], gain[~accepted], predicted[~accepted])
        cuts[k] += 1
        done[~accepted] = cuts[k] > MOST_CUTS
        active = active[~done]
    return BatchResult(x, value * unit, n_iterations, n_evaluations)


def _evaluate(objective: Objective, which: Index, x: Array, unit: Array) -> tuple[Array, Array]:
    """Evaluate problems in their units; minus infinity where value or gradient is not finite."""
    value, gradient = objective(which, x)
    finite = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
    value = np.where(finite, value / unit[which], -np.inf)
    return value, np.where(finite[:, None], gradient / unit[which, None], 0.0)


def _direction(gradient: Array, moves: Array, turns: Array, inverse: Array, which: Index) -> Array:
    """Return the L-BFGS directions of problems (two-loop recursion): uphill, and no longer than a step may be."""
    d = gradient.copy()
    parts = np.zeros((MEMORY, len(which)))
    for m in reversed(range(MEMORY)):
        parts[m] = inverse[m, which] * (moves[m, which] * d).sum(axis=1)
        d -= parts[m, :, None] * turns[m, which]
    known = inverse[-1, which] > 0
    bend = inverse[-1, which] * np.square(turns[-1, which]).sum(axis=1)
    d *= np.where(known & (bend > 0), 1.0 / np.where(bend > 0, bend, 1.0), 1.0)[:, None]
    for m in range(MEMORY):
        back = inverse[m, which] * (turns[m, which] * d).sum(axis=1)
        d += (parts[m] - back)[:, None] * moves[m, which]
    downhill = ~((gradient * d).sum(axis=1) > 0)
    d[downhill] = gradient[downhill]
    longest = np.abs(d).max(axis=1, initial=0)[:, None]
    return d * np.minimum(1.0, LONGEST_STEP / np.maximum(longest, np.finfo(np.float64).tiny))


def _push(table: Array, latest: Array, which: Index) -> None:
    """Append the latest entries of problems, and drop the oldest."""
    table[:-1, which] = table[1:, which]
    table[-1, which] = latest


def _shorter(length: Array, gain: Array, predicted: Array) -> Array:
    """Shorten a step to the top of the parabola through known values, within bounds; to a quarter where there was no value."""
    with np.errstate(invalid="ignore", divide="ignore"):
        top = 0.5 * predicted * length**2 / (predicted * length - gain)
    return np.where(np.isfinite(top), np.clip(top, 0.1 * length, 0.5 * length), 0.25 * length)
