"""Datasets in Parquet files, which may be larger than memory: read piece by piece, by several workers. Needs ``dsmgp[data]``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from dsmgp._util.arrays import Array, Index
from dsmgp._util.constants import LARGEST
from dsmgp.data.columns.effects import MOST_ROWS
from dsmgp.data.columns.encoding import encode_targets, new_level_remarks, table_values
from dsmgp.data.columns.learning import (
    MOST_INDICATORS,
    ColumnRules,
    column_effects,
    encode_table,
    has_effects,
    with_effects,
)
from dsmgp.data.columns.remarks import training_remarks
from dsmgp.data.columns.schema import ColumnSchema
from dsmgp.data.parquet.files import open_dataset, parquet_files
from dsmgp.data.parquet.row_reader import BATCH_ROWS, Batch, Piece, RowReader, Tally
from dsmgp.data.row_sample import draw_numbers
from dsmgp.data.table_error import TableError, check_columns
from dsmgp.tree.nodes import Leaf

__all__ = ["Batch", "RowStream", "TaskMap", "parquet_files"]

# Rows of a piece, about; a row group is never divided.
PIECE_ROWS = 2**20
# Rows from which the kinds of columns are learned, and parts of the files that they are taken from.
KIND_ROWS, KIND_PARTS = 20_000, 32


class TaskMap(Protocol):
    """Workers that compute a function of many items."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        """Return the results in order; few of them are held at a time."""


class _InTurn:
    """A :class:`TaskMap` without workers."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
        return map(function, items)


