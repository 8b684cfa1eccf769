"""Columns of Arrow tables as NumPy values. Needs ``dsmgp[data]``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dsmgp.data.columns.values import Values
from dsmgp.data.table_error import TableError

__all__ = ["column_of_arrow"]


def column_of_arrow(column: pa.ChunkedArray, name: str) -> Values:
    """Return the values of one column.

    Examples
    --------
    >>> column_of_arrow(pa.chunked_array([["b", None, "a"]]), "letter").data
    array([ 1, -1,  0])
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
        if not _is_text(kind.value_type):
            return column_of_arrow(pa.chunked_array([column.dictionary_decode()]), name)
        # Indices may be unsigned, and the dictionary itself may hold a missing value.
        codes = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        levels = column.dictionary.to_pylist()
        absent = np.array([*(level is None for level in levels), True])
        return Values.of_codes(np.where(absent[codes], -1, codes), map(str, levels))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        # Floats cannot hold nanoseconds.
        moments = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        moments = moments.cast(pa.timestamp("us"), safe=False)
        return Values.of_dates(moments.to_numpy())
    if pa.types.is_null(kind):
        return Values.of_numbers(np.full(len(column), np.nan))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if any(test(kind) for test in numeric):
        return Values.of_numbers(column.cast(pa.float64(), safe=False).to_numpy())
    if _is_text(kind):
        return column_of_arrow(column.cast(pa.string()).dictionary_encode(), name)
    raise TableError(
        f"column {name!r} is of type {kind}, which cannot be used; turn it into numbers or text first, or leave it "
        f"out with --drop {name!r}"
    )


def _is_text(kind: pa.DataType) -> bool:
    texts = (pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in texts) or str(kind).startswith("string")
