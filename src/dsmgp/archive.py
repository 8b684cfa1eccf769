"""One file of named arrays and a header in JSON: safetensors, written whole or not at all, checked to the last byte.

Nothing in it is executed. The header holds a SHA-256 sum of the whole file (its own digits taken as zeros), so a
file that was cut short or changed anywhere is told from a sound one before any of it is believed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FORMAT",
    "Archive",
    "ModelFileError",
    "new_beside",
    "place_of",
    "read_archive",
    "write_archive",
]

#: The version of the format that is written. Files of all versions up to it are read.
FORMAT = 1
# What stands before the sum, which has this many digits: JSON inside a string of JSON.
MARK, DIGITS = rb"\"checksum\":\"", 64
KINDS = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "U8": np.uint8}


class ModelFileError(ValueError):
    """A model file that cannot be read, or a model that cannot be written to one; the message has the remedy.

    Examples
    --------
    >>> from dsmgp import load
    >>> path = getfixture("tmp_path") / "notes.txt"
    >>> _ = path.write_text("not a model")
    >>> load(path)
    Traceback (most recent call last):
    dsmgp.archive.ModelFileError: notes.txt is not a dsmgp model file
    """


class Archive:
    """Arrays by name and a header, as they were read; what is missing or of another kind is refused."""

    def __init__(self, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.header, self.arrays = header, arrays

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def array(self, name: str, kind: type, *shape: int | None, finite: bool = True) -> NDArray[Any]:
        """An array of a kind and shape; None stands for any length. Unless told otherwise its numbers are finite."""
        if name not in self.arrays:
            raise ModelFileError(f"the array {name!r} is missing")
        found = self.arrays[name]
        fits = len(shape) == found.ndim and all(
            wanted is None or wanted == n for wanted, n in zip(shape, found.shape, strict=True)
        )
        if found.dtype != kind or not fits:
            raise ModelFileError(
                f"the array {name!r} is {found.dtype} {found.shape}, expected {np.dtype(kind)} {shape}"
            )
        if finite and not np.isfinite(found).all():
            raise ModelFileError(f"the array {name!r} holds numbers that are not finite")
        return found

    def entry(self, name: str, check: Callable[[Any], bool]) -> Any:
        """An entry of the header that passes a check."""
        if name not in self.header or not check(self.header[name]):
            raise ModelFileError(f"the entry {name!r} of the header is missing or wrong")
        return self.header[name]


def write_archive(
    path: str | Path, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file beside the one of that name, then put it in its place: it is there whole or not at all."""
    try:
        target = place_of(path)
        if not target.parent.is_dir():
            raise ModelFileError(f"the folder {target.parent} does not exist; create it first")
        if target.is_dir():
            raise ModelFileError(f"{target} is a folder; give the name of a file")
    except OSError as error:  # a device, or a name that is too long
        raise ModelFileError(f"cannot write {path}: {error.strerror}") from error
    content = _packed(header, arrays)
    try:
        temporary = new_beside(target)
    except OSError as error:
        raise ModelFileError(f"cannot write in {target.parent}: {error.strerror}") from error
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise ModelFileError(f"cannot write {target}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    _settle(target.parent)


def place_of(path: str | Path) -> Path:
    """Where a file of that name lies: a link stays, and what it points to is replaced.

    Whoever reads that by its own name would else go on with the old one. A device or a pipe is refused: it would be taken
    away for all who use it.
    """
    target = Path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OSError(
            errno.EINVAL, "a device or a pipe, which is no file to be replaced", str(path)
        )
    return target


def new_beside(target: Path) -> Path:
    """An empty file in the folder of another, of the same mode, which is to take its place."""
    temporary = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}"
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    # Made with the mode of any new file: asking for the mask means to set it, for all threads of the process.
    os.close(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    )
    try:
        if mode is not None:
            os.chmod(temporary, mode)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def read_archive(path: str | Path) -> Archive:
    """The content of a file, once its sum has been checked."""
    source = Path(path)
    try:
        if source.exists() and not source.is_file():  # a pipe or a device might never end
            raise ModelFileError(f"cannot read {source}: it is no file")
        content = source.read_bytes()
    except FileNotFoundError:
        raise ModelFileError(f"{source} does not exist; check the path") from None
    except OSError as error:
        raise ModelFileError(f"cannot read {source}: {error.strerror}") from error
    head = _head(content)
    if head is None:
        raise ModelFileError(f"{source.name} is not a dsmgp model file")
    header = _header(head)
    version = header.get("format") if header else None
    if isinstance(version, int) and version > FORMAT:
        writer = str(header.get("dsmgp", "a later version"))[:40] if header else ""
        raise ModelFileError(
            f"{source.name} has format {version}, written by dsmgp {writer}, and this dsmgp reads formats up "
            f"to {FORMAT}; upgrade dsmgp to read it"
        )
    start = content.find(MARK, 0, 8 + len(head)) + len(MARK)
    told = content[start : start + DIGITS]
    if header is None or start < len(MARK) or told != _checksum(content, start):
        raise ModelFileError(
            f"{source.name} is damaged or was cut short: its content does not match its checksum; "
            "use a copy, or save the model again"
        )
    return Archive(header, _arrays(source, content))


def _packed(header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    from safetensors.numpy import save

    # The sum comes first, and in the one entry there is: safetensors writes several in any order.
    whole = {"checksum": "0" * DIGITS, "format": FORMAT, **header}
    text = json.dumps(whole, ensure_ascii=True, separators=(",", ":"))
    tight = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = bytearray(save(tight, {"dsmgp": text}))
    start = content.index(MARK) + len(MARK)
    content[start : start + DIGITS] = _checksum(content, start)
    return bytes(content)


def _checksum(content: bytes | bytearray, start: int) -> bytes:
    """Of everything, with zeros where the sum itself stands."""
    whole = memoryview(content)
    found = hashlib.sha256(whole[:start])
    found.update(b"0" * DIGITS)
    found.update(whole[start + DIGITS :])
    return found.hexdigest().encode()


def _head(content: bytes) -> bytes | None:
    """The bytes of safetensors' own header, if the file may be one of ours."""
    if len(content) < 8:
        return None
    (length,) = struct.unpack("<Q", content[:8])
    head = content[8 : 8 + min(length, len(content))]
    return head if head[:1] == b"{" and b'"dsmgp"' in head else None


def _header(head: bytes) -> dict[str, Any] | None:
    """Ours, inside safetensors' own; nothing where it cannot be read."""
    try:
        found = json.loads(json.loads(head)["__metadata__"]["dsmgp"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _arrays(source: Path, content: bytes) -> dict[str, NDArray[Any]]:
    import safetensors

    found = {}
    try:
        for name, view in safetensors.deserialize(content):
            kind = KINDS[view["dtype"]]
            # A copy of its own, which is aligned and may be written to.
            found[name] = np.frombuffer(view["data"], kind).reshape(view["shape"]).copy()
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ModelFileError(f"{source.name} is damaged: {error}") from error
    return found


def _settle(folder: Path) -> None:
    """Let the folder know of the new name for good, where the system can say so."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with suppress(OSError):  # the file is in its place; not every file system can do more
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
