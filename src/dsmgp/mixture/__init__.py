"""The mixture over the leaves: inference on the tree, gating, the predictive distribution, the fitted model."""

from dsmgp.mixture.predictive.distribution import Mixture

__all__ = ["Mixture"]
