"""Rows on disk, sorted by shards of leaves, for datasets that do not fit in memory.

:class:`~dsmgp.distributed.row_writer.RowWriter` writes a file for each piece of the data, :class:`RowStore` builds shards from them. A row is
written once for every leaf that it reaches, in the user's units. A file consists of runs, each sorted by shard, so that a shard can be built
from its part of every run.
"""

from __future__ import annotations

import re
import zlib
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
    "FOLDER",
    "N_PREFIX",
    "RowStore",
    "check_empty",
    "files_in",
    "first_leaves_of_shards",
    "row_file",
    "shard_bytes",
]

#: Subfolder with the files.
FOLDER = "shards"
# More would be read in parts too small for a disk.
MAX_SHARDS = 400
#: Numbers before the inputs and outputs of a row in a file: its leaf, counted within the shard, and the row number.
N_PREFIX = 2


@dataclass(frozen=True)
class RowStore:
    """Rows of the leaves of a tree, in files.

    Attributes
    ----------
    folder : Path
        Its subfolder ``shards`` has the files.
    n_rows : int
        Rows of the dataset; each is in a leaf of every partition.
    n_inputs, n_outputs : int
        Columns of the rows.
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard: shards are ranges of leaves.
    sizes : ndarray of shape (n_leaves,)
        Rows of each leaf.
    files : ndarray of shape (n_runs,)
        Number of the file of each run.
    ends : ndarray of shape (n_runs, n_shards + 1)
        Where in its file, counted in rows, the part of each shard begins, and where the last ends.
    checksums : ndarray of shape (n_runs, n_shards)
        CRC-32 of each part.
    temporary : object, optional
        Keeps a temporary folder until the store is deleted.
    input_range : tuple of ndarray of shape (n_inputs,), optional
        Least and largest value of each input, when the rows were written.
    """

    folder: Path
    n_rows: int
    n_inputs: int
    n_outputs: int
    firsts: Index
    sizes: Index
    files: Index
    ends: Index
    checksums: Index
    temporary: Any = None
    input_range: tuple[Array, Array] | None = None

    @classmethod
    def of_shard_files(cls, checksums: Index, **fields: Any) -> RowStore:
        """Return a store of version 0.1, which had a file for each shard: runs of which all but one part are empty."""
        firsts, sizes = fields["firsts"], fields["sizes"]
        n_shards = len(firsts) - 1
        if len(checksums) != n_shards or firsts[-1] != len(sizes) or (np.diff(firsts) <= 0).any():
            raise InputError(
                "expected a checksum for each shard, and shards that are ranges of leaves"
            )
        n_rows = np.add.reduceat(sizes, firsts[:-1])
        ends = np.where(np.arange(n_shards + 1) > np.arange(n_shards)[:, None], n_rows[:, None], 0)
        return cls(files=np.arange(n_shards), ends=ends, checksums=np.diag(checksums), **fields)

    @property
    def n_shards(self) -> int:
        return len(self.firsts) - 1

    @property
    def next_file(self) -> int:
        """A number that no file of the folder has, whether of this model or of another one that shares it."""
        there = [int(path.name.partition(".")[0]) for path in files_in(self.folder)]
        return 1 + max([int(self.files.max(initial=-1)), *there])

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [row_file(self.folder, number) for number in np.unique(self.files).tolist()]

    def joined(self, other: RowStore) -> RowStore:
        """Return a store of the files of both, which are in one folder; the rows of the other are numbered after these."""
        return replace(
            self,
            n_rows=self.n_rows + other.n_rows,
            sizes=self.sizes + other.sizes,
            files=np.concatenate([self.files, other.files]),
            ends=np.concatenate([self.ends, other.ends]),
            checksums=np.concatenate([self.checksums, other.checksums]),
            input_range=_joint_range(self.input_range, other.input_range),
        )

    def read_file(self, number: int) -> Iterator[tuple[Index, Index, Array, Array]]:
        """Yield, for each run of a file, the leaf and the number of every row, and inputs and outputs."""
        for run in np.flatnonzero(self.files == number).tolist():
            yield self.read_run(run)

    def read_run(self, run: int) -> tuple[Index, Index, Array, Array]:
        """Return the leaf and the number of every row of a run, and inputs and outputs."""
        parts = [self.read_part(run, shard) for shard in range(self.n_shards)]
        raw = np.concatenate(parts)
        first_leaf = np.repeat(self.firsts[:-1], [len(part) for part in parts])
        X, Y = np.split(raw[:, N_PREFIX:], [self.n_inputs], axis=1)
        return raw[:, 0].astype(np.int64) + first_leaf, raw[:, 1].astype(np.int64), X, Y

    def read_part(self, run: int, shard: int) -> Array:
        """Read a shard's rows of a run, and compare their checksum."""
        width = N_PREFIX + self.n_inputs + self.n_outputs
        path = row_file(self.folder, int(self.files[run]))
        first, end = self.ends[run, shard : shard + 2].tolist()
        n_numbers = (end - first) * width
        if not n_numbers:
            return np.empty((0, width))
        try:
            part = np.fromfile(path, count=n_numbers, offset=8 * width * first)
        except OSError as error:
            raise ModelFileError(
                f"the rows of some leaves are gone: {path} cannot be read ({error.strerror}); a model that was fitted to a "
                "dataset needs its folder"
            ) from error
        if part.size != n_numbers or zlib.crc32(part.data) != self.checksums[run, shard]:
            raise ModelFileError(f"{path} is damaged or was cut short; use a copy, or fit again")
        return part.reshape(-1, width)

    def moved(self, folder: Path) -> RowStore:
        """Return the store after its files were moved to a permanent folder."""
        return replace(self, folder=folder, temporary=None)

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
                _RowsOnDisk(self, shard, *units),
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
    """Loads the rows of one shard."""

    store: RowStore
    shard: int
    inputs: InputScaling
    outputs: OutputScaling

    def __call__(self) -> ShardData:
        store = self.store
        sizes = store.sizes[store.firsts[self.shard] : store.firsts[self.shard + 1]]
        raw = np.concatenate([store.read_part(run, self.shard) for run in range(len(store.files))])
        # By leaf, then by row, in whatever order runs were written.
        raw = raw[np.lexsort((raw[:, 1], raw[:, 0]))]
        # Rows that are in several leaves of the shard are kept once.
        ids, first, place = np.unique(
            raw[:, 1].astype(np.int64), return_index=True, return_inverse=True
        )
        X = np.ascontiguousarray(raw[first, N_PREFIX : N_PREFIX + store.n_inputs])
        Y = np.ascontiguousarray(raw[first, N_PREFIX + store.n_inputs :])
        rows = place.reshape(-1).astype(np.int64)
        scaled = self.inputs.to_experts(X), self.outputs.to_experts(Y)
        data = LeafData(*scaled, labels=equal_rows(X))
        return ShardData(ids, Ragged.of_sizes(rows, sizes), data)


def _joint_range(
    one: tuple[Array, Array] | None, other: tuple[Array, Array] | None
) -> tuple[Array, Array] | None:
    """Return the range of the inputs of both; None where one of them is not known."""
    if one is None or other is None:
        return None
    return np.minimum(one[0], other[0]), np.maximum(one[1], other[1])


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
    if n_shards > MAX_SHARDS:
        raise MemoryError(
            f"leaves, rows and factors take {total[-1] / 1e9:.3g} GB, and would need {n_shards} parts of the {memory / 1e6:.3g} MB there are for "
            f"each, more than {MAX_SHARDS}; raise memory_limit to {total[-1] / MAX_SHARDS / memory:.1f} times what it is, or lower leaf_size"
        )
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


def files_in(folder: Path) -> list[Path]:
    """Return the files of rows, and those of pieces whose worker died."""
    return [
        file
        for file in (folder / FOLDER).glob("*.rows*")
        if file.is_file() and re.fullmatch(r"\d{5,}\.rows(\.\d+)?", file.name)
    ]


def row_file(folder: Path, number: int) -> Path:
    """Return the path of a file of rows."""
    return folder / FOLDER / f"{number:05d}.rows"
