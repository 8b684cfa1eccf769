"""A table that several workers write: a Parquet file for each part, or one file that is joined from them. Needs ``dsmgp[data]``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyarrow import parquet

from dsmgp.data.parquet.files import filesystem_of, is_url
from dsmgp.data.parquet.sink import ParquetSink
from dsmgp.data.parquet.upload import UploadError, UploadTarget
from dsmgp.data.table_error import TableError

__all__ = ["PartFiles", "is_folder", "part_files"]


@contextmanager
def part_files(out: str | Path) -> Iterator[PartFiles]:
    """Yield the files of the parts of a table; those for a URL are written to a temporary folder, and uploaded when all are complete."""
    filesystem, path = filesystem_of(str(out)) if is_url(out) else (None, out)
    if filesystem is None:
        ends_with_slash = is_url(out) and str(out).endswith("/")
        with PartFiles(f"{path}/" if ends_with_slash else path) as parts:
            yield parts
        return
    target = UploadTarget.of(str(out), filesystem, str(path))
    folder, is_kept = Path(tempfile.mkdtemp(prefix="dsmgp-")), False
    complete = folder / ("parts" if target.is_folder else "all.parquet")
    try:
        with PartFiles(f"{complete}/" if target.is_folder else complete) as parts:
            yield parts
        target.upload(complete)
    except UploadError:
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def is_folder(out: str | Path) -> bool:
    """Return whether what is to be written is a folder: one that exists, or a name that ends with a slash."""
    return Path(out).is_dir() or str(out).endswith(("/", os.sep))


class PartFiles:
    """Parquet files of the parts of a table, which appear under their names when all are written, or not at all.

    Parameters
    ----------
    out : path
        A file, for all parts one after the other; or a folder without files (see :func:`is_folder`), for a file of each part.

    Attributes
    ----------
    folder : Path
        Where parts are written, on the disk of ``out``.
    """

    def __init__(self, out: str | Path) -> None:
        path = Path(out)
        self._folder = path if is_folder(out) else None
        self._sink = None if self._folder else ParquetSink(out)
        if path.is_dir() and any(path.iterdir()):
            raise TableError(
                f"{out} is a folder with files in it; give one without, or the name of a file"
            )
        self._parent = path.parent if self._sink is None else self._sink.path.parent
        if not self._parent.is_dir():
            raise TableError(
                f"cannot write {out}: the folder {self._parent} does not exist; create it first"
            )

    def __enter__(self) -> PartFiles:
        self.folder = Path(tempfile.mkdtemp(prefix=".dsmgp-", dir=self._parent))
        return self

    def path(self, number: int) -> Path:
        """Where a part is written."""
        return self.folder / f"part-{number:05d}.parquet"

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                parts = sorted(self.folder.glob("part-*.parquet"))
                self._move(parts) if self._sink is None else self._join(parts)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _move(self, parts: list[Path]) -> None:
        assert self._folder is not None
        self._folder.mkdir(exist_ok=True)
        for part in parts:
            os.replace(part, self._folder / part.name)

    def _join(self, parts: list[Path]) -> None:
        assert self._sink is not None
        with self._sink as sink:
            for part in parts:
                with parquet.ParquetFile(part) as file:
                    for group in range(file.num_row_groups):
                        sink.add(file.read_row_group(group))
