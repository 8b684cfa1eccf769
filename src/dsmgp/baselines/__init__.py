"""The methods that the paper compares itself with, each as an estimator with ``fit``, ``predict`` and ``predict_dist``.

Those that combine GP experts learn theta jointly, on the engine that :class:`~dsmgp.DSMGPRegressor` uses, so that a
comparison is one of the rules and not of the programs.

>>> from dsmgp.baselines import RBCM
"""

from dsmgp.baselines.kiss import KISSGP
from dsmgp.baselines.local import ExactGP, NaiveLocalExperts
from dsmgp.baselines.moe import MoE
from dsmgp.baselines.products import BCM, GRBCM, RBCM, GPoE, PoE
from dsmgp.baselines.simple import ConstantBaseline, LinearBaseline
from dsmgp.baselines.svgp import SVGP

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
