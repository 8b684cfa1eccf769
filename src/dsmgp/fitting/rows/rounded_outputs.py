"""The least noise variance of outputs that are rounded: that a few duplicate inputs have equal outputs does not show that all would."""

from __future__ import annotations

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp.fitting.rows.scaled_rows import ScaledRows

__all__ = ["least_noise", "output_step"]

# Fewer different outputs are classes rather than rounded numbers.
FEWEST_VALUES = 10
# Most steps between the smallest and the largest output, and how far outputs may be off multiples of the step, relative to it.
MOST_STEPS, TOLERANCE = 1e6, 1e-3


def least_noise(data: ScaledRows) -> float:
    """Return the least noise variance that duplicate inputs with equal outputs allow for, as the leaf GPs see it; 0 without any.

    Outputs in steps of d often agree at a duplicate input, and where all of m duplicates do, the evidence grows without bounds as the
    noise vanishes; the first duplicate that is a step off then has no density at all. By Laplace's rule of succession the next one
    disagrees with probability 1 / (m + 2), which is a variance of d**2 / 2 / (m + 2), or more.
    """
    n_points = len(np.unique(data.labels))
    n_rows = len(data.Y) if data.n_observations is None else data.n_observations
    if n_rows < n_points + 1:
        return 0.0
    scaled = data.scaled_Y
    variances = []
    for k, y in enumerate(data.Y.T):
        step = output_step(y)
        if step == 0.0:
            return 0.0
        above = data.Y.copy()
        above[:, k] += step
        scaled_step = np.median(np.abs(data.outputs.to_experts(above) - scaled)[:, k])
        variances.append(0.5 * scaled_step**2 / (n_rows - n_points + 2.0))
    least = min(variances)
    return least if np.isfinite(least) else 0.0


def output_step(y: Array) -> float:
    """Return the step of which all differences of outputs are multiples; 0 if there is none, or if there are few different outputs.

    Examples
    --------
    >>> output_step(np.arange(20) * 0.5 + 3.0), output_step(np.sqrt(np.arange(20.0)))
    (0.5, 0.0)
    """
    values = np.unique(y)
    if len(values) < FEWEST_VALUES:
        return 0.0
    step = float(np.diff(values).min())
    multiples = (values - values[0]) / step
    if not np.isfinite(multiples).all() or multiples[-1] > MOST_STEPS:
        return 0.0
    return step if np.abs(multiples - np.rint(multiples)).max() < TOLERANCE else 0.0
