"""L-BFGS for many small problems at once: each has its own direction, step and end; all are evaluated together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Found", "Objective", "maximise"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
#: From numbers of problems and a point for each: values, and gradients with a row for each.
Objective = Callable[[Index, Array], tuple[Array, Array]]

# Steps that curvature is taken from.
MEMORY = 10
# No parameter moves further than this in one step; they are logarithms, or like them.
LONGEST_STEP = 2.0
# A step counts if it gains this share of what the gradient promises (Armijo).
ENOUGH = 1e-4
# A step that was shortened this often is given up.
MOST_CUTS = 12


@dataclass
class Found:
    """Where each problem's search ended, the best that was seen, and how long it took."""

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
) -> Found:
    """Climb from every row of ``start``.

    Values are taken in each problem's ``unit``. A search ends after ``max_iter`` steps, when a step gains less than
    ``tolerance`` (relatively, where values are above one), or where no derivative is above ``flat``.

    Examples
    --------
    >>> top = np.array([[1.0, 2.0], [-3.0, 0.5]])
    >>> found = maximise(
    ...     lambda k, x: (-np.square(x - top[k]).sum(1), -2.0 * (x - top[k])),
    ...     np.zeros((2, 2)),
    ...     np.ones(2),
    ...     max_iter=50,
    ...     tolerance=1e-12,
    ... )
    >>> found.point.round(4)
    array([[ 1. ,  2. ],
           [-3. ,  0.5]])
    """
    n, width = start.shape
    x = start.copy()
    value, gradient = _in_units(objective, np.arange(n), x, unit)
    moves, turns = np.zeros((MEMORY, n, width)), np.zeros((MEMORY, n, width))
    inverse = np.zeros((MEMORY, n))  # 1 / (move . turn); zero where there was no such step
    n_iterations, n_evaluations = np.zeros(n, np.int64), 1
    active = np.flatnonzero(np.isfinite(value) & (np.abs(gradient).max(axis=1, initial=0) > flat))
    direction = np.zeros_like(x)
    direction[active] = _direction(gradient[active], moves, turns, inverse, active)
    length, cuts = np.ones(n), np.zeros(n, np.int64)
    while active.size and max_iter > 0:
        trial = x[active] + length[active, None] * direction[active]
        reached, slope = _in_units(objective, active, trial, unit)
        n_evaluations += 1
        promised = (gradient[active] * direction[active]).sum(axis=1)
        gain = reached - value[active]
        good = gain >= ENOUGH * length[active] * promised  # not so where there is no value
        done = np.zeros(len(active), bool)

        k = active[good]
        _remember(moves, trial[good] - x[k], k)
        # Of the negative: positive where it bends down.
        _remember(turns, gradient[k] - slope[good], k)
        curvature = (moves[-1, k] * turns[-1, k]).sum(axis=1)
        usable = curvature > 1e-12 * np.square(turns[-1, k]).sum(axis=1)
        _remember(inverse, np.where(usable, 1.0 / np.where(usable, curvature, 1.0), 0.0), k)
        done[good] = gain[good] <= tolerance * np.maximum(np.abs(value[k]), 1.0)
        x[k], value[k], gradient[k] = trial[good], reached[good], slope[good]
        n_iterations[k] += 1
        done[good] |= (np.abs(gradient[k]).max(axis=1, initial=0) <= flat) | (
            n_iterations[k] >= max_iter
        )
        direction[k] = _direction(gradient[k], moves, turns, inverse, k)
        length[k], cuts[k] = 1.0, 0

        k = active[~good]
        length[k] = _shorter(length[k], gain[~good], promised[~good])
        cuts[k] += 1
        done[~good] = cuts[k] > MOST_CUTS
        active = active[~done]
    return Found(x, value * unit, n_iterations, n_evaluations)


def _in_units(objective: Objective, which: Index, x: Array, unit: Array) -> tuple[Array, Array]:
    """Minus infinity where there is no value, or no gradient."""
    value, gradient = objective(which, x)
    fine = np.isfinite(value) & np.isfinite(gradient).all(axis=1)
    value = np.where(fine, value / unit[which], -np.inf)
    return value, np.where(fine[:, None], gradient / unit[which, None], 0.0)


def _direction(gradient: Array, moves: Array, turns: Array, inverse: Array, which: Index) -> Array:
    """The two loops of L-BFGS, for all problems; uphill, and no longer than a step may be."""
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


def _remember(table: Array, latest: Array, which: Index) -> None:
    table[:-1, which] = table[1:, which]
    table[-1, which] = latest


def _shorter(length: Array, gain: Array, promised: Array) -> Array:
    """To the top of the parabola through what is known, within bounds; a quarter where there was no value."""
    with np.errstate(invalid="ignore", divide="ignore"):
        top = 0.5 * promised * length**2 / (promised * length - gain)
    return np.where(np.isfinite(top), np.clip(top, 0.1 * length, 0.5 * length), 0.25 * length)
