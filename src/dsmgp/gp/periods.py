"""Periods of an output along an input: where the search for a periodic kernel's period starts, and seasons of a series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsmgp._util.arrays import Array

__all__ = ["dominant_periods", "seasonal_periods"]

# Rows that a periodogram is computed from, and frequencies tried for each period that fits into the range.
MOST_ROWS, PER_PERIOD = 2000, 4
# Powers of the time that are removed before seasons are looked for, cycles in the range that a season needs at least, with a period that
# is known and with any other, and its harmonics.
DEGREE, LEAST_CYCLES, LEAST_FREE_CYCLES, HARMONICS = 3, 2.0, 4.0, 3
# Steps of the times at most, for the first look at a spectrum.
MOST_STEPS = 2**16
# Seasons at most; the share of the variance that the first must explain, and those of the variance and of the rest for the second.
MOST_SEASONS, LEAST_SHARE, LEAST_SHARES = 2, 0.1, (0.03, 0.3)
# Periods that differ by a smaller share are one.
LEAST_RATIO = 0.2


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


def seasonal_periods(t: Array, y: Array, known: Sequence[float] = ()) -> tuple[float, ...]:
    """Return the periods of seasons along one input, the strongest first; at most two.

    A cubic polynomial is removed first, then the season found before. A period that cannot be told from one of the ``known``, or on
    equally spaced times from a whole number of steps, is taken to be that.

    Parameters
    ----------
    t, y : ndarray of shape (n,)
    known : sequence of float
        Periods that are likely, such as a day, a week and a year.

    Examples
    --------
    >>> t = np.arange(200.0)
    >>> y = 0.02 * t + np.sin(2 * np.pi * t / 12) + 0.3 * np.sin(2 * np.pi * t / 7)
    >>> seasonal_periods(t, y)
    (12.0, 7.0)
    >>> seasonal_periods(t, 0.01 * t**2)
    ()
    """
    from scipy.signal import lombscargle

    order = np.argsort(t, kind="stable")
    x, distinct = t[order], np.unique(t)
    span = float(np.ptp(x))
    if len(distinct) < 4 * LEAST_CYCLES or not span > 0:
        return ()
    x, rest = (x - x[0]) / span, y[order]
    rest = rest - np.polynomial.Polynomial.fit(x, rest, DEGREE)(x)
    if len(x) > MOST_ROWS:  # at random: thinned out evenly, short periods would be hidden
        kept = np.sort(np.random.default_rng(0).choice(len(x), MOST_ROWS, replace=False))
        x, rest = x[kept], rest[kept]
    step = float(np.median(np.diff(distinct)))
    most = 0.5 * span / step  # the Nyquist limit
    total = float(np.square(rest).sum())
    found: list[float] = []
    while len(found) < MOST_SEASONS and total > 0:
        cycles, power = _spectrum(x, rest, int(min(2.0 * most + 1.0, MOST_STEPS)))
        tried = (cycles >= LEAST_CYCLES) & (cycles < most)
        if not tried.any():
            break
        best = float(cycles[tried][np.argmax(power[tried])])
        fine = best + np.linspace(-1.0, 1.0, 81) / PER_PERIOD
        best = float(fine[np.argmax(lombscargle(x, rest, 2.0 * np.pi * fine))])
        period = _rounded(span / best, span, step, known)
        if period not in known and best < LEAST_FREE_CYCLES:
            break
        if any(abs(period / other - 1.0) < LEAST_RATIO for other in found):
            break  # a season that changes, not a second one
        waves = _waves(x * span / period, int(min(HARMONICS, max(1, most * period / span))))
        explained = waves @ np.linalg.lstsq(waves, rest, rcond=None)[0]
        least, least_of_rest = LEAST_SHARES if found else (LEAST_SHARE, 0.0)
        share = float(np.square(explained).sum())
        if share < max(least * total, least_of_rest * float(np.square(rest).sum())):
            break
        found.append(period)
        rest = rest - explained
    return tuple(found)


def _spectrum(x: Array, z: Array, n_steps: int) -> tuple[Array, Array]:
    """Return numbers of cycles and their power, with x in [0, 1] moved to the nearest of equal steps: what FFT can do quickly."""
    sums = np.bincount(np.rint(x * (n_steps - 1)).astype(np.int64), z, n_steps)
    power = np.asarray(np.square(np.abs(np.fft.rfft(sums, PER_PERIOD * n_steps))), dtype=np.float64)
    cycles = np.arange(len(power), dtype=np.float64) * ((n_steps - 1) / (PER_PERIOD * n_steps))
    return cycles, power


def _rounded(period: float, span: float, step: float, known: Sequence[float]) -> float:
    """Return a period that a periodogram cannot tell from this one: of those known, or a whole number of steps."""
    resolution = 0.25 * period**2 / span
    for nice in (*known, step * round(period / step)):
        if abs(nice - period) < resolution:
            return float(nice)
    return float(period)


def _waves(cycles: Array, n_harmonics: int) -> Array:
    """Return sines and cosines of the harmonics, (n, 2 n_harmonics)."""
    phases = [2.0 * np.pi * k * cycles for k in range(1, n_harmonics + 1)]
    return np.column_stack([wave(phase) for phase in phases for wave in (np.sin, np.cos)])