class RowStream:
    """The rows of Parquet files as arrays.

    Parameters
    ----------
    data : path, glob, URL or sequence of them
        Parquet files, or folders of them.
    schema : ColumnSchema
        How columns become inputs.
    with_targets : bool
        Whether targets are read. Rows without one are left out.
    missing : "model", "drop", or "error"
        Whether rows with missing values are read, left out or refused.
    effects : dict of str to tuple of ndarray
        Of training rows: numbers of the rows that the effects of a category were learned from, and the effect of each of them,
        learned without the rows of its fold.
    tasks : TaskMap, optional
        Workers that read the files; by default the calling thread reads them.

    Attributes
    ----------
    reader : RowReader
    pieces : list of Piece
        All that is read, in order.
    n_rows, n_left_out : int
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path],
        schema: ColumnSchema,
        with_targets: bool = True,
        missing: str = "model",
        effects: dict[str, tuple[Index, Array]] | None = None,
        tasks: TaskMap | None = None,
    ) -> None:
        self.files, self.tasks = parquet_files(data), tasks or _InTurn()
        self._dataset = open_dataset(self.files)
        self._tally = Tally()
        self._left_out: list[str] = []  # remarks on columns
        self._to_look_at: list[str] = []  # remarks on training rows
        needed = list(schema.targets) if with_targets else []
        needed += [column.name for column in schema.columns] if missing == "drop" else []
        self.reader = RowReader(
            schema,
            with_targets,
            missing,
            _present(self._dataset, needed),
            self._dataset.schema,
            effects or {},
            BATCH_ROWS,
        )
        self.pieces, n_all = self._divided()
        self.n_rows = sum(piece.n_rows for piece in self.pieces)
        self.n_left_out = n_all - self.n_rows
        if self.n_rows == 0:
            what = " with a target" if self.n_left_out else ""
            raise TableError(f"{self.files[0]} and the other files have no rows{what}")

    @property
    def schema(self) -> ColumnSchema:
        return self.reader.schema

    def _divided(self) -> tuple[list[Piece], int]:
        """Divide the files into pieces with the numbers of their rows; return the number of all rows, too."""
        pieces: list[Piece] = []
        n_all = []
        for file, fragment in zip(self.files, self._dataset.get_fragments(), strict=True):
            groups: list[int] = []
            n_held = 0
            metadata = fragment.metadata
            for group in range(metadata.num_row_groups):
                n_group = metadata.row_group(group).num_rows
                if groups and n_held + n_group > PIECE_ROWS:
                    pieces.append(Piece(len(pieces), file, tuple(groups)))
                    n_all.append(n_held)
                    groups, n_held = [], 0
                groups.append(group)
                n_held += n_group
            if groups:
                pieces.append(Piece(len(pieces), file, tuple(groups)))
                n_all.append(n_held)
        counts = n_all
        if self.reader.condition is not None:
            counts = list(self.tasks.map(self.reader.count, pieces))
        numbered: list[Piece] = []
        first = first_in_file = 0
        for piece, n_rows in zip(pieces, counts, strict=True):
            if numbered and numbered[-1].file is not piece.file:
                first_in_file = 0
            numbered.append(replace(piece, first=first, first_in_file=first_in_file, n_rows=n_rows))
            first, first_in_file = first + n_rows, first_in_file + n_rows
        return numbered, sum(n_all)

    @classmethod
    def learn(
        cls,
        data: str | Path | Sequence[str | Path],
        targets: Sequence[str],
        features: Sequence[str] = (),
        drop: Sequence[str] = (),
        categories: str = "auto",
        missing: str = "model",
        tasks: TaskMap | None = None,
    ) -> RowStream:
        """Learn the schema from training files (see :func:`dsmgp.data.columns.learning.encode_table`); levels are those of all rows."""
        dataset = open_dataset(parquet_files(data))
        check_columns(dataset.schema.names, targets)
        rules = ColumnRules(categories, missing)
        some = _some_rows(dataset, _present(dataset, targets))
        if some.num_rows == 0:
            raise TableError(f"{data} has no rows with a target")
        # With "model": missing values are an error when their file is read, which can then be named.
        encoded = encode_table(some, targets, features, drop, categories, "model")
        schema = encoded.schema
        stream = cls(data, schema, missing=rules.missing, tasks=tasks)
        stream._left_out = [
            r for r in encoded.remarks if r.startswith("column ") and r.endswith(" left out")
        ]
        names = [column.name for column in schema.columns]
        values = stream.reader.values(some, names)
        if encoded.rows is not None:
            values = {name: each.taken(encoded.rows) for name, each in values.items()}
        is_sample = dataset.count_rows() > KIND_ROWS
        stream._to_look_at = training_remarks(values, encoded.Y, targets, _leave_out, is_sample)
        gaps = stream._patterns_of_gaps() if rules.missing == "model" else {}
        columns, patterns = [], set()
        for column in schema.columns:
            if column.kind == "category":
                column = replace(
                    column, **_of_levels(stream._levels(column.name), column.name, rules)
                )
            elif rules.missing != "model":
                column = replace(
                    column, fill=None, had_missing=False, indicator=False, quantiles=()
                )
            elif column.name in gaps:
                # One indicator is enough for columns that are missing together.
                indicator = gaps[column.name] not in patterns
                patterns.add(gaps[column.name])
                column = replace(column, had_missing=True, indicator=indicator, quantiles=())
            columns.append(column)
        stream._set_schema(replace(schema, columns=tuple(columns)))
        return stream._with_effects() if rules.categories == "auto" else stream

    def _set_schema(
        self, schema: ColumnSchema, effects: dict[str, tuple[Index, Array]] | None = None
    ) -> None:
        self.reader = replace(self.reader, schema=schema, effects=effects or {})

    def _patterns_of_gaps(self) -> dict[str, bytes]:
        """Return the numbers and dates that have missing values, each with a digest that is equal for those missing in the same rows."""
        names = [column.name for column in self.schema.columns if column.kind != "category"]
        names = [name for name in names if _may_have_gaps(self._dataset, name)]
        digests = {name: hashlib.blake2b() for name in names}
        found: set[str] = set()
        for of_piece in self.tasks.map(
            partial(_gaps, self.reader, names), self.pieces if names else []
        ):
            for name, (digest, any_missing) in of_piece.items():
                digests[name].update(digest)
                if any_missing:
                    found.add(name)
        return {name: digests[name].digest() for name in names if name in found}

    def _levels(self, name: str) -> tuple[str | None, ...]:
        """Return all levels of a category, None among them if it has missing values."""
        levels: set[str] = set()
        missing = False
        for of_piece, any_missing in self.tasks.map(
            partial(_levels, self.reader, name), self.pieces
        ):
            levels |= of_piece
            missing |= any_missing
        return (*sorted(levels), *([None] * missing))

    def _with_effects(self) -> RowStream:
        """Learn the effects of categories with many levels, from all rows or a sample of them."""
        if not any(has_effects(column) for column in self.schema.columns):
            return self
        rng, n_rows = np.random.default_rng(0), self.n_rows
        rows = draw_numbers(n_rows, min(n_rows, MOST_ROWS), rng)
        names = [*self.reader.input_columns, *self.schema.targets]
        tables = self.tasks.map(partial(_rows_of_tables, self.reader, names, rows), self.pieces)
        table = pa.concat_tables([each for of_piece in tables for each in of_piece])
        values = self.reader.values(table, names)
        targets = encode_targets(self.schema, values)
        by_level, of_rows = column_effects(self.schema.columns, values, targets)
        assert of_rows is not None
        columns = tuple(
            with_effects(column, by_level[column.name]) if column.name in by_level else column
            for column in self.schema.columns
        )
        effects = {name: (rows, of_rows.of_rows(name)) for name in by_level}
        self._set_schema(replace(self.schema, columns=columns), effects)
        return self

    def check_files(self, extra: Sequence[str] = ()) -> None:
        """Raise an error if a file lacks a column that is needed."""
        for fragment, file in zip(self._dataset.get_fragments(), self.files, strict=True):
            names = fragment.physical_schema.names
            check_columns(names, self.reader.column_names(extra), file.name)

    def add(self, tally: Tally) -> None:
        """Add to the counts for :attr:`remarks` those of rows that workers have read."""
        self._tally.add(tally)

    @property
    def remarks(self) -> list[str]:
        """Remarks on rows and columns that are left out, on missing values and new levels when all rows were last read, on training data."""
        n = self.n_left_out
        left_out = [f"{n} row{'s' * (n > 1)} without a target or with missing values left out"]
        left_out = left_out * (n > 0) + self._left_out
        remarks = left_out + self.schema.missing_remarks(self._tally.missing)
        return remarks + new_level_remarks(self._tally.new) + self._to_look_at

    def sample(self, most: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw at most ``most`` rows at random; return their inputs and outputs, in the order of the files."""
        chosen = None
        if most < self.n_rows:
            chosen = draw_numbers(self.n_rows, most, rng)
        self.check_files()
        self._tally, X, Y = Tally(), [], []
        for tables, tally in self.tasks.map(partial(_sampled, self.reader, chosen), self.pieces):
            self._tally.add(tally)
            X += tables[0]
            Y += tables[1]
        return np.concatenate(X), np.concatenate(Y)

    def sample_table(self, most: int, rng: np.random.Generator) -> Any:
        """Draw at most ``most`` rows at random; return their columns as a table, in the order of the files."""
        self.check_files()
        rows = np.arange(self.n_rows)
        if most < self.n_rows:
            rows = draw_numbers(self.n_rows, most, rng)
        work = partial(_rows_of_tables, self.reader, self.reader.column_names(), rows)
        return pa.concat_tables(
            [part for of_piece in self.tasks.map(work, self.pieces) for part in of_piece]
        )

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
        work = partial(_inside, self.reader, lower, upper, to_coordinates)
        for of_piece in self.tasks.map(work, self.pieces):
            for k, (inputs, outputs) in enumerate(of_piece):
                X[k] += inputs
                Y[k] += outputs
        sizes = [sum(len(part) for part in parts) for parts in X]
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows_of = [np.arange(a, b) for a, b in pairwise(ends)]
        flat = (np.concatenate([part for parts in table for part in parts]) for table in (X, Y))
        return *flat, rows_of  # type: ignore[return-value]


