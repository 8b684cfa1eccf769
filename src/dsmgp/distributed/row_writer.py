"""Writing of rows, sorted by shards of leaves: a file for each piece of the data.

Pieces are independent of one another: workers write them side by side, and one whose worker died is written again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dsmgp._util.arrays import Array, Index
from dsmgp.distributed.row_store import FOLDER, N_PREFIX, RowStore, files_in, row_file

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
    ends : ndarray of shape (n_runs, n_shards + 1)
    checksums : ndarray of shape (n_runs, n_shards)
    low, high : ndarray of shape (n_inputs,)
        Least and largest value of each input.
    """

    number: int
    n_rows: int
    sizes: Index
    ends: Index
    checksums: Index
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
    """

    folder: Path
    firsts: Index
    n_inputs: int
    n_outputs: int
    temporary: _TemporaryFolder | None = field(default=None, repr=False)

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
        n_shards, n_rows, n_written = len(self.firsts) - 1, 0, 0
        sizes = np.zeros(self.firsts[-1], dtype=np.int64)
        ends, checksums = [], []
        low, high = np.full(self.n_inputs, np.inf), np.full(self.n_inputs, -np.inf)
        try:
            with partial.open("wb") as file:
                for leaf, row, first, X, Y in batches:
                    table, bounds = self._run(leaf, row, first, X, Y)
                    parts = [table[a:b] for a, b in pairwise(bounds)]
                    file.write(table.data)
                    sizes += np.bincount(leaf, minlength=len(sizes))
                    ends.append(bounds + n_written)
                    checksums.append([zlib.crc32(part.data) if len(part) else 0 for part in parts])
                    n_rows, n_written = n_rows + len(X), n_written + len(table)
                    low = np.minimum(low, X.min(axis=0, initial=np.inf))
                    high = np.maximum(high, X.max(axis=0, initial=-np.inf))
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        return WrittenPiece(
            number,
            n_rows,
            sizes,
            np.array(ends, dtype=np.int64).reshape(-1, n_shards + 1),
            np.array(checksums, dtype=np.int64).reshape(-1, n_shards),
            low,
            high,
        )

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

    @contextmanager
    def removing(self, numbers: Sequence[int]) -> Iterator[None]:
        """Remove the files of some pieces if an error is raised."""
        try:
            yield
        except BaseException:
            for number in numbers:
                row_file(self.folder, number).unlink(missing_ok=True)
            raise

    def store(self, pieces: Iterable[WrittenPiece]) -> RowStore:
        """Return the store of pieces that have been written."""
        n_rows, sizes, written = 0, np.zeros(self.firsts[-1], dtype=np.int64), []
        for piece in pieces:
            n_rows += piece.n_rows
            sizes += piece.sizes
            written.append(replace(piece, sizes=np.empty(0, dtype=np.int64)))
        return RowStore(
            self.folder,
            n_rows,
            self.n_inputs,
            self.n_outputs,
            self.firsts,
            sizes,
            np.repeat([piece.number for piece in written], [len(piece.ends) for piece in written]),
            np.concatenate([piece.ends for piece in written]),
            np.concatenate([piece.checksums for piece in written]),
            self.temporary,
            (
                np.min([piece.low for piece in written], axis=0),
                np.max([piece.high for piece in written], axis=0),
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "temporary": None}
