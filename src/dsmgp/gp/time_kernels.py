"""Kernels of a series: lines and curves, slow trends, seasons and what is left from one time to the next, with priors on all of them.

A kernel is a sum of *parts* by name. With these priors the maximum of the evidence forecasts about as well as methods made for series
(Corani et al. 2021): what the data do not ask for keeps a small variance. Length scales are relative to the range of the times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsmgp._util.arrays import Array
from dsmgp._util.errors import InputError
from dsmgp.gp.named_process import LogNormal, NamedProcess, build_named_process
from dsmgp.gp.named_process import ParameterBlock as Block

__all__ = ["SLOW_PARTS", "TimeInputs", "time_process"]

#: Parts of which the variance decides how wide forecasts become, if anything does.
SLOW_PARTS = ("trend", "level")
# Priors of variances and of the noise: medians as logarithms, and standard deviations of the logarithm.
VARIANCE, SMALL_VARIANCE, NOISE = (-1.5, 1.5), (-2.5, 1.5), (math.log(0.01), 2.0)
# Where learning of the noise starts.
START_NOISE = 0.05
# Periods are detected, and hardly learned.
PERIOD_SPREAD = 0.002


@dataclass(frozen=True)
class TimeInputs:
    """The inputs of a table with a time, as the leaf GPs see them.

    Attributes
    ----------
    time : int
        Number of the time.
    n_dims : int
    spread : float
        Standard deviation of the times.
    span : float
        Their range.
    periods : tuple of float
    """

    time: int
    n_dims: int
    spread: float
    span: float
    periods: tuple[float, ...] = ()

    @property
    def others(self) -> list[int]:
        """Numbers of the other inputs."""
        return [k for k in range(self.n_dims) if k != self.time]


def time_process(
    parts: Sequence[str], inputs: TimeInputs, noise: Block, spread: Array
) -> NamedProcess:
    """Return the process of a sum of parts, at the medians of its priors.

    Parameters
    ----------
    parts : sequence of str
        "line", "curve" (a parabola), "trend", "level", "season" (one for each period), "short" and "others", which is a function of
        all other inputs.
    inputs : TimeInputs
    noise : ParameterBlock
        Of the observation noise.
    spread : ndarray of shape (n_dims,)
        Standard deviation of each input.

    Examples
    --------
    >>> inputs = TimeInputs(0, 1, spread=1.0, span=3.5, periods=(0.1,))
    >>> process = time_process(["line", "season"], inputs, Block("noise", 1), np.ones(1))
    >>> process.kernel.name, process.kernel.terms[1].times[0].period
    ('linear+rbf*periodic', array([0.1]))
    """
    names, priors = [], []
    for part in parts:
        for kernel, of_part in _part(part, inputs):
            columns = inputs.others if part == "others" else [inputs.time]
            names.append(f"{kernel}[{','.join(map(str, columns))}]")
            priors += of_part
    process = build_named_process("+".join(names), "zero", noise, START_NOISE, spread, 1.0)
    blocks = []
    for (block, theta), prior in zip(process.parts, [*priors, NOISE], strict=True):
        if prior is not None:
            loc = np.full(block.size, prior[0])
            block = replace(block, prior=LogNormal(loc, prior[1]))
            theta = theta if block.name == "noise" else loc
        blocks.append((block, theta))
    return NamedProcess.of(process.leaf_kernel, blocks)


def _part(part: str, inputs: TimeInputs) -> Iterator[tuple[str, list[tuple[float, float] | None]]]:
    """Yield the terms of a part: kernel, and priors in the order of theta."""
    unit, span = math.log(inputs.spread), math.log(inputs.span)
    if part == "others":
        yield "matern32", [VARIANCE, None]
    elif part == "line":
        yield "linear", [(0.0, 1.5), (unit, 1.0)]
    elif part == "curve":
        slope = (unit + math.log(1.5), 1.0)
        yield "linear*linear", [(0.0, 1.5), slope, slope]
    elif part == "trend":
        yield "matern52", [VARIANCE, (span + math.log(0.5), 1.0)]
    elif part == "level":
        yield "matern32", [VARIANCE, (span + math.log(0.15), 1.0)]
    elif part == "short":
        yield "matern12", [SMALL_VARIANCE, (span + math.log(0.03), 1.0)]
    elif part == "season":
        for period in inputs.periods:
            slow = (span + math.log(1.5), 1.0)
            yield "rbf*periodic", [VARIANCE, slow, (0.4, 1.0), (math.log(period), PERIOD_SPREAD)]
    else:
        raise InputError(f"unknown part {part!r} of a series")
