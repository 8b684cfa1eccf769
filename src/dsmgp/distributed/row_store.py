"""Training rows on disk, in one file per shard of leaves, for datasets that do not fit in memory.

:class:`RowWriter` writes the files in one pass over the data, :class:`RowStore` builds shards from them. A row is written
once for every leaf that it reaches, in the user's units, so a shard can be built from its file alone.
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
from numpy.typing import NDArray

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index
from dsmgp._util.ragged import Ragged
from dsmgp.distributed.shard import ShardData, ShardPlan
from dsmgp.distributed.sharded import (
    ShardedLeafGPs,
    ShardedLeafPosterior,
    kernels_of_part,
)
from dsmgp.distributed.workers import LocalWorkers, WorkerPool
from dsmgp.experts.backend import LeafKernel
from dsmgp.experts.points import equal_rows
from dsmgp.gp.scaling import InputScaling, OutputScaling

__all__ = [
    "FOLDER",
    "RowStore",
    "RowWriter",
    "check_empty",
    "first_leaves_of_shards",
    "shard_bytes",
]

#: Subfolder with the files of the shards.
FOLDER = "shards"
# Files that are open for writing at the same time, of which systems have a limit.
MAX_SHARDS = 400
# Numbers before the inputs and outputs of a row in a file: its leaf, counted within the shard, and the row number.
N_PREFIX = 2


@dataclass(frozen=True)
class RowStore:
    """Rows of the leaves of a tree, in files.

    Attributes
    ----------
    folder : Path
        Its subfolder ``shards`` has a file for each shard.
    n_rows : int
        Rows of the dataset; each is in a leaf of every partition.
    n_inputs, n_outputs : int
        Columns of the rows.
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard: shards are ranges of leaves.
    sizes : ndarray of shape (n_leaves,)
        Rows of each leaf.
    checksums : ndarray of shape (n_shards,)
        CRC-32 of each file.
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
    checksums: Index
    temporary: Any = None
    input_range: tuple[Array, Array] | None = None

    def file(self, shard: int) -> Path:
        return _file(self.folder, shard)

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
        none = (np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs)), None, None, None)
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
        store, path = self.store, self.store.file(self.shard)
        width = N_PREFIX + store.n_inputs + store.n_outputs
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
        # Rows that are in several leaves of the shard are kept once.
        ids, first, place = np.unique(
            raw[:, 1].astype(np.int64), return_index=True, return_inverse=True
        )
        X = np.ascontiguousarray(raw[first, N_PREFIX : N_PREFIX + store.n_inputs])
        Y = np.ascontiguousarray(raw[first, N_PREFIX + store.n_inputs :])
        rows = place.reshape(-1)[np.argsort(leaf, kind="stable")].astype(np.int64)
        return ShardData(
            ids,
            self.inputs.to_experts(X),
            self.outputs.to_experts(Y),
            None,
            Ragged.of_sizes(rows, sizes),
            equal_rows(X),
        )


class _TemporaryFolder:
    """A folder that is deleted with this object, or when Python ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsmgp-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class RowWriter:
    """Writes rows to the files of their shards, batch by batch; a context manager.

    Parameters
    ----------
    folder : Path, optional
        Where to write; a temporary folder if left out.
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard.
    n_inputs, n_outputs : int
        Columns of the rows.
    """

    def __init__(self, folder: Path | None, firsts: Index, n_inputs: int, n_outputs: int) -> None:
        self._temporary: _TemporaryFolder | None = None
        if folder is None:
            self._temporary = _TemporaryFolder()
            folder = self._temporary.folder
        self.folder, self.firsts = folder, firsts
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        n_shards = len(firsts) - 1
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for old in _shards_in(folder):
            old.unlink()  # left by a fit that was interrupted
        self._files: list[BinaryIO] = [
            _file(folder, shard).open("wb", buffering=2**16) for shard in range(n_shards)
        ]
        self._checksums = [0] * n_shards
        self._sizes = np.zeros(firsts[-1], dtype=np.int64)
        self.n_rows = 0
        self._low, self._high = np.full(n_inputs, np.inf), np.full(n_inputs, -np.inf)

    def add(self, leaf: Index, row: Index, X: Array, Y: Array) -> None:
        """Write a batch of rows.

        Parameters
        ----------
        leaf, row : ndarray of shape (n_pairs,)
            Which rows of the batch reach which leaves.
        X, Y : ndarray of shape (n_rows, n_inputs) and (n_rows, n_outputs)
            The batch.
        """
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
        self._low = np.minimum(self._low, X.min(axis=0, initial=np.inf))
        self._high = np.maximum(self._high, X.max(axis=0, initial=-np.inf))

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    @property
    def store(self) -> RowStore:
        """The rows written, after the files are closed."""
        return RowStore(
            self.folder,
            self.n_rows,
            self.n_inputs,
            self.n_outputs,
            self.firsts,
            self._sizes,
            np.array(self._checksums, dtype=np.int64),
            self._temporary,
            (self._low, self._high),
        )


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
    """Raise if a folder holds anything but the files of an interrupted fit."""
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
