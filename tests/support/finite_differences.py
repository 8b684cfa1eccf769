"""Gradients by finite differences."""

from __future__ import annotations

import numpy as np


def central_difference(f, theta, h=3e-4):
    """Sixth-order central differences, by the last axis: at this step rounding and truncation both stay below 1e-9."""
    columns = []
    for k in range(len(theta)):
        e = np.zeros_like(theta)
        e[k] = h
        d1, d2, d3 = (f(theta + m * e) - f(theta - m * e) for m in (1, 2, 3))
        columns.append((45 * d1 - 9 * d2 + d3) / (60 * h))
    return np.stack(columns, -1)
