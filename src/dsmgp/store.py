"""Rows on disk, leaf by leaf: a file for each shard of leaves, written in one pass over the data.

A row stands in the file of every leaf that it reaches, in the user's units, so each shard can be made from its file alone.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsmgp.archive import ModelFileError
from dsmgp.engine import Law
from dsmgp.loo import equal_rows
from dsmgp.ragged import Ragged
from dsmgp.shard import Content, Plan
from dsmgp.sharded import Hosts, LocalHosts, ShardedConditioned, ShardedExperts, laws_of
from dsmgp.units import InputUnits, OutputUnits

__all__ = ["FOLDER", "RowStore", "Spill", "check_empty", "divided"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
#: Where a store keeps its shards.
FOLDER = "shards"
# Files that are written at the same time: systems have a limit.
MOST_SHARDS = 400
# Numbers in a file are these before a row's inputs and outputs: the leaf, counted within its shard, and the row.
BEFORE = 2


@dataclass(frozen=True)
class RowStore:
    """Rows of the leaves of a tree, in files.

    Attributes
    ----------
    folder : Path
    n_rows : int
        Of the data; leaves of several partitions hold each of them.
    n_inputs, n_outputs : int
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard: shards are runs of leaves.
    sizes : ndarray of shape (n_leaves,)
        Rows of each leaf.
    checksums : ndarray of shape (n_shards,)
        CRC-32 of each file.
    temporary : object, optional
        A folder that goes when nobody needs it any more.
    """

    folder: Path
    n_rows: int
    n_inputs: int
    n_outputs: int
    firsts: Index
    sizes: Index
    checksums: Index
    temporary: Any = None

    def file(self, shard: int) -> Path:
        return _file(self.folder, shard)

    def moved(self, folder: Path) -> RowStore:
        """The same files elsewhere, where they stay."""
        return replace(self, folder=folder, temporary=None)

    def experts(
        self,
        hosts: Hosts,
        laws: Sequence[Sequence[Law]],
        units: tuple[InputUnits, OutputUnits],
        memory: float,
        dtype: torch.dtype,
    ) -> ShardedExperts:
        """The leaves' GPs, whose rows stay where they are."""
        parts = [np.arange(*ends) for ends in zip(self.firsts[:-1], self.firsts[1:], strict=True)]
        plans = [
            Plan(
                StoredRows(self, shard, *units),
                part,
                laws_of(part, laws),
                hosts.memory_of_shard(memory),
                hosts.device,
                dtype,
                n_bytes=float(shard_bytes(self.sizes[part], self.n_inputs, self.n_outputs)),
            )
            for shard, part in enumerate(parts)
        ]
        none = (
            torch.empty(0, self.n_inputs, dtype=dtype),
            torch.empty(0, self.n_outputs, dtype=dtype),
        )
        experts = ShardedExperts(
            hosts, hosts.place(plans), parts, laws, self.n_rows, memory, (*none, None)
        )
        experts.store, experts.units = self, units
        return experts

    def conditioned(
        self,
        hosts: Hosts,
        laws: Sequence[Sequence[Law]],
        units: tuple[InputUnits, OutputUnits],
        memory: float,
        dtype: torch.dtype,
        naturals: Sequence[Tensor],
        log_evidence: Array,
    ) -> ShardedConditioned:
        """Leaves that have seen their rows before, and see them again when they are asked."""
        experts = self.experts(hosts, laws, units, 0.5 * memory, dtype)
        return ShardedConditioned(experts, naturals, memory, log_evidence=log_evidence)

    def reduced(self, seen: ShardedConditioned) -> tuple[Any, ...]:
        """What pickle and copy need of leaves whose rows are here."""
        if self.temporary is not None:
            raise TypeError(
                "the rows of this model are in a temporary folder, which does not outlive it; save the model, or "
                "fit_dataset with store=..., then copy it"
            )
        experts = seen.experts
        return _conditioned_here, (
            self, experts.laws, experts.units, seen.memory, experts.X.dtype, seen.naturals, seen.log_evidence,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "temporary": None}


@dataclass(frozen=True)
class StoredRows:
    """What gives a shard its rows."""

    store: RowStore
    shard: int
    inputs: InputUnits
    outputs: OutputUnits

    def __call__(self) -> Content:
        store, path = self.store, self.store.file(self.shard)
        width = BEFORE + store.n_inputs + store.n_outputs
        part = slice(store.firsts[self.shard], store.firsts[self.shard + 1])
        sizes = store.sizes[part]
        try:
            raw = np.fromfile(path)
        except OSError as error:
            raise ModelFileError(
                f"the rows of some leaves are gone: {path} cannot be read ({error.strerror}); a model that was fitted to a "
                "dataset needs its folder"
            ) from error
        if raw.size != width * sizes.sum() or zlib.crc32(raw.data) != store.checksums[self.shard]:
            raise ModelFileError(f"{path} is damaged or was cut short; use a copy, or fit again")
        raw = raw.reshape(-1, width)
        leaf = raw[:, 0].astype(np.int64)
        # Rows that several leaves of the shard hold are kept once.
        ids, first, place = np.unique(
            raw[:, 1].astype(np.int64), return_index=True, return_inverse=True
        )
        X = np.ascontiguousarray(raw[first, BEFORE : BEFORE + store.n_inputs])
        Y = np.ascontiguousarray(raw[first, BEFORE + store.n_inputs :])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        rows = place.reshape(-1)[np.argsort(leaf, kind="stable")].astype(np.int64)
        return Content(
            ids,
            self.inputs.to_experts(X),
            self.outputs.to_experts(Y),
            None,
            Ragged(rows, ends),
            equal_rows(X),
        )