# What workers do with a piece.


def _gaps(reader: RowReader, names: Sequence[str], piece: Piece) -> dict[str, tuple[bytes, bool]]:
    """Return by column a digest of where values are missing, and whether any is."""
    digests, found = {name: hashlib.blake2b() for name in names}, set()
    for table in reader.tables(piece, names, reader.arrow_schema):
        values = table_values(table, names)
        for name in names:
            missing = values[name].missing
            digests[name].update(np.packbits(missing).tobytes())
            if missing.any():
                found.add(name)
    return {name: (digests[name].digest(), name in found) for name in names}


def _levels(reader: RowReader, name: str, piece: Piece) -> tuple[set[str], bool]:
    """Return the levels of a category, and whether it has missing values."""
    levels: set[str] = set()
    missing = False
    for table in reader.tables(piece, [name], reader.arrow_schema):
        values = table_values(table, [name])[name].as_category()
        levels |= set(values.levels)
        missing |= bool(values.missing.any())
    return levels, missing


def _rows_of_tables(
    reader: RowReader, names: Sequence[str], rows: Index, piece: Piece
) -> list[Any]:
    """Return columns of those of some rows that are in a piece."""
    parts, first = [], piece.first
    for table in reader.tables(piece, names, reader.arrow_schema):
        low, high = np.searchsorted(rows, [first, first + len(table)])
        parts.append(table.take(pa.array(rows[low:high] - first)))
        first += len(table)
    return parts


