"""The Parquet files of a dataset: on this machine, or on a file system that pyarrow or fsspec knows by its URL."""

from __future__ import annotations

import fnmatch
import glob
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
from pyarrow import fs

from dsmgp.data.table_error import TableError

__all__ = ["DataFile", "filesystem_of", "is_url", "open_dataset", "parquet_files"]

SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class DataFile:
    """A Parquet file.

    Attributes
    ----------
    path : str
        In its file system.
    filesystem : pyarrow.fs.FileSystem, optional
        None for files of this machine.
    """

    path: str
    filesystem: Any = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.replace("\\", "/").rpartition("/")[2]

    @property
    def identity(self) -> tuple[int, int]:
        """Size, and time of the last change in nanoseconds (0 if it is not known): a file that is replaced has others."""
        info = (self.filesystem or fs.LocalFileSystem()).get_file_info(self.path)
        return int(info.size or 0), int(info.mtime_ns or 0)

    def is_inside(self, folder: Path) -> bool:
        """Whether the file lies in a folder of this machine."""
        return self.filesystem is None and folder.resolve() in Path(self.path).resolve().parents

    def __str__(self) -> str:
        return self.path


def is_url(path: str | Path) -> bool:
    """Return whether a path is given as a URL."""
    return isinstance(path, str) and "://" in path


def parquet_files(data: str | Path | Sequence[str | Path]) -> list[DataFile]:
    """Return the Parquet files of paths, folders, globs and URLs of them, in order of their names."""
    sources = [data] if isinstance(data, (str, Path)) else list(data)
    files: list[DataFile] = []
    for source in sources:
        if is_url(source):
            files += _files_at(str(source))
            continue
        path = Path(source)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
            if not inside:
                raise TableError(f"the folder {path} has no Parquet files (.parquet) in it")
            files += [DataFile(str(p)) for p in inside]
        elif path.exists():
            files.append(DataFile(str(path)))
        else:
            matching = sorted(Path(name) for name in glob.glob(str(source), recursive=True))
            if not matching:
                raise TableError(f"{source} does not exist, and no file matches it")
            files += parquet_files(matching)
    return files


def open_dataset(files: Sequence[DataFile]) -> Any:
    """Return the pyarrow dataset of some files of one file system; its schema is that of the first."""
    systems = {id(file.filesystem): file.filesystem for file in files}
    if len(systems) > 1 and len({str(type(each)) for each in systems.values()}) > 1:
        raise TableError(
            "the files are on several file systems; pass files of one file system at a time"
        )
    try:
        paths = [file.path for file in files]
        return pads.dataset(paths, format="parquet", filesystem=files[0].filesystem)
    except (pa.ArrowException, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise TableError(f"cannot be read as Parquet: {first}") from error


def _files_at(url: str) -> list[DataFile]:
    """Return the Parquet files that a URL names: a file, a folder or a pattern."""
    filesystem, path = filesystem_of(url)
    if filesystem is None:
        return parquet_files(path)
    if any(mark in path for mark in "*?["):
        start = min(path.index(mark) for mark in "*?[" if mark in path)
        found = _listed(filesystem, path[:start].rpartition("/")[0])
        files = [name for name in found if fnmatch.fnmatchcase(name, path)]
    elif filesystem.get_file_info(path).type == fs.FileType.Directory:
        files = [name for name in _listed(filesystem, path) if name.endswith(SUFFIXES)]
    elif filesystem.get_file_info(path).type == fs.FileType.File:
        files = [path]
    else:
        files = []
    if not files:
        raise TableError(f"{url} does not exist, and no Parquet file matches it")
    return [DataFile(name, filesystem) for name in sorted(files)]


def _listed(filesystem: Any, folder: str) -> list[str]:
    """Return the paths of all files below a folder."""
    found = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
    return [info.path for info in found if info.is_file]


def filesystem_of(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, None for this machine's, and the path in it; fsspec knows what pyarrow does not."""
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        scheme = url.partition("://")[0]
        if importlib.util.find_spec("fsspec") is None:
            raise TableError(
                f"pyarrow has no file system for {scheme}:// addresses; install fsspec and its package for {scheme}"
            ) from error
        import fsspec

        try:
            found, path = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError, OSError) as problem:
            raise TableError(f"{url} cannot be reached: {problem}") from problem
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(found))
    return (None if isinstance(filesystem, fs.LocalFileSystem) else filesystem), path
