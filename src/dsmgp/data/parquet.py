"""Datasets in Parquet files, which may be larger than memory: read and written batch by batch. Needs ``dsmgp[data]``."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow import parquet

from dsmgp._util.arrays import Array, Index
from dsmgp._util.atomic_write import new_beside, resolve_target
from dsmgp.data.encoding import (
    MAX_LEVELS,
    encode_inputs,
    encode_targets,
    learn_schema,
    missing_counts,
)
from dsmgp.data.schema import ColumnSchema
from dsmgp.data.tables import TableError, check_columns
from dsmgp.tree.nodes import Leaf

__all__ = ["Batch", "ParquetSink", "RowStream", "parquet_files"]

# Rows in a batch.
BATCH_ROWS = 2**17
# Rows from which the kinds of columns are learned.
HEAD_ROWS = 20_000


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a dataset.

    Attributes
    ----------
    first : int
        Number of the first row.
    X : ndarray of shape (n, n_inputs)
    Y : ndarray of shape (n, n_targets), or (n, 0) without targets
    table : pyarrow.Table
        The columns that were read.
    """

    first: int
    X: Array
    Y: Array
    table: Any


class RowStream:
    """The rows of Parquet files as arrays.

    Parameters
    ----------
    data : path, glob or sequence of them
        Parquet files, or folders of them.
    schema : ColumnSchema
        How columns become inputs.
    with_targets : bool
        Whether targets are read.
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path],
        schema: ColumnSchema,
        with_targets: bool = True,
    ) -> None:
        self.files = parquet_files(data)
        self.schema, self.with_targets = schema, with_targets
        self._dataset = _open_dataset(self.files)
        self._missing: Counter[str] = Counter()
        self.n_rows = int(self._dataset.count_rows())
        if self.n_rows == 0:
            raise TableError(f"{self.files[0]} and the other files have no rows")

    @classmethod
    def learn(
        cls,
        data: str | Path | Sequence[str | Path],
        targets: Sequence[str],
        features: Sequence[str] = (),
        drop: Sequence[str] = (),
        categories: str = "onehot",
        missing: str = "refuse",
    ) -> RowStream:
        """Learn the schema from training files (see :func:`dsmgp.data.encoding.learn_schema`); levels are those of all rows."""
        dataset = _open_dataset(parquet_files(data))
        head = dataset.head(HEAD_ROWS)
        if head.num_rows == 0:
            raise TableError(f"{data} has no rows")
        for name in targets:  # missing targets are an error when their file is read
            if name in head.column_names:
                head = head.filter(pc.is_valid(head[name]))
        # With "impute": missing values are an error when their file is read, which can then be named.
        schema = learn_schema(head, targets, features, drop, categories, "impute")
        columns = tuple(
            replace(
                column,
                levels=_levels(dataset, column.name) if column.levels else (),
                fill=None if missing == "refuse" else column.fill,
            )
            for column in schema.columns
        )
        return cls(data, replace(schema, columns=columns))

    def batches(self, extra: Sequence[str] = ()) -> Iterator[Batch]:
        """Yield all rows in the order of the files; the tables hold the columns of the schema and ``extra``."""
        names = [column.name for column in self.schema.columns]
        names += [name for name in extra if name not in names]
        names += [t for t in self.schema.targets if self.with_targets and t not in names]
        for file in self.files:
            check_columns(parquet.read_schema(file).names, names, file.name)
        self._missing = Counter()
        first = 0
        for file in self.files:
            n_before = 0  # rows of this file
            # One file after the other, so that errors can name it.
            for record in pads.dataset(str(file), format="parquet").to_batches(
                columns=names, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1
            ):
                if not record.num_rows:
                    continue
                table = pa.Table.from_batches([record])
                for name in extra:  # the type may differ between files
                    kind = self._dataset.schema.field(name).type
                    position = table.column_names.index(name)
                    table = table.set_column(position, name, table[name].cast(kind))
                try:
                    X = encode_inputs(self.schema, table, n_before)
                    Y = np.empty((len(table), 0))
                    if self.with_targets:
                        Y = encode_targets(self.schema, table, n_before)
                except TableError as error:
                    raise TableError(f"in {file.name}: {error}") from error
                self._missing.update(missing_counts(self.schema, table))
                yield Batch(first, X, Y, table)
                first += len(X)
                n_before += len(X)

    @property
    def imputation_remarks(self) -> list[str]:
        """Remarks on the values that were filled in when all rows were last read."""
        return self.schema.imputation_remarks(self._missing)

    def sample(self, most: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw at most ``most`` rows at random; return their inputs and outputs, in the order of the files."""
        chosen = None
        if most < self.n_rows:
            chosen = np.sort(rng.choice(self.n_rows, most, replace=False, shuffle=False))
        X, Y = [], []
        for batch in self.batches():
            rows: Any = slice(None)
            if chosen is not None:
                low, high = np.searchsorted(chosen, [batch.first, batch.first + len(batch.X)])
                rows = chosen[low:high] - batch.first
            X.append(batch.X[rows])
            Y.append(batch.Y[rows])
        return np.concatenate(X), np.concatenate(Y)

    def inside(
        self, regions: Sequence[Leaf], to_coordinates: Callable[[Array], Array]
    ) -> tuple[Array, Array, list[Index]]:
        """Return inputs and outputs of the rows in the regions of some leaves, and for each leaf which of them it holds.

        Regions are boxes of the coordinates that ``to_coordinates`` computes from inputs.
        """
        lower = np.stack([leaf.region.lower for leaf in regions])
        upper = np.stack([leaf.region.upper for leaf in regions])
        X: list[list[Array]] = [[] for _ in regions]
        Y: list[list[Array]] = [[] for _ in regions]
        for batch in self.batches():
            U = to_coordinates(batch.X)
            for k in range(len(regions)):
                rows = np.arange(len(batch.X))
                for dimension in np.flatnonzero(np.isfinite(lower[k]) | np.isfinite(upper[k])):
                    u = U[rows, dimension]
                    rows = rows[(u >= lower[k, dimension]) & (u < upper[k, dimension])]
                X[k].append(batch.X[rows])
                Y[k].append(batch.Y[rows])
        sizes = [sum(len(part) for part in parts) for parts in X]
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows_of = [np.arange(a, b) for a, b in pairwise(ends)]
        flat = (np.concatenate([part for parts in table for part in parts]) for table in (X, Y))
        return *flat, rows_of  # type: ignore[return-value]


