"""How the warps of outputs are stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsmgp._util.constants import LARGEST
from dsmgp.gp.output_warp import LogWarp, SplineWarp
from dsmgp.gp.scaling import OutputScaling
from dsmgp.persistence import checks
from dsmgp.persistence.record import ArrayField, Entry, Items, Record, Union

__all__ = ["OUTPUT_WARPS", "latents_in_range"]

# Far more than a fit allows for; within these bounds predictions stay finite.
MOST_LATENT, MOST_SLOPE_RATIO = 1e6, 1e9


def _make_spline(start: float, lower: float | None, **fields: Any) -> SplineWarp:
    # JSON may have numbers as integers.
    return SplineWarp(start=float(start), lower=None if lower is None else float(lower), **fields)


def _in_range(warp: SplineWarp) -> bool:
    """Return whether knots and slopes are such as a fit could have found; the class itself checks their order and signs."""
    return bool(
        np.abs(warp.knots).max() < MOST_LATENT
        and warp.rate < LARGEST
        and np.abs(warp.values).max() < LARGEST
        and warp.slopes.min() > 1.0 / LARGEST
        and warp.slopes.max() < min(LARGEST, MOST_SLOPE_RATIO * warp.slopes.min())
    )


def latents_in_range(outputs: OutputScaling) -> bool:
    """Return whether the latent outputs of warps, if there are any, have sane centres and scales."""
    warped = [k for k in range(outputs.n_outputs) if outputs.is_warped(k)]
    numbers = np.abs([*outputs.centre[warped], *outputs.loading[warped].ravel(), 0.0])
    return bool(numbers.max() < MOST_LATENT)


SPLINE = Record(
    "output warps",
    _make_spline,
    {
        "values": ArrayField("values", (None,)),
        "slopes": ArrayField("slopes", (None,)),
        "start": Entry("start", checks.number(), encode=float),
        "lower": Entry("lower", checks.number(), optional=True, encode=float),
        "strength": Entry("strength", checks.number(-1e3, 1e3), encode=float),
    },
    check=_in_range,
)
KINDS = {"spline": SPLINE, "log": Record("output warps", LogWarp, {})}
OUTPUT_WARPS = Items(
    "output_warps",
    Union("kind", KINDS, lambda warp: "log" if isinstance(warp, LogWarp) else "spline"),
    prefix="output_warps.",
    optional=True,
    size="outputs",
    may_lack=True,
)
