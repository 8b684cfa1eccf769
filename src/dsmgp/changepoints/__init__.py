"""Functions that change abruptly: the exact posterior over segmentations of rows that are ordered along one input.

``fit`` learns hyperparameters (``objective``) and outliers (``outliers``) on leaves with ordered rows (``leaf``). A leaf computes the evidence of
its segments (``sliding_cholesky``, ``prefix_gp``) and the posterior over segmentations (``segmentation``); ``segment_gp`` predicts with it,
and ``model`` combines the leaves of a tree.
"""

from dsmgp.mixture.splits import ChangePoint, Splits
from dsmgp.tree.changepoint_leaf import ChangePointLeaf, ChangePoints

__all__ = ["ChangePoint", "ChangePointLeaf", "ChangePoints", "Splits"]

BreakingLeaf = ChangePointLeaf  # its name up to version 0.1
