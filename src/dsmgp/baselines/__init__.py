"""The methods that the paper compares with, each an estimator with ``fit``, ``predict`` and ``predict_dist``.

Those that combine GP experts learn hyperparameters jointly, with the code that :class:`~dsmgp.DSMGPRegressor` uses, so that a comparison is
one of the methods and not of the implementations. ``SVGP`` and ``KISSGP`` are written in GPyTorch and need ``dsmgp[torch]``.

>>> from dsmgp.baselines import RBCM
"""

from typing import TYPE_CHECKING

from dsmgp._util.machine import require_torch
from dsmgp.baselines.local import ExactGP, NaiveLocalExperts
from dsmgp.baselines.moe import MoE
from dsmgp.baselines.products import BCM, GRBCM, RBCM, GPoE, PoE
from dsmgp.baselines.simple import ConstantBaseline, LinearBaseline

__all__ = [
    "BCM",
    "GRBCM",
    "KISSGP",
    "RBCM",
    "SVGP",
    "ConstantBaseline",
    "ExactGP",
    "GPoE",
    "LinearBaseline",
    "MoE",
    "NaiveLocalExperts",
    "PoE",
]

if TYPE_CHECKING:
    from dsmgp.baselines.kiss import KISSGP
    from dsmgp.baselines.svgp import SVGP
else:
    # Loaded on first use, with torch. Hidden from type checkers, which assume that a module with __getattr__ has
    # every name.
    from importlib import import_module

    _MODULE_OF = {"KISSGP": "kiss", "SVGP": "svgp"}

    def __getattr__(name):
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require_torch(f"dsmgp.baselines.{name}")
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
        globals()[name] = value = getattr(module, name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
