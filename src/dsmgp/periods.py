"""Where the search for a period starts: the strongest line of the periodogram."""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import Kernel, PeriodicKernel
from numpy.typing import NDArray
from scipy.signal import lombscargle

__all__ = ["dominant_periods", "set_periods"]

Array = NDArray[np.float64]
# Rows that are looked at, and frequencies tried for each period that the range could hold.
MOST_ROWS, PER_PERIOD = 2000, 4


def dominant_periods(X: Array, y: Array) -> Array:
    """Of y along each input, by the periodogram of unevenly spaced rows (Lomb and Scargle).

    Examples
    --------
    >>> x = np.linspace(0, 10, 300)
    >>> print(dominant_periods(x[:, None], np.sin(2 * np.pi * x / 1.7)).round(1))
    [1.7]
    """
    found = np.empty(X.shape[1])
    stride = -(-len(X) // MOST_ROWS)
    for k, column in enumerate(X.T):
        order = np.argsort(column, kind="stable")
        # A stretch without gaps of its own: rows left out in between would hide short periods.
        some = order[: len(order) // stride] if stride > 1 else order
        x, z = column[some], y[some]
        span = np.ptp(x)
        n_distinct = len(np.unique(x))
        if span <= 0 or n_distinct < 6:
            found[k] = 1.0
            continue
        trend = np.polynomial.Polynomial.fit(x, z, 1)
        most = n_distinct // 2  # as many periods as rows can tell apart
        cycles = np.arange(PER_PERIOD, PER_PERIOD * most) / PER_PERIOD
        power = lombscargle(x, z - trend(x), 2.0 * np.pi * cycles / span)
        found[k] = span / cycles[int(np.argmax(power))]
    return found


def set_periods(kernel: Kernel, periods: Array) -> None:
    """Start every periodic part of a kernel there."""
    for module in kernel.modules():
        if isinstance(module, PeriodicKernel):
            module.period_length = torch.from_numpy(periods).reshape(module.period_length.shape)
