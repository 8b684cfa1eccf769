"""Rows on disk, sorted by shards of leaves, for datasets that do not fit in memory.

:class:`~dsmgp.distributed.row_writer.RowWriter` writes a file for each piece of the data, :class:`RowStore` builds shards from them. A row is
written once for every leaf that it reaches, in the user's units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index
from dsmgp._util.errors import InputError
from dsmgp._util.ragged import Ragged
from dsmgp.distributed.row_files import FOLDER, FORMER_TOKEN, RowFiles, files_in
from dsmgp.distributed.shard import ShardData, ShardPlan
from dsmgp.distributed.sharded import (
    ShardedLeafGPs,
    ShardedLeafPosterior,
    kernels_of_part,
)
from dsmgp.distributed.workers import LocalWorkers, WorkerPool
from dsmgp.experts.backends.interface import LeafKernel
from dsmgp.experts.leaf_data import LeafData
from dsmgp.experts.points import equal_rows
from dsmgp.gp.transforms.scaling import InputScaling, OutputScaling

__all__ = [
    "N_PREFIX",
    "RowStore",
    "check_empty",
    "first_leaves_of_shards",
    "shard_bytes",
]

#: Numbers before the inputs and outputs of a row in a file: its leaf, counted within the shard, and the row number.
N_PREFIX = 2
# No store has more.
MOST_FILES = 10**7


@dataclass(frozen=True, eq=False)
class RowStore:
    """Rows of the leaves of a tree, in files.

    Attributes
    ----------
    files : RowFiles
    n_rows : int
        Rows of the dataset; each is in a leaf of every partition.
    n_inputs, n_outputs : int
        Columns of the rows.
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard: shards are ranges of leaves.
    sizes : ndarray of shape (n_leaves,)
        Rows of each leaf.
    temporary : object, optional
        Keeps a temporary folder until the store is deleted.
    input_range : tuple of ndarray of shape (n_inputs,), optional
        Least and largest value of each input, when the rows were written.
    replaced : tuple of int
        Numbers of files that held these rows and others, which have been forgotten.
    """

    files: RowFiles
    n_rows: int
    n_inputs: int
    n_outputs: int
    firsts: Index
    sizes: Index
    temporary: Any = None
    input_range: tuple[Array, Array] | None = None
    replaced: tuple[int, ...] = ()

    @classmethod
    def stored(
        cls,
        files: Index | None,
        former: Index | None,
        n_inputs: int,
        n_outputs: int,
        firsts: Index,
        **fields: Any,
    ) -> RowStore:
        """Return a store from what a model file has: groups of files, or checksums of files of version 0.1, or both."""
        n_shards, n_leaves = len(firsts) - 1, len(fields["sizes"])
        if firsts[0] != 0 or firsts[-1] != n_leaves or (np.diff(firsts) <= 0).any():
            raise InputError("expected shards that are ranges of leaves")
        if former is not None and len(former) != n_shards:
            raise InputError("expected a checksum for each shard")
        groups = np.array([[0, n_shards, FORMER_TOKEN]]) if files is None else files
        ends = groups[:, :2].T.tolist()
        sizes = [end - first for first, end in zip(*ends, strict=True)]  # of any size in a bad file
        if (files is None and former is None) or min(sizes) <= 0 or sum(sizes) > MOST_FILES:
            raise InputError("expected groups of files")
        row_files = RowFiles(Path(), groups, n_shards, N_PREFIX + n_inputs + n_outputs, former)
        return cls(row_files, n_inputs=n_inputs, n_outputs=n_outputs, firsts=firsts, **fields)

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def n_shards(self) -> int:
        return len(self.firsts) - 1

    def joined(self, other: RowStore) -> RowStore:
        """Return a store of the files of both, which are in one folder; the rows of the other are numbered after these."""
        return replace(
            self,
            files=replace(
                self.files, groups=np.concatenate([self.files.groups, other.files.groups])
            ),
            n_rows=self.n_rows + other.n_rows,
            sizes=self.sizes + other.sizes,
        )

    def read_file(self, number: int) -> Iterator[tuple[Index, Index, Array, Array]]:
        """Yield, for each run of a file, the leaf and the number of every row, and inputs and outputs."""
        for run in range(len(self.files.run_sizes(number))):
            yield self.read_run(number, run)

    def read_run(self, number: int, run: int) -> tuple[Index, Index, Array, Array]:
        """Return the leaf and the number of every row of a run of a file, and inputs and outputs."""
        parts = self.files.run(number, run)
        raw = np.concatenate(parts)
        first_leaf = np.repeat(self.firsts[:-1], [len(part) for part in parts])
        X, Y = np.split(raw[:, N_PREFIX:], [self.n_inputs], axis=1)
        return raw[:, 0].astype(np.int64) + first_leaf, raw[:, 1].astype(np.int64), X, Y

    def moved(self, folder: Path) -> RowStore:
        """Return the store after its files were moved to a permanent folder."""
        return replace(self, files=replace(self.files, folder=folder), temporary=None)

    def leaf_gps(
        self,
        pool: WorkerPool,
        kernels: Sequence[Sequence[LeafKernel]],
        units: tuple[InputScaling, OutputScaling],
        memory: float,
        dtype: str,
    ) -> ShardedLeafGPs:
        """Return the leaf GPs; rows stay on disk."""
        parts = [np.arange(*ends) for ends in zip(self.firsts[:-1], self.firsts[1:], strict=True)]
        plans = [
            ShardPlan(
                _RowsOnDisk(self.files, shard, self.sizes[part], self.n_inputs, *units),
                part,
                kernels_of_part(part, kernels),
                pool.memory_of_shard(memory),
                pool.device,
                dtype,
                n_bytes=float(shard_bytes(self.sizes[part], self.n_inputs, self.n_outputs)),
            )
            for shard, part in enumerate(parts)
        ]
        none = LeafData(np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs)))
        return ShardedLeafGPs(
            pool, plans, parts, kernels, self.n_rows, memory, none, store=self, units=units
        )

    def reduced(self, posterior: ShardedLeafPosterior) -> tuple[Any, ...]:
        """Return what ``__reduce__`` of a posterior with rows in this store has to return."""
        if self.temporary is not None:
            raise TypeError(
                "the rows of this model are in a temporary folder, which does not outlive it; save the model, or "
                "fit_dataset with store=..., then copy it"
            )
        leaf_gps, memory = posterior.leaf_gps, posterior.memory
        gps_arguments = leaf_gps.kernels, leaf_gps.units, leaf_gps.memory, leaf_gps.dtype
        return _rebuild, (
            self, gps_arguments, posterior.kernel_parameters, memory, posterior.log_evidence
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "temporary": None}


@dataclass(frozen=True)
class _RowsOnDisk:
    """Loads the rows of one shard; it is sent to whoever builds the shard, and small whatever the store holds.

    Attributes
    ----------
    files : RowFiles
    shard : int
    sizes : ndarray
        Rows of each leaf of the shard.
    n_inputs : int
    inputs, outputs : InputScaling, OutputScaling
    """

    files: RowFiles
    shard: int
    sizes: Index
    n_inputs: int
    inputs: InputScaling
    outputs: OutputScaling

    def __call__(self) -> ShardData:
        raw = np.concatenate(list(self.files.of_shard(self.shard)))
        if len(raw) != self.sizes.sum():
            raise ModelFileError(
                f"{self.files.folder} has other rows than the model was fitted to; use a copy, or fit again"
            )
        # By leaf, then by row, in whatever order runs were written.
        raw = raw[np.lexsort((raw[:, 1], raw[:, 0]))]
        # Rows that are in several leaves of the shard are kept once.
        ids, first, place = np.unique(
            raw[:, 1].astype(np.int64), return_index=True, return_inverse=True
        )
        X, Y = (
            np.ascontiguousarray(part)
            for part in np.split(raw[first, N_PREFIX:], [self.n_inputs], axis=1)
        )
        rows = place.reshape(-1).astype(np.int64)
        scaled = self.inputs.to_experts(X), self.outputs.to_experts(Y)
        data = LeafData(*scaled, labels=equal_rows(X))
        return ShardData(ids, Ragged.of_sizes(rows, self.sizes), data)


def _rebuild(
    store: RowStore,
    gps_arguments: Any,
    kernel_parameters: Sequence[Array],
    memory: float,
    log_evidence: Array,
) -> ShardedLeafPosterior:
    """Rebuild a posterior in this process, after unpickling."""
    leaf_gps = store.leaf_gps(LocalWorkers(memory, "cpu"), *gps_arguments)
    return leaf_gps.condition_later(kernel_parameters, memory, log_evidence)


def shard_bytes(sizes: NDArray[Any], n_inputs: int, n_outputs: int) -> float:
    """Return about how many bytes leaves of these sizes need: for their rows, several times over, and their factors."""
    rows = 8.0 * (3 * n_inputs + 8 * n_outputs + 8)
    each = np.asarray(sizes, dtype=np.float64)
    return float((each * rows + 8.0 * n_outputs * each**2).sum())


def first_leaves_of_shards(
    sizes: NDArray[Any], n_inputs: int, n_outputs: int, memory: float, least: int = 1
) -> Index:
    """Divide leaves into shards that fit in memory.

    Parameters
    ----------
    sizes : ndarray of shape (n_leaves,)
        Expected rows of each leaf.
    n_inputs, n_outputs : int
        Columns of the rows.
    memory : float
        Bytes for one shard.
    least : int
        Fewest shards.

    Returns
    -------
    ndarray of shape (n_shards + 1,)
        The first leaf of each shard, then the number of leaves.
    """
    each = np.array([shard_bytes(size, n_inputs, n_outputs) for size in np.asarray(sizes)])
    total = np.cumsum(each)
    n_shards = int(min(max(np.ceil(total[-1] / memory), least), len(each)))
    cuts = np.searchsorted(total, total[-1] * np.arange(1, n_shards) / n_shards) + 1
    return np.unique(np.concatenate([[0], cuts, [len(each)]])).astype(np.int64)


def check_empty(folder: Path) -> None:
    """Raise if a folder holds anything but the files of an interrupted fit, or is not one of this machine."""
    if re.fullmatch(r"[A-Za-z][\w+.-]+:", folder.parts[0] if folder.parts else ""):
        raise ModelFileError(
            f"a model that is fitted to files needs a folder on a disk, or a shared file system that all workers have mounted, got the address "
            f"{folder}; fit with the path of a local folder, and copy it afterwards"
        )
    if not folder.parent.is_dir():
        raise ModelFileError(f"the folder {folder.parent} does not exist; create it first")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is a file; give the name of a folder that is not there yet")
    if {*folder.rglob("*")} - {folder / FOLDER, *files_in(folder)}:
        what = "a model" if (folder / FOLDER).is_dir() else "something else"
        raise ModelFileError(f"{folder} is there already, with {what} in it; give another path")
