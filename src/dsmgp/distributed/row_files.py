"""Files of rows, sorted by shards of leaves, and which of them are in use.

A file has the rows of one piece of the data. It consists of runs, each sorted by shard; then follow, for each shard, where its part of every run
lies, with a checksum; and at the end the numbers of rows, runs and shards and a token. So a shard is read with nothing but the numbers of the files:
no process holds an index of all parts. The token is that of the fit or update that wrote the file: files of another model are told from a model's own.

Several models of a process may have files in one folder, such as those before and after an update. Each file has a number that no other one has,
and a file is removed only when nothing here uses it.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dsmgp._util.archive import ModelFileError
from dsmgp._util.arrays import Array, Index

__all__ = [
    "FOLDER",
    "RowFiles",
    "files_in",
    "new_files",
    "remove_replaced",
    "row_file",
    "write_file",
]

#: Subfolder with the files.
FOLDER = "shards"
# Rows, runs, shards and token at the end of a file; first and last row and checksum of a part.
N_TRAILER, N_PART = 4, 3
# Files of version 0.1, one for each shard, have neither parts nor a token.
FORMER_TOKEN = 0


@dataclass(frozen=True, eq=False)
class RowFiles:
    """The files of a store, without what is in them: it is small, whatever they hold.

    Attributes
    ----------
    folder : Path
        Its subfolder ``shards`` has the files.
    groups : ndarray of shape (n_groups, 3)
        First number of files that were written together, the number after their last, and their token.
    n_shards : int
    width : int
        Numbers of a row.
    former : ndarray of shape (n_shards,), optional
        Checksums of files of version 0.1, which had a file for each shard: the first group.
    """

    folder: Path
    groups: Index
    n_shards: int
    width: int
    former: Index | None = None

    def __post_init__(self) -> None:
        _in_use.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _in_use.add(self)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the files."""
        return [number for first, end, _ in self.groups.tolist() for number in range(first, end)]

    @property
    def units(self) -> list[tuple[int, ...]]:
        """The files, in groups that have no row in common: single ones, but for those of version 0.1."""
        n_former = 0 if self.former is None else self.n_shards
        numbers = self.numbers
        single: list[tuple[int, ...]] = [(number,) for number in numbers[n_former:]]
        return [tuple(numbers[:n_former]), *single] if n_former else single

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [row_file(self.folder, number) for number in self.numbers]

    def of_shard(self, shard: int) -> Iterator[Array]:
        """Yield the parts of a shard, those of all runs of a file together."""
        for number in self.numbers:
            yield np.concatenate([np.empty((0, self.width)), *self.parts(number, shard)])

    def parts(self, number: int, shard: int) -> list[Array]:
        """Read a shard's part of each run of a file, and compare their checksums."""
        if self._is_former(number):
            return [self._former_file(number)] if number == shard else []
        with self._opened(number) as file:
            (parts,) = self._index(file, number, shard, shard + 1)
            return [self._part(file, number, *part) for part in parts.tolist()]

    def run(self, number: int, run: int) -> list[Array]:
        """Read the part of each shard of a run."""
        if self._is_former(number):
            parts = [np.empty((0, self.width))] * self.n_shards
            return [*parts[:number], self._former_file(number), *parts[number + 1 :]]
        with self._opened(number) as file:
            parts = self._index(file, number, 0, self.n_shards)[:, run].tolist()
            return [self._part(file, number, *part) for part in parts]

    def run_sizes(self, number: int) -> Index:
        """Return how many rows each shard has in each run of a file, (n_runs, n_shards)."""
        if self._is_former(number):
            n_rows = row_file(self.folder, number).stat().st_size // (8 * self.width)
            return n_rows * (np.arange(self.n_shards) == number)[None]
        with self._opened(number) as file:
            parts = self._index(file, number, 0, self.n_shards)
        return (parts[:, :, 1] - parts[:, :, 0]).T

    def _is_former(self, number: int) -> bool:
        return self.former is not None and number < self.n_shards

    @contextmanager
    def _opened(self, number: int) -> Iterator[BinaryIO]:
        path = row_file(self.folder, number)
        try:
            with path.open("rb") as file:
                yield file
        except OSError as error:
            raise ModelFileError(
                f"the rows of some leaves are gone: {path} cannot be read ({error.strerror}); a model that was fitted to a "
                "dataset needs its folder, and has to be loaded again after rows were forgotten"
            ) from error

    def _index(self, file: BinaryIO, number: int, first: int, end: int) -> Index:
        """Read where the parts of some shards lie, (n, n_runs, 3)."""
        size = os.fstat(file.fileno()).st_size
        if size < 8 * N_TRAILER or size % 8:
            raise self._damaged(number)
        file.seek(-8 * N_TRAILER, os.SEEK_END)
        n_rows, n_runs, n_shards, token = _numbers(file, N_TRAILER).tolist()
        n_index = N_PART * n_shards * n_runs
        is_whole = size == 8 * (n_rows * self.width + n_index + N_TRAILER)
        if (
            not is_whole
            or min(n_rows, n_runs) < 0
            or n_shards != self.n_shards
            or token != self._token(number)
        ):
            raise self._damaged(number)
        file.seek(8 * (n_rows * self.width + N_PART * n_runs * first))
        parts = _numbers(file, N_PART * n_runs * (end - first)).reshape(end - first, n_runs, N_PART)
        if ((parts[:, :, 0] < 0) | (parts[:, :, 1] < parts[:, :, 0])).any() or (parts[:, :, 1] > n_rows).any():  # fmt: skip
            raise self._damaged(number)
        return parts

    def _part(self, file: BinaryIO, number: int, first: int, end: int, checksum: int) -> Array:
        if first == end:
            return np.empty((0, self.width))
        file.seek(8 * self.width * first)
        part = np.fromfile(file, count=(end - first) * self.width)
        if zlib.crc32(part.data) != checksum:
            raise self._damaged(number)
        return part.reshape(-1, self.width)

    def _former_file(self, number: int) -> Array:
        assert self.former is not None
        with self._opened(number) as file:
            rows = np.fromfile(file)
        if rows.size % self.width or (len(rows) and zlib.crc32(rows.data) != self.former[number]):
            raise self._damaged(number)
        return rows.reshape(-1, self.width)

    def _token(self, number: int) -> int:
        return next(t for first, end, t in self.groups.tolist() if first <= number < end)

    def _damaged(self, number: int) -> ModelFileError:
        path = row_file(self.folder, number)
        return ModelFileError(
            f"{path} is damaged, was cut short or belongs to another model; use a copy, or fit again"
        )


