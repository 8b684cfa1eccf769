"""Declarative storage: a stored class is a table of fields, and one engine writes and reads any such class.

A :class:`Record` lists for each field where it is stored (a path in the JSON header, or the name of an array) and what its
values must be. Reading checks every field, and an error names the one that is wrong. Fields may be records themselves,
lists of records, and unions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dsmgp._util.archive import Archive, ModelFileError
from dsmgp.persistence.checks import ANYTHING, OBJECT, Check, list_of, one_of

__all__ = [
    "ArrayField",
    "Entry",
    "Items",
    "Length",
    "Named",
    "Part",
    "Record",
    "Section",
    "Union",
    "refused",
]

# Records of one kind inside one another, far more than anyone uses.
MAX_DEPTH = 50


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn the ValueErrors of a validator that is given values of the file into :class:`ModelFileError`."""
    try:
        yield
    except ModelFileError:
        raise
    except ValueError as error:
        raise ModelFileError(f"it has invalid {what}: {error}") from error


# Where a value is stored


@dataclass
class Section:
    """A place in a file: an object of its header, and a prefix for the names of its arrays.

    Attributes
    ----------
    header : dict
    arrays : dict of str to ndarray
        All arrays of the file.
    path, prefix : str
        Where ``header`` lies in the file's header, for error messages, and what the names of its arrays begin with.
    sizes : dict of str to int
        Lengths by name, shared by the whole file: the first array with a named axis sets its length.
    context : Any
        What else writing or reading depends on, shared too.
    """

    header: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    path: str = ""
    prefix: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    context: Any = None

    def inner(self, header: dict[str, Any], path: str, prefix: str = "") -> Section:
        """Return the place of an object that lies at a path in this one."""
        prefix, path = self.prefix + prefix, f"{self.path}{path}."
        return Section(header, self.arrays, path, prefix, self.sizes, self.context)

    def created(self, path: str) -> dict[str, Any]:
        """Return the object at a path of the header, created where it is missing."""
        header = self.header
        for key in filter(None, path.split(".")):
            header = header.setdefault(key, {})
        return header

    def put(self, path: str, value: Any) -> None:
        """Write an entry of the header."""
        home, _, key = path.rpartition(".")
        self.created(home)[key] = value

    def entry(self, path: str, check: Check = ANYTHING, optional: bool = False) -> Any:
        """Read an entry of the header; one that is optional may be null or missing."""
        value: Any = self.header
        for key in path.split("."):
            if not isinstance(value, dict) or key not in value:
                if optional:
                    return None
                raise ModelFileError(f"it lacks {self.path + path!r}")
            value = value[key]
        if not (check.holds(value) or (optional and value is None)):
            raise ModelFileError(
                f"its {self.path + path!r} is {repr(value)[:80]}, expected {check.expected}"
            )
        return value

    def array(
        self, name: str, dtype: DTypeLike, *shape: str | int | None, finite: bool = True
    ) -> NDArray[Any]:
        """Read an array whose axes have a length, a name (see ``sizes``), or None for any length."""
        lengths = [self.sizes.get(n) if isinstance(n, str) else n for n in shape]
        archive = Archive(self.header, self.arrays)
        array = archive.array(self.prefix + name, dtype, *lengths, finite=finite)
        named = zip(shape, array.shape, strict=True)
        self.sizes.update({n: length for n, length in named if isinstance(n, str)})
        return array

    def check_length(self, path: str, values: list[Any], size: str) -> None:
        """Refuse a list whose length is not that of an axis."""
        if len(values) != self.sizes[size]:
            raise ModelFileError(
                f"its {self.path + path!r} has {len(values)} entries, expected {self.sizes[size]}"
            )


# Fields


class Field(Protocol):
    """Writes values to a place in a section, and reads them back."""

    def write(self, value: Any, section: Section) -> None: ...

    def read(self, section: Section) -> Any: ...


@dataclass(frozen=True)
class Entry:
    """A JSON value in the header.

    ``optional`` ones may be null or missing; ``size`` names the length of a list, if it is that of an axis of arrays;
    ``encode`` makes a value one that JSON has.
    """

    path: str
    check: Check = ANYTHING
    optional: bool = False
    size: str = ""
    encode: Callable[[Any], Any] = lambda value: value

    def write(self, value: Any, section: Section) -> None:
        section.put(self.path, None if value is None else self.encode(value))

    def read(self, section: Section) -> Any:
        value = section.entry(self.path, self.check, self.optional)
        if self.size and value is not None:
            section.check_length(self.path, value, self.size)
        return value


@dataclass(frozen=True)
class Length:
    """The length of an axis that arrays read before have; it is not stored."""

    size: str

    def write(self, value: Any, section: Section) -> None:
        pass

    def read(self, section: Section) -> int:
        return section.sizes[self.size]