class _Temporary:
    """A folder that goes with this object, or when Python ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsmgp-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class Spill:
    """Files that rows are sent to, batch by batch.

    Parameters
    ----------
    folder : Path, optional
        Where files go; a temporary folder if left out.
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard.
    n_inputs, n_outputs : int
    """

    def __init__(self, folder: Path | None, firsts: Index, n_inputs: int, n_outputs: int) -> None:
        self._temporary: _Temporary | None = None
        if folder is None:
            self._temporary = _Temporary()
            folder = self._temporary.folder
        self.folder, self.firsts = folder, firsts
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        n_shards = len(firsts) - 1
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for old in _shards_in(folder):
            old.unlink()  # of a fit that was cut short
        self._files: list[BinaryIO] = [
            _file(folder, shard).open("wb", buffering=2**16) for shard in range(n_shards)
        ]
        self._checksums = [0] * n_shards
        self._sizes = np.zeros(firsts[-1], dtype=np.int64)
        self.n_rows = 0

    def add(self, leaf: Index, row: Index, X: Array, Y: Array) -> None:
        """More rows, that reach leaves by pairs of leaf and row among them."""
        shard = np.searchsorted(self.firsts, leaf, side="right") - 1
        order = np.argsort(shard, kind="stable")
        leaf, row, shard = leaf[order], row[order], shard[order]
        self._sizes += np.bincount(leaf, minlength=len(self._sizes))
        table = np.column_stack(
            [leaf - self.firsts[shard], row + self.n_rows, X[row], Y[row]]
        ).astype(np.float64, copy=False)
        ends = np.searchsorted(shard, np.arange(len(self._files) + 1))
        for k, file in enumerate(self._files):
            part = np.ascontiguousarray(table[ends[k] : ends[k + 1]])
            if len(part):
                file.write(part.data)
                self._checksums[k] = zlib.crc32(part.data, self._checksums[k])
        self.n_rows += len(X)

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    @property
    def store(self) -> RowStore:
        """What was written, once it is closed."""
        return RowStore(
            self.folder,
            self.n_rows,
            self.n_inputs,
            self.n_outputs,
            self.firsts,
            self._sizes,
            np.array(self._checksums, dtype=np.int64),
            self._temporary,
        )


def _conditioned_here(store: RowStore, laws: Any, units: Any, memory: float, *rest: Any) -> Any:
    """Shards of this process."""
    hosts = LocalHosts(memory, torch.device("cpu"))
    return store.conditioned(hosts, laws, units, memory, *rest)


def shard_bytes(sizes: NDArray[Any], n_inputs: int, n_outputs: int) -> float:
    """About what leaves take in memory: their rows, a few times over, and their factors."""
    rows = 8.0 * (3 * n_inputs + 8 * n_outputs + 8)
    each = np.asarray(sizes, dtype=np.float64)
    return float((each * rows + 8.0 * n_outputs * each**2).sum())


def divided(
    sizes: NDArray[Any], n_inputs: int, n_outputs: int, memory: float, least: int = 1
) -> Index:
    """The first leaf of each shard, such that a shard of leaves of about these sizes fits in memory; at least so many shards."""
    each = np.array([shard_bytes(one, n_inputs, n_outputs) for one in np.asarray(sizes)])
    total = np.cumsum(each)
    n_shards = int(min(max(np.ceil(total[-1] / memory), least), len(each)))
    if n_shards > MOST_SHARDS:
        raise MemoryError(
            f"leaves, rows and factors take {total[-1] / 1e9:.3g} GB, and would need {n_shards} parts of the {memory / 1e6:.3g} MB there are for "
            f"each, more than {MOST_SHARDS}; raise memory_limit to {total[-1] / MOST_SHARDS / memory:.1f} times what it is, or lower leaf_size"
        )
    cuts = np.searchsorted(total, total[-1] * np.arange(1, n_shards) / n_shards) + 1
    return np.unique(np.concatenate([[0], cuts, [len(each)]])).astype(np.int64)


def check_empty(folder: Path) -> None:
    """Refuse a folder that holds anything but what a fit that was cut short has left there."""
    if not folder.parent.is_dir():
        raise ModelFileError(f"the folder {folder.parent} does not exist; create it first")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; give the name of a folder that is not there yet")
    if {*folder.rglob("*")} - {folder / FOLDER, *_shards_in(folder)}:
        what = "a model" if (folder / FOLDER).is_dir() else "something else"
        raise ModelFileError(f"{folder} is there already, with {what} in it; give another path")


def _shards_in(folder: Path) -> list[Path]:
    return [
        file
        for file in (folder / FOLDER).glob("*.rows")
        if file.is_file() and re.fullmatch(r"\d{5}\.rows", file.name)
    ]


def _file(folder: Path, shard: int) -> Path:
    return folder / FOLDER / f"{shard:05d}.rows"
