"""Upload of complete Parquet files to file systems that are not of this machine. Needs ``dsmgp[data]``."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from dsmgp.data.table_error import TableError

__all__ = ["UploadError", "UploadTarget"]


class UploadError(TableError):
    """An upload failed; the complete output is still on this machine."""


@dataclass(frozen=True)
class UploadTarget:
    """A file, or a folder without files, on another file system.

    Attributes
    ----------
    url : str
    filesystem : pyarrow.fs.FileSystem
    path : str
        In the file system.
    is_folder : bool
        Whether it is a folder: one that exists, or a name that ends with a slash.
    """

    url: str
    filesystem: Any
    path: str
    is_folder: bool

    @classmethod
    def of(cls, url: str, filesystem: Any, path: str) -> UploadTarget:
        """Look at what is there before anything is computed."""
        path = path.rstrip("/")
        try:
            there = filesystem.get_file_info(path).type
            is_folder = there == fs.FileType.Directory or url.endswith("/")
            held = fs.FileSelector(path, allow_not_found=True)
            has_files = is_folder and bool(filesystem.get_file_info(held))
        except Exception as error:  # fsspec passes on those of any service
            raise TableError(f"{url} cannot be reached: {error}") from error
        if has_files:
            raise TableError(
                f"{url} is a folder with files in it; give one without, or the name of a file"
            )
        return cls(url, filesystem, path, is_folder)

    def upload(self, complete: Path) -> None:
        """Copy a file or a folder of this machine; what is new is deleted again if that fails."""
        there: set[str] | None = None  # others may have written since
        try:
            there = self._held()
            if self.is_folder:
                self.filesystem.create_dir(self.path, recursive=True)
            fs.copy_files(
                str(complete),
                self.path,
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self.filesystem,
            )
        except BaseException as error:
            if there is not None:
                self._remove(complete, there)
            if not isinstance(error, Exception):  # such as an interrupt
                raise
            raise UploadError(
                f"cannot write {self.url}: {str(error) or type(error).__name__}; the complete output is in {complete}"
            ) from error

    def _held(self) -> set[str]:
        """Names of what is there now."""
        where = fs.FileSelector(self.path, allow_not_found=True) if self.is_folder else [self.path]
        infos = self.filesystem.get_file_info(where)
        return {info.base_name for info in infos if info.type != fs.FileType.NotFound}

    def _remove(self, complete: Path, there: set[str]) -> None:
        """Delete what was written, and nothing that others have written."""
        folder, _, name = self.path.rpartition("/")
        names = [name]
        if self.is_folder:
            folder, names = self.path, [file.name for file in complete.iterdir()]
        for name in set(names) - there:
            with suppress(Exception):  # it was not written, or the service is out of reach
                self.filesystem.delete_file(f"{folder}/{name}" if folder else name)
