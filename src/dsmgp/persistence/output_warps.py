"""How the warps of outputs are stored."""

from __future__ import annotations

import numpy as np

from dsmgp._util.constants import LARGEST
from dsmgp.gp.transforms.output_warp import LogWarp, SplineWarp
from dsmgp.gp.transforms.scaling import OutputScaling
from dsmgp.persistence import checks
from dsmgp.persistence.record import ArrayField, Entry, Items, Record, Union

__all__ = ["OUTPUT_WARPS", "latents_in_range"]

# Far more than a fit allows for; within these bounds predictions stay finite.
MOST_LATENT, MOST_SLOPE_RATIO = 1e6, 1e9


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
    SplineWarp,
    {
        "values": ArrayField((None,)),
        "slopes": ArrayField((None,)),
        "start": Entry(checks.number()),
        "lower": Entry(checks.number(), optional=True),
        "strength": Entry(checks.number(-1e3, 1e3)),
    },
    check=_in_range,
)
KINDS = {"spline": SPLINE, "log": Record("output warps", LogWarp, {})}
OUTPUT_WARPS = Items(
    Union("kind", KINDS, lambda warp: "log" if isinstance(warp, LogWarp) else "spline"),
    "output_warps",
    nullable=True,
    size="outputs",
    optional=True,
)
