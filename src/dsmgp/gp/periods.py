"""The dominant period of an output along each input, where the search for a periodic kernel's period starts."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array

__all__ = ["dominant_periods"]

# Rows that a periodogram is computed from, and frequencies tried for each period that fits into the range.
MOST_ROWS, PER_PERIOD = 2000, 4


def dominant_periods(X: Array, y: Array, weights: Array | None = None) -> Array:
    """Return the period of y along each input with the largest power in the Lomb-Scargle periodogram, (n_dims,).

    Examples
    --------
    >>> x = np.linspace(0, 10, 300)
    >>> print(dominant_periods(x[:, None], np.sin(2 * np.pi * x / 1.7)).round(1))
    [1.7]
    """
    # For periodic kernels only, and slower to import than all of dsmgp.
    from scipy.signal import lombscargle

    periods = np.empty(X.shape[1])
    stride = -(-len(X) // MOST_ROWS)
    for k, column in enumerate(X.T):
        order = np.argsort(column, kind="stable")
        # A contiguous stretch: thinning out the rows would hide short periods.
        rows = order[: len(order) // stride] if stride > 1 else order
        x, z = column[rows], y[rows]
        span = np.ptp(x)
        n_distinct = len(np.unique(x))
        if span <= 0 or n_distinct < 6:
            periods[k] = 1.0
            continue
        w = None if weights is None else weights[rows]
        trend = np.polynomial.Polynomial.fit(x, z, 1, w=None if w is None else np.sqrt(w))
        most = n_distinct // 2  # the Nyquist limit
        cycles = np.arange(PER_PERIOD, PER_PERIOD * most) / PER_PERIOD
        frequencies = 2.0 * np.pi * cycles / span
        if w is None:
            power = lombscargle(x, z - trend(x), frequencies)
        else:
            power = _weighted_power(x, z - trend(x), w, frequencies)
        periods[k] = span / cycles[int(np.argmax(power))]
    return periods


def _weighted_power(x: Array, z: Array, w: Array, frequencies: Array) -> Array:
    """The periodogram of weighted rows; SciPy's has weights from version 1.15 on."""
    phase = np.outer(frequencies, x)
    shift = 0.5 * np.arctan2(np.sin(2.0 * phase) @ w, np.cos(2.0 * phase) @ w)
    waves = [wave(phase - shift[:, None]) for wave in (np.cos, np.sin)]
    squares = [np.maximum(np.square(wave) @ w, np.finfo(np.float64).tiny) for wave in waves]
    return np.asarray(
        sum(np.square(wave @ (w * z)) / square for wave, square in zip(waves, squares, strict=True))
    )
