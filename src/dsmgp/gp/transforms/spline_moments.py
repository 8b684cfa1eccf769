"""Mean and variance of h(T) for Gaussian T and a spline h (:class:`~dsmgp.gp.transforms.output_warp.SplineWarp`), in closed form.

All sums are of h(m + s Z) - h(m), with Z a standard Gaussian. As h(m) is the median, the mean of that difference is at most its
standard deviation: nothing cancels in the variance, however narrow the Gaussian is and however large h(m).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfcx, ndtr

from dsmgp._util.arrays import Array, Index

if TYPE_CHECKING:
    from dsmgp.gp.transforms.output_warp import SplineWarp

__all__ = ["spline_moments"]

# Gaussians whose moments are computed at once: arrays stay in the cache.
AT_ONCE = 2048
# Gaussian mass further out than this many standard deviations is below the smallest number.
FAR = 39.0
# And further out than this it is less than 1e-18.
NO_MASS = 9.0
# Pieces narrower than this many standard deviations: differences of their truncated moments would cancel.
NARROW = 0.25
# Gauss-Legendre nodes and weights on the unit interval.
NODES, NODE_WEIGHTS = (
    0.5 * table + shift
    for table, shift in zip(np.polynomial.legendre.leggauss(5), (0.5, 0.0), strict=True)
)
# Exponential tails that bend less than this over a standard deviation: differences of exponentials would cancel.
NEARLY_LINEAR, TAYLOR_TERMS = 0.03, 9
SQRT_2, SQRT_2PI, SQRT_HALF_PI = (float(np.sqrt(x)) for x in (2.0, 2.0 * np.pi, 0.5 * np.pi))
TINY = float(np.finfo(np.float64).tiny)


def spline_moments(warp: SplineWarp, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return mean and variance of h(T) for Gaussians T, in the shape of their means and variances."""
    mean, variance = np.broadcast_arrays(mean, variance)
    m, s = mean.reshape(-1), np.sqrt(variance).reshape(-1)
    shift, square, value = (np.empty(m.size) for _ in range(3))
    # By knots where that is accurate, which is faster.
    by_knot = s * NARROW <= np.diff(warp.knots).min()
    if warp.lower is not None:
        by_knot &= m >= warp.knots[0]
    for chosen, compute in ((by_knot, _by_knot), (~by_knot, _by_piece)):
        rows = np.flatnonzero(chosen)
        for first in range(0, rows.size, AT_ONCE):
            part = rows[first : first + AT_ONCE]
            value[part], shift[part], square[part] = compute(warp, m[part], s[part])
    spread = np.maximum(square - np.square(shift), 0.0)
    return (value + shift).reshape(mean.shape), spread.reshape(mean.shape)


def _by_knot(warp: SplineWarp, m: Array, s: Array) -> tuple[Array, Array, Array]:
    """h(m), and E of h(m + s Z) - h(m) and of its square: the quadratic at m, corrected beyond each knot.

    At a knot the second derivative of h jumps, and with it second to fourth derivative of the square. So both functions are a
    polynomial plus, for each knot, powers of the distance beyond it.
    """
    value, slope = warp.value_and_slope(m)
    home = np.searchsorted(warp.knots, m, side="right")[:, None]  # the piece of the mean
    away = warp.knots - m[:, None]  # (n, knots)
    rise = _rise(warp, home, slope[:, None], away)
    side = np.where(np.arange(len(warp.knots)) < home, -1.0, 1.0)
    x = _in_deviations(np.abs(away), s)
    density = np.exp(-0.5 * x * x) / SQRT_2PI
    T0 = density * (SQRT_HALF_PI * erfcx(x / SQRT_2))  # T_k is E[(Z - x)^k; Z > x]
    T1 = density - x * T0
    T2 = T0 - x * T1
    T3 = 2.0 * T1 - x * T2
    T4 = 3.0 * T2 - x * T3
    before, after = warp.curvatures[:-1], warp.curvatures[1:]
    jump, square_jump = after - before, after**2 - before**2
    linear, bend = s * slope, 0.5 * s**2 * warp.curvatures[home[:, 0]]
    first = bend + 0.5 * s**2 * ((side * T2) @ jump)
    second = linear**2 + 3.0 * bend**2 + s**2 * (
        (np.abs(rise) * T2) @ jump + s * (T3 @ (jump * warp.slopes)) + 0.25 * s**2 * ((side * T4) @ square_jump)
    )  # fmt: skip
    if warp.lower is not None:
        # An exponential instead of the line that continues below the first knot, where there is any mass.
        k = np.flatnonzero(x[:, 0] < NO_MASS)
        left = _TruncatedMoments(-x[k, :1]).left_tail(TAYLOR_TERMS)
        start, line = rise[k, 0], s[k] * warp.slopes[0]
        tail = _tail_moments(warp, away[k, 0], s[k], start, left)
        first[k] += tail[0] - (start * left[0] + line * left[1])
        second[k] += tail[1] - start * (start * left[0] + 2.0 * line * left[1]) - line**2 * left[2]
    return value, first, second