@dataclass(frozen=True)
class ArrayField:
    """An array, whose axes are as in :meth:`Section.array`; one that is optional is left out where it is None."""

    name: str
    shape: tuple[str | int | None, ...]
    check: Check = ANYTHING
    dtype: DTypeLike = np.float64
    optional: bool = False
    finite: bool = True

    def write(self, value: Any, section: Section) -> None:
        if value is not None:
            section.arrays[section.prefix + self.name] = np.asarray(value, dtype=self.dtype)

    def read(self, section: Section) -> Any:
        name = section.prefix + self.name
        if self.optional and name not in section.arrays:
            return None
        array = section.array(self.name, self.dtype, *self.shape, finite=self.finite)
        if not self.check.holds(array):
            raise ModelFileError(f"its array {name!r} is not {self.check.expected}")
        return array


@dataclass(frozen=True)
class Part:
    """A record inside another: an object in the header, and arrays whose names have a prefix."""

    path: str
    record: Any
    prefix: str = ""
    optional: bool = False

    def write(self, value: Any, section: Section) -> None:
        if value is None:
            section.put(self.path, None)
        else:
            header = section.created(self.path)
            self.record.write(value, section.inner(header, self.path, self.prefix))

    def read(self, section: Section) -> Any:
        header = section.entry(self.path, OBJECT, self.optional)
        if header is None:
            return None
        return self.record.read(section.inner(header, self.path, self.prefix))


@dataclass(frozen=True)
class Items:
    """A list of records; the names of an item's arrays contain its number.

    ``optional`` items may be None; ``size`` names the length of the list, if it is that of an axis of arrays;
    ``may_lack`` leaves an empty list out of the file, where older files have none either.
    """

    path: str
    record: Any
    prefix: str = ""
    optional: bool = False
    size: str = ""
    may_lack: bool = False

    def write(self, value: Sequence[Any], section: Section) -> None:
        if self.may_lack and not value:
            return
        headers: list[Any] = [None if item is None else {} for item in value]
        section.put(self.path, headers)
        for k, (item, header) in enumerate(zip(value, headers, strict=True)):
            if header is not None:
                self.record.write(item, self._item(section, k, header))

    def read(self, section: Section) -> list[Any]:
        item = Check("an object", lambda v: OBJECT.holds(v) or (self.optional and v is None))
        headers = section.entry(self.path, list_of(item), optional=self.may_lack)
        if headers is None:
            return []
        if section.path.count(f".{self.path}.") > MAX_DEPTH:
            raise ModelFileError(f"its {self.path!r} are nested more than {MAX_DEPTH} deep")
        if self.size:
            section.check_length(self.path, headers, self.size)
        return [
            None if header is None else self.record.read(self._item(section, k, header))
            for k, header in enumerate(headers)
        ]

    def _item(self, section: Section, k: int, header: dict[str, Any]) -> Section:
        return section.inner(header, f"{self.path}.{k}", f"{self.prefix}{k}.")


@dataclass(frozen=True)
class Named:
    """An object whose entries are some of the fields, by name; any other entry is refused."""

    fields: Mapping[str, Field]

    def write(self, value: Mapping[str, Any], section: Section) -> None:
        for name, item in value.items():
            self.fields[name].write(item, section)

    def read(self, section: Section) -> dict[str, Any]:
        unknown = section.header.keys() - self.fields.keys()
        if unknown:
            raise ModelFileError(f"it has the unknown entry {section.path + min(unknown)!r}")
        return {name: self.fields[name].read(section) for name in section.header}


@dataclass(frozen=True)
class Record:
    """How objects of a class are stored.

    Attributes
    ----------
    what : str
        What is stored, in words for error messages.
    make : callable
        Builds an object from the fields; its ValueErrors refuse the file.
    fields : dict of str to Field
        By the names of ``make``'s arguments, in the order in which they are written and read.
    check : callable, optional
        Whether an object that was read makes sense as a whole.
    values : dict of str to callable
        How to get a field's value from the object, where it is not the attribute of that name.
    """

    what: str
    make: Callable[..., Any]
    fields: Mapping[str, Field]
    check: Callable[[Any], bool] = lambda value: True
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def write(self, value: Any, section: Section) -> None:
        for name, stored in self.fields.items():
            stored.write(self.values.get(name, attrgetter(name))(value), section)

    def read(self, section: Section) -> Any:
        values = {name: stored.read(section) for name, stored in self.fields.items()}
        with refused(self.what):
            made = self.make(**values)
        if not self.check(made):
            raise ModelFileError(f"it has invalid {self.what}")
        return made


@dataclass(frozen=True)
class Union:
    """One of several records; an entry of the header says which."""

    path: str
    records: Mapping[str, Any]
    kind: Callable[[Any], str]

    def write(self, value: Any, section: Section) -> None:
        kind = self.kind(value)
        section.put(self.path, kind)
        self.records[kind].write(value, section)

    def read(self, section: Section) -> Any:
        return self.records[section.entry(self.path, one_of(*self.records))].read(section)
