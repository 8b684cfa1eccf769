"""Former module paths of public names, which still import, with a warning that says where they are now."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dsmgp._util.warnings import warn_user

__all__ = ["install"]

# Modules of the API page up to version 0.1, and where their public names are now.
NEW_HOME = {
    "archive": "dsmgp",
    "breaks": "dsmgp.changepoints",
    "executor": "dsmgp.distributed",
    "notices": "dsmgp",
    "originals": "dsmgp.datasets",
    "splits": "dsmgp.changepoints",
}


class _Finder(MetaPathFinder, Loader):
    """Finds a module by its former name: a module whose attributes are those of the package it moved to."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == "dsmgp" and name in NEW_HOME else None

    def exec_module(self, module: ModuleType) -> None:
        home = NEW_HOME[module.__name__.rpartition(".")[2]]
        warn_user(f"{module.__name__} has moved: import from {home} instead", DeprecationWarning)
        module.__getattr__ = lambda name: getattr(import_module(home), name)  # type: ignore[method-assign]


def install() -> None:
    """Let the former paths be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
