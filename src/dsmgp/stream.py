"""Rows of a dataset in Parquet files, read batch by batch: it may be larger than memory. Needs ``dsmgp[data]``."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from numpy.typing import NDArray
from pyarrow import parquet

from dsmgp.archive import new_beside, place_of
from dsmgp.recipe import MAX_LEVELS, Recipe
from dsmgp.tables import TableError
from dsmgp.tree import Leaf

__all__ = ["Batch", "ParquetSink", "RowStream", "parquet_files"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# Rows that are read at once.
BATCH_ROWS = 2**17
# Rows from which it is learned what kinds of columns there are.
HEAD_ROWS = 20_000


@dataclass(frozen=True)
class Batch:
    """Some rows: the number of the first of them, inputs, outputs (none where they are only predicted), and the table itself."""

    first: int
    X: Array
    Y: Array
    table: Any


class RowStream:
    """A dataset, and how its columns become numbers.

    Parameters
    ----------
    data : path, glob or sequence of them
        Parquet files, or folders of them.
    recipe : Recipe
    with_targets : bool
        Whether targets are read.
    """

    def __init__(
        self, data: str | Path | Sequence[str | Path], recipe: Recipe, with_targets: bool = True
    ) -> None:
        self.files = parquet_files(data)
        self.recipe, self.with_targets = recipe, with_targets
        self._dataset = _opened(self.files)
        self._missing: Counter[str] = Counter()
        self.n_rows = int(self._dataset.count_rows())
        if self.n_rows == 0:
            raise TableError(f"{self.files[0]} and the files beside it have no rows")

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
        """Of training rows; see :class:`~dsmgp.recipe.Recipe`. Levels of text are looked for in all rows."""
        dataset = _opened(parquet_files(data))
        head = dataset.head(HEAD_ROWS)
        if head.num_rows == 0:
            raise TableError(f"{data} has no rows")
        for name in targets:  # what is missing is refused when its file is read
            if name in head.column_names:
                head = head.filter(pc.is_valid(head[name]))
        # Without refusing what is missing: a file is not yet known by its name here.
        recipe = Recipe.learn(head, targets, features, drop, categories, "impute")
        if missing == "refuse":
            recipe.columns = [replace(column, fill=None) for column in recipe.columns]
        recipe.columns = [
            replace(column, levels=_levels(dataset, column.name)) if column.levels else column
            for column in recipe.columns
        ]
        recipe.remarks = recipe.described()  # those so far are of the first rows alone
        return cls(data, recipe)

    def batches(self, extra: Sequence[str] = (), n_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """All rows in the order of the files; of tables only the columns that are needed, and ``extra``."""
        names = [column.name for column in self.recipe.columns]
        names += [name for name in extra if name not in names]
        names += [t for t in self.recipe.targets if self.with_targets and t not in names]
        for file in self.files:
            _check_columns(file, names)
        self._missing = Counter()
        first = 0
        for file in self.files:
            within = 0
            # One file after the other, so that errors can name it.
            for record in pads.dataset(str(file), format="parquet").to_batches(
                columns=names, batch_size=n_rows, batch_readahead=1, fragment_readahead=1
            ):
                if not record.num_rows:
                    continue
                table = pa.Table.from_batches([record])
                for name in extra:  # of the same kind in all files
                    kind = self._dataset.schema.field(name).type
                    place = table.column_names.index(name)
                    table = table.set_column(place, name, table[name].cast(kind))
                try:
                    X, Y = self.recipe.inputs(table, within), np.empty((len(table), 0))
                    if self.with_targets:
                        Y = self.recipe.outputs(table, within)
                except TableError as error:
                    raise TableError(f"in {file.name}: {error}") from error
                self._missing.update(self.recipe.missing(table))
                yield Batch(first, X, Y, table)
                first += len(X)
                within += len(X)

    @property
    def filled_in(self) -> list[str]:
        """What was filled in while all rows were last gone through, in words."""
        return self.recipe.told(self._missing)

    def sample(self, most: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Inputs and outputs of at most so many rows drawn at random, in their order."""
        chosen = None
        if most < self.n_rows:
            chosen = np.sort(rng.choice(self.n_rows, most, replace=False, shuffle=False))
        X, Y = [], []
        for batch in self.batches():
            own: Any = slice(None)
            if chosen is not None:
                low, high = np.searchsorted(chosen, [batch.first, batch.first + len(batch.X)])
                own = chosen[low:high] - batch.first
            X.append(batch.X[own])
            Y.append(batch.Y[own])
        return np.concatenate(X), np.concatenate(Y)

    def inside(self, regions: Sequence[Leaf]) -> tuple[Array, Array, list[Index]]:
        """The rows that lie in some regions, and for each region which of them do."""
        lower = np.stack([leaf.region.lower for leaf in regions])
        upper = np.stack([leaf.region.upper for leaf in regions])
        X: list[list[Array]] = [[] for _ in regions]
        Y: list[list[Array]] = [[] for _ in regions]
        for batch in self.batches():
            for k in range(len(regions)):
                rows = np.arange(len(batch.X))
                for dimension in np.flatnonzero(np.isfinite(lower[k]) | np.isfinite(upper[k])):
                    x = batch.X[rows, dimension]
                    rows = rows[(x >= lower[k, dimension]) & (x < upper[k, dimension])]
                X[k].append(batch.X[rows])
                Y[k].append(batch.Y[rows])
        sizes = [sum(len(part) for part in parts) for parts in X]
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows_of = [np.arange(a, b) for a, b in pairwise(ends)]
        flat = (np.concatenate([part for parts in table for part in parts]) for table in (X, Y))
        return *flat, rows_of  # type: ignore[return-value]