def _by_piece(warp: SplineWarp, m: Array, s: Array) -> tuple[Array, Array, Array]:
    """The same, piece by piece: in each the function is a quadratic of Z - c, with c the point of the piece closest to the mean."""
    value, slope = warp.value_and_slope(m)
    home = np.searchsorted(warp.knots, m, side="right")[:, None]
    away = warp.knots - m[:, None]
    truncated = _TruncatedMoments(_in_deviations(away, s))
    rise = _rise(warp, home, slope[:, None], away)
    # Coefficients about c, over one standard deviation: (n, pieces).
    piece = np.arange(len(warp.knots) + 1)
    near = np.clip(piece - (piece > home), 0, len(warp.knots) - 1)  # the knot towards the mean
    offset = np.where(piece == home, 0.0, np.take_along_axis(rise, near, axis=1))
    linear = s[:, None] * np.where(piece == home, slope[:, None], warp.slopes[near])
    bend = 0.5 * np.square(s)[:, None] * warp.curvatures
    M = truncated.moments(4)
    first = offset * M[0] + linear * M[1] + bend * M[2]
    second = (
        offset * first
        + linear * (offset * M[1] + linear * M[2] + bend * M[3])
        + bend * (offset * M[2] + linear * M[3] + bend * M[4])
    )
    if warp.lower is not None:
        left = truncated.left_tail(TAYLOR_TERMS)
        first[:, 0], second[:, 0] = _tail_moments(warp, away[:, 0], s, offset[:, 0], left)
    return value, first.sum(axis=1), second.sum(axis=1)


def _in_deviations(away: Array, s: Array) -> Array:
    """Distances (n, k) in standard deviations; where no mass is left the distance does not matter."""
    with np.errstate(over="ignore"):
        return np.clip(away / np.maximum(s, TINY)[:, None], -FAR, FAR)


def _rise(warp: SplineWarp, home: Index, slope: Array, away: Array) -> Array:
    """h at the knots minus h(m), (n, knots), for means in the pieces ``home`` (n, 1), with the knots ``away`` from them.

    To the knots of its own piece along the quadratic, as the difference would cancel, and from there between knots.
    """
    last = len(warp.knots) - 1
    left, right = np.maximum(home - 1, 0), np.minimum(home, last)
    to_left, to_right = (np.take_along_axis(away, knot, axis=1) for knot in (left, right))
    curvature = 0.5 * warp.curvatures[home]
    below, above = (d * (slope + curvature * d) for d in (to_left, to_right))
    if warp.lower is not None:
        in_tail = (warp.lower - warp.values[0]) * np.expm1(-warp.rate * np.abs(to_right))
        above = np.where(home == 0, in_tail, above)
    height = warp.values - warp.values[0]  # values may be huge
    start = np.where(np.arange(last + 1) < home, below - height[left], above - height[right])
    return np.asarray(start + height)


