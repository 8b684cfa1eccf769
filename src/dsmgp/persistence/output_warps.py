"""How the warps of outputs are stored."""

from __future__ import annotations

from dsmgp.gp.output_warp import LogWarp, SplineWarp
from dsmgp.persistence import checks
from dsmgp.persistence.record import ArrayField, Entry, Items, Record, Union

__all__ = ["OUTPUT_WARPS"]

# The class checks that values increase and slopes are positive.
SPLINE = Record(
    "output warps",
    SplineWarp,
    {
        "values": ArrayField("values", (None,)),
        "slopes": ArrayField("slopes", (None,)),
        "start": Entry("start", checks.number(), encode=float),
        "lower": Entry("lower", checks.number(), optional=True, encode=float),
        "strength": Entry("strength", checks.number(), encode=float),
    },
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