def _sampled(
    reader: RowReader, chosen: Index | None, piece: Piece
) -> tuple[tuple[list[Array], list[Array]], Tally]:
    """Return inputs and outputs of the chosen rows that are in a piece, all of which are read and checked."""
    X, Y, tally = [], [], Tally()
    for batch in reader.batches(piece):
        rows: Any = slice(None)
        if chosen is not None:
            low, high = np.searchsorted(chosen, [batch.first, batch.first + len(batch.X)])
            rows = chosen[low:high] - batch.first
        X.append(batch.X[rows])
        Y.append(batch.Y[rows])
        tally.add(batch.tally)
    return (X, Y), tally


def _inside(
    reader: RowReader,
    lower: Array,
    upper: Array,
    to_coordinates: Callable[[Array], Array],
    piece: Piece,
) -> list[tuple[list[Array], list[Array]]]:
    """Return for each region the inputs and outputs of the rows in it, batch by batch."""
    found: list[tuple[list[Array], list[Array]]] = [([], []) for _ in lower]
    for batch in reader.batches(piece):
        U = to_coordinates(batch.X)
        for k, (X, Y) in enumerate(found):
            rows = np.arange(len(batch.X))
            for dimension in np.flatnonzero(np.isfinite(lower[k]) | np.isfinite(upper[k])):
                u = U[rows, dimension]
                rows = rows[(u >= lower[k, dimension]) & (u < upper[k, dimension])]
            X.append(batch.X[rows])
            Y.append(batch.Y[rows])
    return found


def _present(dataset: Any, names: Sequence[str]) -> Any:
    """Return the condition that columns have a value; None for no columns."""
    condition = None
    for name in names:
        if name not in dataset.schema.names:
            continue  # refused where its file is read
        field = pads.field(name)
        present = field.is_valid()
        if pa.types.is_floating(dataset.schema.field(name).type):
            present = present & ~pc.is_nan(field)
        condition = present if condition is None else condition & present
    return condition


def _leave_out(name: str) -> str:
    return f"leave it out with --drop {name!r}, in Python drop=[{name!r}]"


def _some_rows(dataset: Any, condition: Any) -> Any:
    """Return a table of some rows, from all over the files: rows may be sorted, and a column constant at the beginning.

    Infinite and huge values are missing in it: they are refused when their file is read, which can then be named.
    """
    parts = [dataset]
    if dataset.count_rows() > KIND_ROWS:
        groups = [group for file in dataset.get_fragments() for group in file.split_by_row_group()]
        places = np.linspace(0, len(groups) - 1, min(len(groups), KIND_PARTS)).astype(np.int64)
        kind = (dataset.schema, dataset.format, dataset.filesystem)
        parts = [pads.FileSystemDataset([groups[place]], *kind) for place in places]
    n_each = -(-KIND_ROWS // len(parts))
    table = pa.concat_tables([part.head(n_each, filter=condition) for part in parts])
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if pa.types.is_floating(column.type):
            usable = pc.less(pc.abs(column), pa.scalar(LARGEST))
            column = pc.if_else(usable, column, pa.scalar(None, column.type))
            table = table.set_column(place, name, column)
    return table


def _may_have_gaps(dataset: Any, name: str) -> bool:
    """Return whether a column may have missing values: NaN, or null if the statistics of the files do not exclude it."""
    if pa.types.is_floating(dataset.schema.field(name).type):
        return True
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        places = [k for k in range(metadata.num_columns) if metadata.schema.column(k).path == name]
        for group in range(metadata.num_row_groups):
            for place in places:
                statistics = metadata.row_group(group).column(place).statistics
                if statistics is None or statistics.null_count is None or statistics.null_count:
                    return True
    return False


def _of_levels(levels: tuple[str | None, ...], name: str, rules: ColumnRules) -> dict[str, Any]:
    """Return how a category of these levels becomes inputs."""
    n_levels = len(levels) - (None in levels)  # as in learn_columns: a missing value does not count
    one_hot = rules.categories == "onehot" or n_levels <= MOST_INDICATORS
    if rules.categories == "onehot" and n_levels > MOST_INDICATORS:
        raise TableError(
            f"column {name!r} has more than {MOST_INDICATORS} different texts; use categories='auto', or leave it out with "
            f"drop=[{name!r}]"
        )
    return {"levels": levels, "one_hot": one_hot, "required": rules.missing != "model"}
