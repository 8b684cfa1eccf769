"""Writing of rows, sorted by shards of leaves: a file for each piece of the data.

Pieces are independent of one another: workers write them side by side, and one whose worker died is written again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.distributed.row_files import FOLDER, RowFiles, files_in, row_file, write_file
from dsmgp.distributed.row_store import N_PREFIX, RowStore

__all__ = ["RoutedBatch", "RowWriter", "WrittenPiece"]


class _TemporaryFolder:
    """A folder that is deleted with this object, or when Python ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsmgp-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@dataclass(frozen=True)
class WrittenPiece:
    """What a worker reports of a piece that it has written: counts, no rows.

    Attributes
    ----------
    number : int
        Of the piece, and of its file.
    n_rows : int
    sizes : ndarray of shape (n_leaves,)
        Its rows in each leaf.
    low, high : ndarray of shape (n_inputs,)
        Least and largest value of each input.
    """

    number: int
    n_rows: int
    sizes: Index
    low: Array
    high: Array


#: Leaves and rows of a batch that they reach, the number of its first row or of every row, and its X and Y.
RoutedBatch = tuple[Index, Index, int | Index, Array, Array]


@dataclass(frozen=True)
class RowWriter:
    """Writes rows to files, piece by piece; pieces may be written anywhere, in any order.

    Attributes
    ----------
    folder : Path
    firsts : ndarray of shape (n_shards + 1,)
        The first leaf of each shard.
    n_inputs, n_outputs : int
        Columns of the rows.
    temporary : object, optional
        Keeps a temporary folder.
    token : int
        Ends every file, and tells it from those of other fits and updates.
    """

    folder: Path
    firsts: Index
    n_inputs: int
    n_outputs: int
    temporary: _TemporaryFolder | None = field(default=None, repr=False)
    token: int = field(default_factory=lambda: 1 + secrets.randbits(62))

    @classmethod
    def into(cls, folder: Path | None, firsts: Index, n_inputs: int, n_outputs: int) -> RowWriter:
        """Write into a folder, or into a temporary one."""
        temporary = None
        if folder is None:
            temporary = _TemporaryFolder()
            folder = temporary.folder
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for old in files_in(folder):
            old.unlink()  # left by a fit that was interrupted
        return cls(folder, firsts, n_inputs, n_outputs, temporary)

    def write(self, number: int, batches: Iterable[RoutedBatch]) -> WrittenPiece:
        """Write the file of a piece, completely or not at all; each batch becomes a run."""
        path = row_file(self.folder, number)
        partial = path.with_name(f"{path.name}.{os.getpid()}")  # its worker may die
        counts = _Counts(np.zeros(self.firsts[-1], dtype=np.int64), self.n_inputs)
        runs = (self._run(*counts.add(batch)) for batch in batches)
        try:
            write_file(partial, runs, len(self.firsts) - 1, self.token)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return WrittenPiece(number, counts.n_rows, counts.sizes, counts.low, counts.high)

    def _run(
        self, leaf: Index, row: Index, first: int | Index, X: Array, Y: Array
    ) -> tuple[Array, Index]:
        """Return the rows of a batch, sorted by shard, and where the part of each shard begins."""
        shard = np.searchsorted(self.firsts, leaf, side="right") - 1
        order = np.argsort(shard, kind="stable")
        leaf, row, shard = leaf[order], row[order], shard[order]
        table = np.empty((len(leaf), N_PREFIX + self.n_inputs + self.n_outputs))
        numbers = row + first if isinstance(first, int) else first[row]
        table[:, 0], table[:, 1] = leaf - self.firsts[shard], numbers
        table[:, N_PREFIX : N_PREFIX + self.n_inputs] = X[row]
        table[:, N_PREFIX + self.n_inputs :] = Y[row]
        return table, np.searchsorted(shard, np.arange(len(self.firsts)))

    def store(self, pieces: Iterable[WrittenPiece]) -> RowStore:
        """Return the store of pieces that have been written."""
        n_rows, sizes, written = 0, np.zeros(self.firsts[-1], dtype=np.int64), []
        for piece in pieces:
            n_rows += piece.n_rows
            sizes += piece.sizes
            written.append(replace(piece, sizes=np.empty(0, dtype=np.int64)))
        low, high = (np.stack([getattr(p, name) for p in written]) for name in ("low", "high"))
        groups = [(*numbers, self.token) for numbers in _ranges([p.number for p in written])]
        width = N_PREFIX + self.n_inputs + self.n_outputs
        return RowStore(
            RowFiles(self.folder, np.array(groups), len(self.firsts) - 1, width),
            n_rows,
            self.n_inputs,
            self.n_outputs,
            self.firsts,
            sizes,
            self.temporary,
            (low.min(axis=0), high.max(axis=0)),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "temporary": None}


class _Counts:
    """What is reported of the batches of a piece."""

    def __init__(self, sizes: Index, n_inputs: int) -> None:
        self.n_rows, self.sizes = 0, sizes
        self.low, self.high = np.full(n_inputs, np.inf), np.full(n_inputs, -np.inf)

    def add(self, batch: RoutedBatch) -> RoutedBatch:
        """Count a batch, and return it."""
        leaf, _, _, X, _ = batch
        self.n_rows += len(X)
        self.sizes += np.bincount(leaf, minlength=len(self.sizes))
        self.low = np.minimum(self.low, X.min(axis=0, initial=np.inf))
        self.high = np.maximum(self.high, X.max(axis=0, initial=-np.inf))
        return batch


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the first and the number after the last of each run of consecutive numbers."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return ranges