def write_file(path: Path, runs: Iterable[tuple[Array, Index]], n_shards: int, token: int) -> None:
    """Write a file from its runs: their rows, sorted by shard, and where each shard begins and the last ends."""
    parts: list[list[tuple[int, int, int]]] = []
    n_rows = 0
    with path.open("wb") as file:
        for table, bounds in runs:
            file.write(table.data)
            of_shards = [(a, b, zlib.crc32(table[a:b].data)) for a, b in pairwise(bounds.tolist())]
            parts.append([(n_rows + a, n_rows + b, checksum) for a, b, checksum in of_shards])
            n_rows += len(table)
        index = np.array(parts, dtype=np.int64).reshape(len(parts), n_shards, N_PART)
        file.write(np.ascontiguousarray(index.swapaxes(0, 1)).data)
        file.write(np.array([n_rows, len(parts), n_shards, token], dtype=np.int64).data)


def _numbers(file: BinaryIO, count: int) -> Index:
    return np.fromfile(file, dtype=np.int64, count=count)


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


# Which files are in use


@dataclass(frozen=True, eq=False)
class _BeingWritten:
    """Files that do not belong to a store yet."""

    folder: Path
    numbers: Sequence[int]


class _InUse:
    """All that has files, as long as it lives; any thread may ask."""

    def __init__(self) -> None:
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.RLock()  # finalizers may run while it is held

    def add(self, user: Any) -> None:
        with self.lock:
            self._users.add(user)

    def numbers(self, folder: Path) -> set[int]:
        """Return the numbers of the files in a folder that are in use."""
        with self.lock:
            here = [u for u in list(self._users) if u.folder.resolve() == folder.resolve()]
        return {number for user in here for number in user.numbers}


_in_use = _InUse()


@contextmanager
def new_files(folder: Path, n_files: int) -> Iterator[int]:
    """Reserve numbers that no file of a folder has, of whatever model, and return the first; remove the files if an error is raised."""
    with _in_use.lock:
        there = {_number(path) for path in files_in(folder)} | _in_use.numbers(folder)
        first = 1 + max(there, default=-1)
        written = _BeingWritten(folder, range(first, first + n_files))
        _in_use.add(written)
    try:
        yield first
    except BaseException:
        for number in written.numbers:
            row_file(folder, number).unlink(missing_ok=True)
        raise


def remove_replaced(folder: Path, replaced: Iterable[int]) -> list[int]:
    """Remove files of rows that others replace, unless something in this process uses them; return the numbers of these.

    Files of other numbers may be what another process has written and not yet saved.
    """
    replaced = set(replaced)
    if replaced & _in_use.numbers(folder):
        gc.collect()  # a model that is no longer used may be part of a cycle
    with _in_use.lock:
        used = _in_use.numbers(folder)
        for number in replaced - used:
            row_file(folder, number).unlink(missing_ok=True)
    return sorted(replaced & used)


def _number(path: Path) -> int:
    return int(path.name.partition(".")[0])