def _tail_moments(
    warp: SplineWarp, away: Array, s: Array, offset: Array, left: list[Array]
) -> tuple[Array, Array]:
    """Contributions of the exponential tail, (n,) each: there h is ``lower + height exp(bend (Z - c))``.

    Parameters
    ----------
    away : ndarray of shape (n,)
        Distance from the mean to the first knot, below which the tail is.
    s : ndarray of shape (n,)
        Standard deviations.
    offset : ndarray of shape (n,)
        h at c minus h at the mean.
    left : list of ndarray of shape (n,)
        Truncated moments of the tail about c.
    """
    assert warp.lower is not None
    bend, top = warp.rate * s, warp.values[0] - warp.lower
    height = top * np.exp(-warp.rate * np.maximum(away, 0.0))
    # Taylor series of exp(bend v) - 1 and of its square.
    rise, square, power = np.zeros_like(s), np.zeros_like(s), np.ones_like(s)
    for k in range(1, TAYLOR_TERMS + 1):
        power = power * np.minimum(bend, NEARLY_LINEAR) / k
        rise += power * left[k]
        square += (2.0**k - 2.0) * power * left[k]
    first = offset * left[0] + height * rise
    second = offset * (first + height * rise) + np.square(height) * square
    # In closed form relative to the bound, which is offset - height above h(m).
    x, drop, bound = _in_deviations(away[:, None], s)[:, 0], warp.rate * away, offset - height
    once = top * _tilted(x, bend, drop)
    twice = top**2 * _tilted(x, 2.0 * bend, 2.0 * drop)
    nearly_linear = bend < NEARLY_LINEAR
    return (
        np.where(nearly_linear, first, once + bound * left[0]),
        np.where(nearly_linear, second, twice + bound * (2.0 * once + bound * left[0])),
    )


class _TruncatedMoments:
    """Moments of a standard Gaussian Z in the pieces between points x (n, points), about the point c of each that is closest to zero."""

    def __init__(self, x: Array) -> None:
        density, tail = np.exp(-0.5 * x * x) / SQRT_2PI, ndtr(-np.abs(x))
        none = np.zeros((len(x), 1))
        self.a, self.b = np.hstack([none - FAR, x]), np.hstack([x, none + FAR])
        self.density_a, self.density_b = np.hstack([none, density]), np.hstack([density, none])
        tail_a, tail_b = np.hstack([none, tail]), np.hstack([tail, none])
        mass = np.where(self.b <= 0, tail_b - tail_a, 1.0 - tail_a - tail_b)
        self.mass = np.where(self.a >= 0, tail_a - tail_b, mass)
        self.c = np.clip(0.0, self.a, self.b)

    def moments(self, order: int) -> list[Array]:
        """E[(Z - c)^k; a < Z < b] for k up to ``order``, each (n, pieces)."""
        moments = self._by_parts(order, slice(None))
        narrow = self.b - self.a < NARROW
        if narrow.any():
            a, width, c = self.a[narrow], (self.b - self.a)[narrow], self.c[narrow]
            z = a[:, None] + width[:, None] * NODES
            weight = NODE_WEIGHTS * width[:, None] * np.exp(-0.5 * z * z) / SQRT_2PI
            for moment in moments:
                moment[narrow] = weight.sum(axis=1)
                weight *= z - c[:, None]
        return moments

    def left_tail(self, order: int) -> list[Array]:
        """The same of the first piece, which has no left end; each (n,)."""
        return self._by_parts(order, 0)

    def _by_parts(self, order: int, pieces: slice | int) -> list[Array]:
        a, b, c = (each[:, pieces] for each in (self.a, self.b, self.c))
        at_a, at_b = self.density_a[:, pieces], self.density_b[:, pieces]
        moments = [self.mass[:, pieces].copy()]
        for k in range(order):
            # The derivative of v^k phi is k v^(k-1) phi - (v + c) v^k phi, with v = z - c.
            moment = at_a - at_b - c * moments[k]
            if k:
                moment += k * moments[k - 1]
            moments.append(moment)
            at_a, at_b = at_a * (a - c), at_b * (b - c)
        return moments


def _tilted(x: Array, bend: Array, drop: Array) -> Array:
    """E[exp(bend (Z - x)); Z < x] of a standard Gaussian Z without overflow; ``drop`` is bend times x."""
    u = x - bend
    with np.errstate(over="ignore", invalid="ignore"):
        near = 0.5 * np.exp(-0.5 * x * x) * erfcx(np.maximum(-u, 0.0) / SQRT_2)
        far = np.exp(np.minimum(0.5 * bend * bend - drop, 0.0)) * ndtr(u)
    return np.where(u < 0, near, far)
