"""Datasets in Parquet files, which may be larger than memory: read batch by batch. Needs ``dsmgp[data]``."""

from __future__ import annotations

import glob
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from dsmgp._util.constants import LARGEST
from dsmgp.data.column_learning import (
    MOST_INDICATORS,
    ColumnRules,
    column_effects,
    encode_table,
    has_effects,
    with_effects,
)
from dsmgp.data.effects import MOST_ROWS
from dsmgp.data.encoding import (
    N_LISTED,
    as_in_training,
    check_no_missing,
    encode_inputs,
    encode_targets,
    missing_counts,
    new_level_remarks,
    new_levels,
    table_values,
)
from dsmgp.data.remarks import training_remarks
from dsmgp.data.rows import Rows
from dsmgp.data.schema import ColumnSchema
from dsmgp.data.table_error import TableError, check_columns
from dsmgp.data.values import Values
from dsmgp.tree.nodes import Leaf

__all__ = ["Batch", "RowStream", "parquet_files"]

# Rows in a batch.
BATCH_ROWS = 2**17
# Rows from which the kinds of columns are learned, and parts of the files that they are taken from.
KIND_ROWS, KIND_PARTS = 20_000, 32


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
    """

    first: int
    rows: Rows
    Y: Array
    table: Any

    @property
    def X(self) -> Array:
        """Inputs, (n, n_inputs)."""
        return self.rows.X


class RowStream:
    """The rows of Parquet files as arrays.

    Parameters
    ----------
    data : path, glob or sequence of them
        Parquet files, or folders of them.
    schema : ColumnSchema
        How columns become inputs.
    with_targets : bool
        Whether targets are read. Rows without one are left out.
    missing : {"model", "drop", "error"}
        Whether rows with missing values are read, left out or refused.
    effects : dict of str to tuple of ndarray
        Of training rows: numbers of the rows that the effects of a category were learned from, and the effect of each of them,
        learned without the rows of its fold.
    """

    def __init__(
        self,
        data: str | Path | Sequence[str | Path],
        schema: ColumnSchema,
        with_targets: bool = True,
        missing: str = "model",
        effects: dict[str, tuple[Index, Array]] | None = None,
    ) -> None:
        self.files = parquet_files(data)
        self.schema, self.with_targets, self.missing = schema, with_targets, missing
        self.effects = effects or {}
        self._dataset = _open_dataset(self.files)
        self._missing: Counter[str] = Counter()
        self._new: dict[str, tuple[int, list[str]]] = {}  # levels
        self._left_out: list[str] = []  # remarks on columns
        self._to_look_at: list[str] = []  # remarks on training rows
        needed = list(schema.targets) if with_targets else []
        needed += [column.name for column in schema.columns] if missing == "drop" else []
        self._filter = _present(self._dataset, needed)
        self.n_rows = int(self._dataset.count_rows(filter=self._filter))
        self.n_left_out = int(self._dataset.count_rows()) - self.n_rows
        if self.n_rows == 0:
            what = " with a target" if self.n_left_out else ""
            raise TableError(f"{self.files[0]} and the other files have no rows{what}")

    @classmethod
    def learn(
        cls,
        data: str | Path | Sequence[str | Path],
        targets: Sequence[str],
        features: Sequence[str] = (),
        drop: Sequence[str] = (),
        categories: str = "auto",
        missing: str = "model",
    ) -> RowStream:
        """Learn the schema from training files (see :func:`dsmgp.data.column_learning.encode_table`); levels are those of all rows."""
        dataset = _open_dataset(parquet_files(data))
        check_columns(dataset.schema.names, targets)
        rules = ColumnRules(categories, missing)
        some = _some_rows(dataset, _present(dataset, targets))
        if some.num_rows == 0:
            raise TableError(f"{data} has no rows with a target")
        # With "model": missing values are an error when their file is read, which can then be named.
        encoded = encode_table(some, targets, features, drop, categories, "model")
        schema = encoded.schema
        stream = cls(data, schema, missing=rules.missing)
        stream._left_out = [
            r for r in encoded.remarks if r.startswith("column ") and r.endswith(" left out")
        ]
        names = [column.name for column in schema.columns]
        values = stream._values(some, names)
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
        stream.schema = replace(schema, columns=tuple(columns))
        return stream._with_effects() if rules.categories == "auto" else stream

    def _values(self, table: Any, names: Sequence[str]) -> dict[str, Values]:
        """Return the columns of a table that hold all inputs, and others."""
        return as_in_training(self.schema.columns, table_values(table, names))

    def _records(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield columns of all rows that are read, batch by batch."""
        yield from self._dataset.to_batches(
            columns=list(names), filter=self._filter, batch_readahead=1, fragment_readahead=1
        )

    def _patterns_of_gaps(self) -> dict[str, bytes]:
        """Return the numbers and dates that have missing values, each with a digest that is equal for those missing in the same rows."""
        names = [column.name for column in self.schema.columns if column.kind != "category"]
        names = [name for name in names if _may_have_gaps(self._dataset, name)]
        digests = {name: hashlib.blake2b() for name in names}
        found: set[str] = set()
        for record in self._records(names) if names else ():
            values = table_values(pa.Table.from_batches([record]), names)
            for name in names:
                missing = values[name].missing
                digests[name].update(np.packbits(missing).tobytes())
                if missing.any():
                    found.add(name)
        return {name: digests[name].digest() for name in names if name in found}

    def _levels(self, name: str) -> tuple[str | None, ...]:
        """Return all levels of a category, None among them if it has missing values."""
        levels: set[str] = set()
        missing = False
        for record in self._records([name]):
            values = table_values(pa.Table.from_batches([record]), [name])[name].as_category()
            levels |= set(values.levels)
            missing |= bool(values.missing.any())
        return (*sorted(levels), *([None] * missing))

    def _with_effects(self) -> RowStream:
        """Learn the effects of categories with many levels, from all rows or a sample of them."""
        if not any(has_effects(column) for column in self.schema.columns):
            return self
        rng, n_rows = np.random.default_rng(0), self.n_rows
        rows = np.sort(rng.choice(n_rows, min(n_rows, MOST_ROWS), replace=False))
        names = [*(column.name for column in self.schema.columns), *self.schema.targets]
        parts, first = [], 0
        for record in self._records(names):
            low, high = np.searchsorted(rows, [first, first + record.num_rows])
            parts.append(record.take(pa.array(rows[low:high] - first)))
            first += record.num_rows
        values = self._values(pa.Table.from_batches(parts), names)
        found = column_effects(self.schema.columns, values, encode_targets(self.schema, values))
        columns = tuple(
            with_effects(column, found[column.name][0]) if column.name in found else column
            for column in self.schema.columns
        )
        self.schema = replace(self.schema, columns=columns)
        self.effects = {name: (rows, of_rows) for name, (_, of_rows) in found.items()}
        return self

    def batches(self, extra: Sequence[str] = ()) -> Iterator[Batch]:
        """Yield all rows in the order of the files; the tables hold the columns of the schema and ``extra``."""
        names = [column.name for column in self.schema.columns]
        names += [name for name in extra if name not in names]
        names += [t for t in self.schema.targets if self.with_targets and t not in names]
        for file in self.files:
            check_columns(parquet.read_schema(file).names, names, file.name)
        self._missing, self._new = Counter(), {}
        first = 0
        for file in self.files:
            n_before = 0  # rows of this file
            # One file after the other, so that errors can name it.
            for record in pads.dataset(str(file), format="parquet").to_batches(
                columns=names,
                filter=self._filter,
                batch_size=BATCH_ROWS,
                batch_readahead=1,
                fragment_readahead=1,
            ):
                if not record.num_rows:
                    continue
                table = pa.Table.from_batches([record])
                for name in extra:  # the type may differ between files
                    kind = self._dataset.schema.field(name).type
                    position = table.column_names.index(name)
                    table = table.set_column(position, name, table[name].cast(kind))
                try:
                    used = [c.name for c in self.schema.columns]
                    targets = self.schema.targets if self.with_targets else ()
                    values = self._values(table, [*used, *targets])
                    if self.missing == "error":
                        for name in used:
                            remedy = "remove such rows, or use missing='model'"
                            check_no_missing(values[name], name, remedy, n_before + 1)
                    rows = encode_inputs(self.schema, values, n_before + 1)
                    X = rows.X
                    Y = np.empty((len(table), 0))
                    if self.with_targets:
                        Y = encode_targets(self.schema, values, n_before + 1)
                except TableError as error:
                    raise TableError(f"in {file.name}: {error}") from error
                self._replace_effects(X, first)
                self._missing.update(missing_counts(self.schema, values))
                if rows.unknown:
                    self._count_new_levels(values)
                yield Batch(first, rows, Y, table)
                first += len(X)
                n_before += len(X)

    def _count_new_levels(self, values: Mapping[str, Values]) -> None:
        for name, (n, levels) in new_levels(self.schema, values).items():
            n_before, before = self._new.get(name, (0, []))
            # Only the first few are ever listed.
            self._new[name] = (n_before + n, sorted({*before, *levels})[: N_LISTED + 1])

    def _replace_effects(self, X: Array, first: int) -> None:
        """Replace the effects of rows that these were learned from by those without the rows of each row's fold."""
        for name, inputs in self.schema.groups:
            if name not in self.effects:
                continue
            rows, effects = self.effects[name]
            low, high = np.searchsorted(rows, [first, first + len(X)])
            of_outputs = inputs[-effects.shape[1] :]
            X[np.ix_(rows[low:high] - first, of_outputs)] = effects[low:high]

    @property
    def remarks(self) -> list[str]:
        """Remarks on rows and columns that are left out, on missing values and new levels when all rows were last read, on training data."""
        n = self.n_left_out
        left_out = [f"{n} row{'s' * (n > 1)} without a target or with missing values left out"]
        left_out = left_out * (n > 0) + self._left_out
        remarks = left_out + self.schema.missing_remarks(self._missing)
        return remarks + new_level_remarks(self._new) + self._to_look_at

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
