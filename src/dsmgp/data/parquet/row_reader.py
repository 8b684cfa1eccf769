"""Reading of a dataset piece by piece: what a worker needs to turn some row groups of a file into arrays.

A piece is read without any other, and its rows have fixed numbers; so pieces can be read anywhere, in any order, and results are put together
in the order of the pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from dsmgp._util.arrays import Array, Index
from dsmgp.data.columns.encoding import (
    N_LISTED,
    as_in_training,
    check_no_missing,
    encode_inputs,
    encode_targets,
    missing_counts,
    new_levels,
    table_values,
)
from dsmgp.data.columns.schema import ColumnSchema
from dsmgp.data.columns.values import Values
from dsmgp.data.parquet.files import DataFile
from dsmgp.data.rows import Rows
from dsmgp.data.table_error import TableError

__all__ = ["Batch", "Piece", "RowReader", "Tally"]

# Rows in a batch.
BATCH_ROWS = 2**17


@dataclass(frozen=True)
class Piece:
    """Some row groups of a file.

    Attributes
    ----------
    number : int
        Among all pieces.
    file : DataFile
    groups : tuple of int
    first, first_in_file : int
        Number of its first row among all rows that are read, and among those of its file.
    n_rows : int
        Rows that are read.
    """

    number: int
    file: DataFile
    groups: tuple[int, ...]
    first: int = 0
    first_in_file: int = 0
    n_rows: int = 0


@dataclass
class Tally:
    """Counts for remarks on rows: missing values, and levels that the training rows do not have (number of rows, some of them)."""

    missing: Counter[str] = field(default_factory=Counter)
    new: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.missing.update(other.missing)
        for name, (n, levels) in other.new.items():
            n_before, before = self.new.get(name, (0, []))
            # Only the first few are ever listed.
            self.new[name] = (n_before + n, sorted({*before, *levels})[: N_LISTED + 1])


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a dataset.

    Attributes
    ----------
    first : int
        Number of the first row.
    rows : Rows
    Y : ndarray of shape (n, n_targets), or (n, 0) without targets
    table : pyarrow.Table
        The columns that were read.
    tally : Tally
    """

    first: int
    rows: Rows
    Y: Array
    table: Any
    tally: Tally

    @property
    def X(self) -> Array:
        """Inputs, (n, n_inputs)."""
        return self.rows.X


@dataclass(frozen=True)
class RowReader:
    """Reads pieces of a dataset.

    Attributes
    ----------
    schema : ColumnSchema
        How columns become inputs.
    with_targets : bool
    missing : "model", "drop", or "error"
    condition : pyarrow expression or None
        Which rows are read.
    arrow_schema : pyarrow.Schema
        Columns of the first file; those of others may have other types.
    effects : dict of str to tuple of ndarray
        See :class:`~dsmgp.data.parquet.dataset.RowStream`.
    batch_rows : int
        Rows of a batch, about.
    """

    schema: ColumnSchema
    with_targets: bool
    missing: str
    condition: Any
    arrow_schema: Any
    effects: dict[str, tuple[Index, Array]] = field(default_factory=dict)
    batch_rows: int = BATCH_ROWS

    @property
    def input_columns(self) -> list[str]:
        return [column.name for column in self.schema.columns]

    def column_names(self, extra: Sequence[str] = ()) -> list[str]:
        """Columns that batches are made from, and ``extra``."""
        targets = self.schema.targets if self.with_targets else ()
        return list(dict.fromkeys([*self.input_columns, *extra, *targets]))

    def count(self, piece: Piece) -> int:
        """Return the number of rows of a piece that are read."""
        scanner = self._fragment(piece).scanner(
            schema=self.arrow_schema, columns=[], filter=self.condition
        )
        return int(scanner.count_rows())

    def tables(self, piece: Piece, names: Sequence[str], arrow_schema: Any = None) -> Iterator[Any]:
        """Yield columns of a piece as tables of about ``batch_rows`` rows."""
        held: list[Any] = []
        fragment = self._fragment(piece)
        for record in fragment.to_batches(
            schema=arrow_schema or fragment.physical_schema,
            columns=list(names),
            filter=self.condition,
            batch_size=self.batch_rows,
            batch_readahead=1,
            fragment_readahead=1,
        ):
            if record.num_rows:
                held.append(record)
            if sum(each.num_rows for each in held) >= self.batch_rows:  # row groups may be small
                yield pa.Table.from_batches(held)
                held = []
        if held:
            yield pa.Table.from_batches(held)

    def batches(self, piece: Piece, extra: Sequence[str] = ()) -> Iterator[Batch]:
        """Yield the rows of a piece; tables hold the columns of the schema and ``extra``."""
        n_before = 0  # rows of this piece
        for table in self.tables(piece, self.column_names(extra)):
            for name in extra:  # the type may differ between files
                kind = self.arrow_schema.field(name).type
                position = table.column_names.index(name)
                table = table.set_column(position, name, table[name].cast(kind))
            first = piece.first + n_before
            try:
                batch = self._batch(table, first, piece.first_in_file + n_before + 1)
            except TableError as error:
                raise TableError(f"in {piece.file.name}: {error}") from error
            yield batch
            n_before += len(table)

    def _batch(self, table: Any, first: int, first_in_file: int) -> Batch:
        """Convert a table of rows whose first stands at ``first_in_file``, from 1, in its file."""
        used = self.input_columns
        targets = self.schema.targets if self.with_targets else ()
        values = self.values(table, [*used, *targets])
        if self.missing == "error":
            for name in used:
                remedy = "remove such rows, or use missing='model'"
                check_no_missing(values[name], name, remedy, first_in_file)
        rows = encode_inputs(self.schema, values, first_in_file)
        Y = np.empty((len(table), 0))
        if self.with_targets:
            Y = encode_targets(self.schema, values, first_in_file)
        self._replace_effects(rows.X, first)
        tally = Tally(Counter(missing_counts(self.schema, values)))
        if rows.unknown:
            tally.add(Tally(new=dict(new_levels(self.schema, values))))
        return Batch(first, rows, Y, table, tally)

    def values(self, table: Any, names: Sequence[str]) -> dict[str, Values]:
        """Return the columns of a table that hold all inputs, and others."""
        return as_in_training(self.schema.columns, table_values(table, names))

    def _fragment(self, piece: Piece) -> Any:
        dataset = pads.dataset(piece.file.path, format="parquet", filesystem=piece.file.filesystem)
        (whole,) = dataset.get_fragments()
        return whole.subset(row_group_ids=list(piece.groups))

    def _replace_effects(self, X: Array, first: int) -> None:
        """Replace the effects of rows that these were learned from by those without the rows of each row's fold."""
        for name, inputs in self.schema.groups:
            if name not in self.effects:
                continue
            rows, effects = self.effects[name]
            low, high = np.searchsorted(rows, [first, first + len(X)])
            of_outputs = inputs[-effects.shape[1] :]
            X[np.ix_(rows[low:high] - first, of_outputs)] = effects[low:high]
