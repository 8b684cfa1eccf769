"""The methods that the paper compares with, each an estimator with ``fit``, ``predict`` and ``predict_dist``.

Those that combine GP experts learn hyperparameters jointly, with the code that :class:`~dsmgp.DSMGPRegressor` uses, so that a comparison is
one of the methods and not of the implementations.

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
