"""Conditioned leaves in a model file: nothing of them, as they can be conditioned again; their factors; or, beside the file, their rows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.archive import Archive, ModelFileError
from dsmgp.conditioned import Conditioned
from dsmgp.engine import Law
from dsmgp.execution import as_tensor
from dsmgp.experts import Experts
from dsmgp.process import Family
from dsmgp.settings import Settings
from dsmgp.sharded import LocalHosts
from dsmgp.store import FOLDER, RowStore, check_empty
from dsmgp.stored_factors import read_factors, write_factors
from dsmgp.tree import Node, leaves
from dsmgp.units import InputUnits, OutputUnits
from dsmgp.updates import Rows

__all__ = ["MODEL", "StoredLeaves", "write_leaves"]

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]
#: The name of the file in the folder of a model whose rows are beside it.
MODEL = "model.dsmgp"


def write_leaves(
    path: Path, seen: Conditioned, include_factors: bool, arrays: Arrays
) -> tuple[Path, dict[str, Any]]:
    """Where the model's file goes, and what its header says of leaves; rows in files are copied to the folder of that name."""
    if getattr(seen.experts, "store", None) is not None:
        return _write_store(path, seen, arrays)
    if include_factors:
        write_factors(seen.local(), arrays)
    return path, {}


@dataclass(frozen=True)
class StoredLeaves:
    """What else is known of the leaves of a file.

    ``family`` says which of the families each leaf belongs to, ``naturals`` are by output.
    """

    tree: Node
    families: Sequence[Family]
    family: NDArray[np.int64]
    naturals: Sequence[Tensor]
    units: tuple[InputUnits, OutputUnits]

    def read(self, archive: Archive, settings: Settings, rows: Rows, folder: Path) -> Conditioned:
        """The leaves, having seen their rows."""
        n_dims, n_outputs = rows.X.shape[1], rows.Y.shape[1]
        room = 0.5 * settings.memory
        own = [each.laws(n_dims) for each in self.families]
        laws = [[own[f][output] for f in self.family.tolist()] for output in range(n_outputs)]
        if "store" in archive.header:
            n_leaves = len(self.family)
            store = _read_store(archive, folder, n_leaves, n_dims, n_outputs)
            evidence = archive.array("store.log_evidence", np.float64, n_leaves, n_outputs)
            hosts = LocalHosts(room, settings.device)
            return store.conditioned(
                hosts, laws, self.units, room, settings.dtype, self.naturals, evidence
            )
        experts = _experts(self.tree, laws, settings, rows, *self.units)
        if "factor.alpha" in archive:
            return read_factors(archive, experts, self.naturals, room)
        return Conditioned(experts, self.naturals, room)


def _experts(
    tree: Node,
    laws: Sequence[Sequence[Law]],
    settings: Settings,
    rows: Rows,
    inputs: InputUnits,
    outputs: OutputUnits,
) -> Experts:
    kind = (settings.device, settings.dtype)
    known = None
    if rows.noise is not None:
        known = as_tensor(outputs.noise_to_experts(rows.noise), kind)
    return Experts(
        leaves(tree),
        as_tensor(inputs.to_experts(rows.X), kind),
        as_tensor(outputs.to_experts(rows.Y), kind),
        laws,
        memory=0.25 * settings.memory,
        known=known,
    )


# Rows beside the file, where they were not held in memory


def _write_store(folder: Path, seen: Any, arrays: Arrays) -> tuple[Path, dict[str, Any]]:
    """Copy the rows into a folder, unless they are there; the model's file comes last, so a folder that has one is whole."""
    store: RowStore = seen.experts.store
    if folder.resolve() != store.folder.resolve():
        check_empty(folder)
    try:
        folder.mkdir(exist_ok=True)
        (folder / FOLDER).mkdir(exist_ok=True)
        if folder.resolve() != store.folder.resolve():
            for shard in range(len(store.checksums)):
                shutil.copyfile(store.file(shard), store.moved(folder).file(shard))
    except OSError as error:
        raise ModelFileError(f"cannot write rows in {folder}: {error.strerror}") from error
    arrays["store.firsts"], arrays["store.sizes"] = store.firsts, store.sizes
    arrays["store.checksums"] = store.checksums
    arrays["store.log_evidence"] = seen.log_evidence
    return folder / MODEL, {"store": {"n_rows": int(store.n_rows)}}


def _read_store(
    archive: Archive, folder: Path, n_leaves: int, n_inputs: int, n_outputs: int
) -> RowStore:
    told = archive.entry("store", lambda v: isinstance(v, dict))
    firsts = archive.array("store.firsts", np.int64, None)
    sizes = archive.array("store.sizes", np.int64, n_leaves)
    checksums = archive.array("store.checksums", np.int64, len(firsts) - 1)
    runs = firsts[0] == 0 and firsts[-1] == n_leaves and (np.diff(firsts) > 0).all()
    if not runs or (sizes < 0).any() or int(told["n_rows"]) < 1:
        raise ModelFileError("its leaves do not go with its rows")
    n_rows = int(told["n_rows"])
    return RowStore(folder, n_rows, n_inputs, n_outputs, firsts, sizes, checksums)
