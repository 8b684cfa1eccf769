"""Gaussian-process regression that scales: deep structured mixtures of GPs.

>>> from dsmgp import DSMGPRegressor
"""

from typing import TYPE_CHECKING

__all__ = [
    "ChangePoints",
    "DSMGPRegressor",
    "ExtrapolationWarning",
    "FactorisationWarning",
    "Mixture",
    "ModelFileError",
    "__version__",
    "load",
]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dsmgp._util.archive import ModelFileError
    from dsmgp._util.warnings import ExtrapolationWarning, FactorisationWarning
    from dsmgp.mixture.predictive.distribution import Mixture
    from dsmgp.regressor import DSMGPRegressor, load
    from dsmgp.tree.changepoint_leaf import ChangePoints
else:
    # Loaded on first use: the regressor needs scikit-learn's base class, which imports scipy.stats and, where it is
    # installed, pandas. That takes half a second or more, which the command line can do without. Hidden from type
    # checkers, which assume that a module with __getattr__ has every name.
    from importlib import import_module

    from dsmgp import _moved

    _MODULE_OF = {
        "ChangePoints": "tree.changepoint_leaf",
        "DSMGPRegressor": "regressor",
        "ExtrapolationWarning": "_util.warnings",
        "FactorisationWarning": "_util.warnings",
        "Mixture": "mixture.predictive.distribution",
        "ModelFileError": "_util.archive",
        "load": "regressor",
    }

    def __getattr__(name):
        if name not in _MODULE_OF:
            try:  # dsmgp.tree, whatever was imported before
                return import_module(f"dsmgp.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"dsmgp.{name}":
                    raise
                message = f"module {__name__!r} has no attribute {name!r}"
                raise AttributeError(message) from None
        globals()[name] = value = getattr(import_module(f"dsmgp.{_MODULE_OF[name]}"), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})

    _moved.install()
