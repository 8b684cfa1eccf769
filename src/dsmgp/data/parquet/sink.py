"""Parquet files that are written batch by batch. Needs ``dsmgp[data]``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyarrow import parquet

from dsmgp._util.atomic_write import new_beside, resolve_target
from dsmgp.data.table_error import TableError

__all__ = ["ParquetSink"]


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

    def add(self, table: Any) -> None:
        """Append the rows of a table."""
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
