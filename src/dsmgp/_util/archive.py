"""The file format of models and checkpoints: named arrays and a JSON header in one safetensors file with a checksum.

Nothing in such a file is executed. The header holds a SHA-256 checksum of the whole file (with zeros in place of its own
digits), so a truncated or altered file is recognised before anything in it is used. Arrays are written from where they lie
and read into where they stay: neither direction holds a second copy of them.

The safetensors library is not used. It writes to a name, by a temporary file of its own, which :mod:`dsmgp._util.atomic_write` could not
protect, and reports errors of the system as text; before version 0.8 it also copies all arrays. The checksum would take a second pass over
the file in both directions, and its reader maps the file, so that one cut short meanwhile would kill the process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dsmgp._util.atomic_write import atomic_write
from dsmgp._util.errors import InputError

__all__ = [
    "FORMAT",
    "Archive",
    "ModelFileError",
    "dump_archive",
    "load_archive",
    "read_archive",
    "write_archive",
]

#: The version of the format that is written. Files of all versions up to it are read.
FORMAT = 2
# The text before the checksum, a JSON string inside a JSON string, and the number of its digits.
MARK, DIGITS = rb"\"checksum\":\"", 64
# In the order in which safetensors writes them: large items first, so that every array is aligned.
DTYPES = {"I64": "<i8", "F64": "<f8", "F32": "<f4", "I32": "<i4", "U8": "|u1"}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


class ModelFileError(InputError):
    """A model file that cannot be read, or a model that cannot be written to one; the message has the remedy.

    Examples
    --------
    >>> from dsmgp import load
    >>> path = getfixture("tmp_path") / "notes.txt"
    >>> _ = path.write_text("not a model")
    >>> load(path)
    Traceback (most recent call last):
    dsmgp._util.archive.ModelFileError: notes.txt is not a dsmgp model file
    """


class Archive:
    """The header and the arrays of a file, in plain types; nothing in them has been checked."""

    def __init__(self, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.header, self.arrays = header, arrays

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def array(
        self, name: str, dtype: DTypeLike, *shape: int | None, finite: bool = True
    ) -> NDArray[Any]:
        """Return an array after checking its type, shape and values.

        Parameters
        ----------
        name : str
        dtype : data type
        *shape : int or None
            None stands for any length.
        finite : bool
            Whether NaN and infinity are refused.
        """
        if name not in self.arrays:
            raise ModelFileError(f"it lacks the array {name!r}")
        array = self.arrays[name]
        fits = len(shape) == array.ndim and all(
            expected is None or expected == n
            for expected, n in zip(shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise ModelFileError(
                f"its array {name!r} is {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}"
            )
        if finite and not np.isfinite(array).all():
            raise ModelFileError(f"its array {name!r} holds numbers that are not finite")
        return array


def write_archive(
    path: str | Path, header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write a file, complete or not at all."""
    try:
        atomic_write(path, lambda file: dump_archive(file, header, arrays))
    except OSError as error:
        raise ModelFileError(f"cannot write {path}: {error.strerror}") from error


def read_archive(path: str | Path) -> Archive:
    """Read a file and verify its checksum."""
    source = Path(path)
    try:
        if source.exists() and not source.is_file():  # a pipe or a device might never end
            raise ModelFileError(f"cannot read {source}: it is no file")
        with source.open("rb") as file:
            return load_archive(file, os.fstat(file.fileno()).st_size, source.name)
    except FileNotFoundError:
        raise ModelFileError(f"{source} does not exist; check the path") from None
    except OSError as error:
        raise ModelFileError(f"cannot read {source}: {error.strerror}") from error


def dump_archive(
    file: IO[bytes], header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> None:
    """Write the content of a file, as the safetensors library would, with the checksum filled in."""
    order = list(NAMES)
    ordered = sorted(arrays.items(), key=lambda item: (order.index(item[1].dtype), item[0]))
    text = json.dumps({"checksum": "0" * DIGITS, "format": FORMAT, **header}, separators=(",", ":"))
    layout: dict[str, Any] = {"__metadata__": {"dsmgp": text}}
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        dtype = NAMES[array.dtype]
        layout[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    head = json.dumps(layout, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    prefix = struct.pack("<Q", len(head)) + head
    contents = [_bytes(array) for _, array in ordered]
    checksum = hashlib.sha256(prefix)
    for content in contents:
        checksum.update(content)
    start = prefix.index(MARK) + len(MARK)
    file.write(prefix[:start] + checksum.hexdigest().encode() + prefix[start + DIGITS :])
    for content in contents:
        file.write(content)


def load_archive(file: IO[bytes], size: int, name: str) -> Archive:
    """Read the content of a file of ``size`` bytes that error messages call ``name``."""
    prefix = file.read(8)
    n_head = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    head = file.read(min(n_head, size))
    if head[:1] != b"{" or b'"dsmgp"' not in head:
        raise ModelFileError(f"{name} is not a dsmgp model file")
    damaged = ModelFileError(
        f"{name} is damaged or was cut short: its content does not match its checksum; "
        "use a copy, or save the model again"
    )
    layout, header = _parse(head)
    if header is None:
        raise damaged
    version = header.get("format")
    if isinstance(version, int) and version > FORMAT:
        writer = str(header.get("dsmgp", "a later version"))[:40]
        raise ModelFileError(
            f"{name} has format {version}, written by dsmgp {writer}, and this dsmgp reads formats up "
            f"to {FORMAT}; upgrade dsmgp to read it"
        )
    start = head.find(MARK) + len(MARK)
    arrays = _allocate(layout, size - 8 - n_head)
    if arrays is None or start < len(MARK):
        raise damaged
    checksum = hashlib.sha256(prefix + head[:start] + b"0" * DIGITS + head[start + DIGITS :])
    for array in arrays.values():
        content = _bytes(array)
        if file.readinto(content) != array.nbytes:  # type: ignore[attr-defined]
            raise damaged
        checksum.update(content)
    if head[start : start + DIGITS] != checksum.hexdigest().encode():
        raise damaged
    return Archive(header, arrays)


def _bytes(array: NDArray[Any]) -> memoryview:
    """View the bytes of an array; only one that is not contiguous is copied."""
    return np.asarray(array, order="C").reshape(-1).view(np.uint8).data


def _parse(head: bytes) -> tuple[Any, dict[str, Any] | None]:
    """Return the layout of the arrays and our own header inside it, or None where they cannot be parsed."""
    try:
        layout = json.loads(head)
        header = json.loads(layout.pop("__metadata__")["dsmgp"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None
    return layout, header if isinstance(header, dict) else None


def _allocate(layout: dict[str, Any], n_bytes: int) -> dict[str, NDArray[Any]] | None:
    """Return uninitialised arrays in the order of their data, or None where they do not fill ``n_bytes`` exactly."""
    entries: list[tuple[int, int, str, str, list[int]]] = []
    for name, entry in layout.items():
        match entry:
            case {
                "dtype": str(dtype),
                "shape": list(shape),
                "data_offsets": [int(begin), int(end)],
            }:
                entries.append((begin, end, name, DTYPES.get(dtype, ""), shape))
            case _:
                return None
    entries.sort(key=lambda entry: entry[:3])
    position = 0
    for begin, end, _, dtype, shape in entries:
        if not dtype or not all(type(n) is int and n >= 0 for n in shape) or begin != position:
            return None
        if end != begin + math.prod(shape) * np.dtype(dtype).itemsize:
            return None
        position = end
    if position != n_bytes:
        return None
    return {name: np.empty(shape, dtype) for _, _, name, dtype, shape in entries}