class ParquetSink:
    """A Parquet file that is written lot by lot, and there whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        try:
            self.path = place_of(path)
        except OSError as error:
            raise TableError(f"cannot write {path}: {error.strerror}") from error
        self._writer: Any = None
        if not self.path.parent.is_dir():
            raise TableError(f"the folder {self.path.parent} does not exist; create it first")
        if self.path.is_dir():
            raise TableError(f"{self.path} is a folder; give the name of a file")

    def __enter__(self) -> ParquetSink:
        self._temporary = new_beside(self.path)
        return self

    def add(self, tables: Sequence[Any], keep: Sequence[str], columns: dict[str, Array]) -> None:
        """Some columns of tables, and further columns beside them."""
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
    """The Parquet files that are meant, in order of their names."""
    given = [data] if isinstance(data, (str, Path)) else list(data)
    found: list[Path] = []
    for one in given:
        path = Path(one)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in (".parquet", ".pq"))
            if not inside:
                raise TableError(f"the folder {path} has no Parquet files (.parquet) in it")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            matching = sorted(Path(name) for name in glob.glob(str(one), recursive=True))
            if not matching:
                raise TableError(f"{one} does not exist, and no file has a name like it")
            found += parquet_files(matching)
    return found


def _opened(files: Sequence[Path]) -> Any:
    try:
        return pads.dataset([str(file) for file in files], format="parquet")
    except (pa.ArrowException, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise TableError(f"cannot be read as Parquet: {first}") from error


def _check_columns(file: Path, names: Sequence[str]) -> None:
    have = parquet.read_schema(file).names
    for name in names:
        if name not in have:
            listed = ", ".join(map(repr, have[:12])) + (", ..." if len(have) > 12 else "")
            raise TableError(f"there is no column {name!r} in {file.name}, which has {listed}")


def _levels(dataset: Any, name: str) -> tuple[str, ...]:
    """All texts of a column."""
    found: set[str] = set()
    for record in dataset.to_batches(columns=[name], batch_readahead=1, fragment_readahead=1):
        values = record.column(0)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        found |= set(pc.unique(values.cast(pa.string())).drop_null().to_pylist())
        if len(found) > MAX_LEVELS:
            raise TableError(
                f"column {name!r} has more than {MAX_LEVELS} different texts; leave it out with drop=[{name!r}]"
            )
    return tuple(sorted(found))
