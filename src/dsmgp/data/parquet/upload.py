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
    is_folder, is_new : bool
        Whether it is a folder: one that exists, or a name that ends with a slash; and whether it does not exist yet.
    """

    url: str
    filesystem: Any
    path: str
    is_folder: bool
    is_new: bool

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
        return cls(url, filesystem, path, is_folder, there == fs.FileType.NotFound)

    def upload(self, complete: Path) -> None:
        """Copy a file or a folder of this machine; what is new is deleted again if that fails."""
        try:
            if self.is_folder:
                self.filesystem.create_dir(self.path, recursive=True)
            fs.copy_files(
                str(complete),
                self.path,
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self.filesystem,
            )
        except BaseException as error:
            self._remove()
            if not isinstance(error, Exception):  # such as an interrupt
                raise
            raise UploadError(
                f"cannot write {self.url}: {str(error) or type(error).__name__}; the complete output is in {complete}"
            ) from error

    def _remove(self) -> None:
        with suppress(Exception):  # the service may be out of reach
            if self.is_folder:
                self.filesystem.delete_dir_contents(self.path)
            elif self.is_new:
                self.filesystem.delete_file(self.path)
