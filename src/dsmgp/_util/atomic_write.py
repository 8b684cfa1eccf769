"""Atomic file writing: a file appears under its name complete or not at all.

The content goes to a temporary file in the same folder, which replaces the target once it is on disk. An error or an
interrupt at any point leaves the old file as it was, no temporary file and no open file.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["CompleteFile", "atomic_write", "new_beside", "resolve_target"]

# Bytes per system call: an interrupt is noticed between two of them.
CHUNK = 2**26


class CompleteFile(io.FileIO):
    """An unbuffered file whose ``write`` writes everything: that of ``FileIO`` may stop after a part."""

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        n_written = 0
        while n_written < len(view):
            n_written += super().write(view[n_written : n_written + CHUNK]) or 0
        return n_written


def atomic_write(path: str | Path, write: Callable[[CompleteFile], object]) -> None:
    """Write a file, complete or not at all, and replace the one of that name.

    Parameters
    ----------
    path : str or Path
        The file to write, see :func:`resolve_target`.
    write : callable
        Writes the content to the open file it is given.

    Raises
    ------
    OSError
        ``strerror`` says in words what to do about a missing folder, or a name that is no file.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "notes.txt"
    >>> atomic_write(path, lambda file: file.write(b"all of it"))
    >>> path.read_text()
    'all of it'
    """
    target = resolve_target(path)
    temporary = _unused_name(target)
    # Only calls into C stand between creating the file and the protection of `finally`, and in `finally` itself:
    # Python raises KeyboardInterrupt after a call, or on entering a function that is written in Python.
    file = CompleteFile.__new__(CompleteFile)
    try:
        _create(file, temporary, target)
        write(file)
        os.fsync(file.fileno())
        file.close()
        os.replace(temporary, target)
    finally:
        try:
            file.close()
        finally:
            try:  # noqa: SIM105 - suppress() is written in Python
                os.unlink(temporary)
            except FileNotFoundError:  # it has replaced the target, or was never created
                pass
    _sync_folder(target.parent)


def resolve_target(path: str | Path) -> Path:
    """Return the file that writing to ``path`` replaces.

    A symbolic link stays, and the file it points to is replaced: otherwise readers of that file would keep the old content.
    Devices, pipes and folders are refused.
    """
    target = Path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder; give the name of a file", str(path))
    if target.exists() and not target.is_file():
        reason = "a device or a pipe, which is no file to be replaced"
        raise OSError(errno.EINVAL, reason, str(path))
    if not target.parent.is_dir():
        reason = f"the folder {target.parent} does not exist; create it first"
        raise FileNotFoundError(errno.ENOENT, reason, str(path))
    return target


def new_beside(target: Path) -> Path:
    """Create an empty file in the folder of ``target``, with its mode, for a writer that takes names only."""
    temporary = _unused_name(target)
    file = CompleteFile.__new__(CompleteFile)
    try:
        _create(file, temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    finally:
        file.close()
    return temporary


def _unused_name(target: Path) -> Path:
    return target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}"


def _create(file: CompleteFile, path: Path, target: Path) -> None:
    """Create a file with the mode of ``target``, or that of any new file, and open it as ``file``."""
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    # Created with its mode, not opened up first; and reading the umask would mean to set it, for all threads.
    opener = partial(os.open, mode=0o666 if mode is None else mode)
    io.FileIO.__init__(file, path, "xb", opener=opener)
    if mode is not None:
        os.chmod(path, mode)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, where the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with suppress(OSError):  # the file is in place; not every file system can do more
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