class ParquetSink:
    """A Parquet file that is written batch by batch, completely or not at all."""

    def __init__(self, path: str | Path) -> None:
        try:
            self.path = resolve_target(path)
        except OSError as error:
            raise TableError(f"cannot write {path}: {error.strerror}") from error
        self._writer: Any = None

    def __enter__(self) -> ParquetSink:
        self._temporary = new_beside(self.path)
        return self

    def add(self, tables: Sequence[Any], keep: Sequence[str], columns: dict[str, Array]) -> None:
        """Append the columns ``keep`` of some tables, and further ``columns``."""
        table = pa.concat_tables(tables).select(list(keep))
        for name, values in columns.items():
            table = table.append_column(name, pa.array(values))
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._temporary, table.schema)
        self._writer.write_table(table)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
            if kind is None:
                os.replace(self._temporary, self.path)
        finally:
            self._temporary.unlink(missing_ok=True)


def parquet_files(data: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the Parquet files of paths, folders and globs, in order of their names."""
    sources = [data] if isinstance(data, (str, Path)) else list(data)
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in (".parquet", ".pq"))
            if not inside:
                raise TableError(f"the folder {path} has no Parquet files (.parquet) in it")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            matching = sorted(Path(name) for name in glob.glob(str(source), recursive=True))
            if not matching:
                raise TableError(f"{source} does not exist, and no file matches it")
            files += parquet_files(matching)
    return files


def _open_dataset(files: Sequence[Path]) -> Any:
    try:
        return pads.dataset([str(file) for file in files], format="parquet")
    except (pa.ArrowException, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise TableError(f"cannot be read as Parquet: {first}") from error


def _levels(dataset: Any, name: str) -> tuple[str, ...]:
    """Return all texts of a column."""
    levels: set[str] = set()
    for record in dataset.to_batches(columns=[name], batch_readahead=1, fragment_readahead=1):
        values = record.column(0)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        levels |= set(pc.unique(values.cast(pa.string())).drop_null().to_pylist())
        if len(levels) > MAX_LEVELS:
            raise TableError(
                f"column {name!r} has more than {MAX_LEVELS} different texts; leave it out with drop=[{name!r}]"
            )
    return tuple(sorted(levels))
