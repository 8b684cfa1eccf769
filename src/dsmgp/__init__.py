"""Gaussian-process regression that scales: deep structured mixtures of GPs.

>>> from dsmgp import DSMGPRegressor
"""

from dsmgp.conditioned import FactorisationWarning
from dsmgp.mixture import Mixture
from dsmgp.regressor import DSMGPRegressor

__all__ = ["DSMGPRegressor", "FactorisationWarning", "Mixture", "__version__"]

__version__ = "0.1.0"
