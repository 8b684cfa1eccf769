"""Quantiles of mixtures of Gaussians, which have no closed form."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from dsmgp._util.arrays import Array

__all__ = ["solve_quantile"]


def solve_quantile(weights: Array, means: Array, scales: Array, level: float) -> Array:
    """Newton's method on the log of the smaller tail, kept inside a bracket that halves.

    Arrays are (rows, components). Rows leave the iteration as they converge.
    """
    # Relative to the mean: if that is huge beside the scales, rounding could change the order of quantiles.
    centre = (weights * means).sum(axis=1)
    means = means - centre[:, None]
    ends = means + scales * ndtri(level)
    low = np.where(weights > 0, ends, np.inf).min(axis=1)
    high = np.where(weights > 0, ends, -np.inf).max(axis=1)
    # In the upper half solve for 1 - cdf, so that both tails keep their digits.
    sign = 1.0 if level <= 0.5 else -1.0
    target = np.log(min(level, 1.0 - level))
    result = 0.5 * (low + high)
    active = np.arange(len(result))
    for _ in range(200):
        y = result[active]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
            z = (y[:, None] - means) / scales
            tail = np.log((weights * ndtr(sign * z)).sum(axis=1))
            density = (weights * np.exp(-0.5 * z * z) / scales).sum(axis=1) / np.sqrt(2.0 * np.pi)
            step = y - sign * (tail - target) * np.exp(tail) / density
        beyond = sign * (tail - target) > 0
        low, high = np.where(beyond, low, y), np.where(beyond, y, high)
        # At convergence rounding may put a step on the wrong side of y, which is an end of the bracket.
        close = 1e-13 * (np.abs(y) + scales.min(axis=1))
        converged = np.abs(step - y) <= close
        inside = (step > low) & (step < high)
        result[active] = np.where(converged | inside, step, 0.5 * (low + high))
        going = ~converged & (high - low > close)
        if not going.any():
            break
        active, low, high = active[going], low[going], high[going]
        weights, means, scales = weights[going], means[going], scales[going]
    return centre + result
