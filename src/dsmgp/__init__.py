"""Gaussian-process regression that scales: deep structured mixtures of GPs.

>>> from dsmgp import DSMGPRegressor
"""

from typing import TYPE_CHECKING

__all__ = [
    "ChangePoints",
    "DSMGPRegressor",
    "FactorisationWarning",
    "Mixture",
    "ModelFileError",
    "__version__",
    "load",
]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dsmgp.archive import ModelFileError
    from dsmgp.breaks import ChangePoints
    from dsmgp.mixture import Mixture
    from dsmgp.notices import FactorisationWarning
    from dsmgp.regressor import DSMGPRegressor, load
else:
    # Loaded when asked for: scikit-learn, which the regressor stands on, brings in scipy.stats and
    # pandas, and so takes not much less than torch and gpytorch. Hidden from type checkers, which
    # would believe a module with __getattr__ to have every name.
    from importlib import import_module

    _HOMES = {
        "ChangePoints": "breaks", "DSMGPRegressor": "regressor", "FactorisationWarning": "notices",
        "Mixture": "mixture", "ModelFileError": "archive", "load": "regressor",
    }  # fmt: skip

    def __getattr__(name):
        if name not in _HOMES:
            try:  # dsmgp.tree, whatever was imported before
                return import_module(f"dsmgp.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"dsmgp.{name}":
                    raise
                message = f"module {__name__!r} has no attribute {name!r}"
                raise AttributeError(message) from None
        globals()[name] = found = getattr(import_module(f"dsmgp.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
