"""Declarative storage: a stored class is a table of fields, and one engine writes and reads any such class.

A :class:`Record` lists for each field of a class what its values must be, and whether it is an entry of the JSON header or an array.
Writing, reading and checking follow from it, and an error names the field that is wrong. Fields may be records themselves, lists of
records, and unions. A field is stored by its own name unless another one is given, and one that a file lacks has the default of the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from fractions import Fraction
from operator import attrgetter, itemgetter
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
def refused(what: str, errors: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn the ValueErrors of a constructor or a check of values of the file into :class:`ModelFileError`.

    Computing with these values needs ``errors`` that name what may go wrong: any other is a fault of the program, and surfaces.
    """
    try:
        yield
    except ModelFileError:
        raise
    except errors as error:
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

    def inner(
        self,
        header: dict[str, Any],
        path: str,
        prefix: str = "",
        sizes: dict[str, int] | None = None,
    ) -> Section:
        """Return the place of an object that lies at a path in this one; with ``sizes`` it has axes of its own."""
        sizes = self.sizes if sizes is None else sizes
        prefix, path = self.prefix + prefix, f"{self.path}{path}."
        return Section(header, self.arrays, path, prefix, sizes, self.context)

    def has_array(self, name: str) -> bool:
        return self.prefix + name in self.arrays

    def put_array(self, name: str, array: NDArray[Any]) -> None:
        self.arrays[self.prefix + name] = array

    def created(self, path: str) -> dict[str, Any]:
        """Return the object at a path of the header, created where it is missing."""
        header = self.header
        for key in filter(None, path.split(".")):
            header = header.setdefault(key, {})
        return header

    def put(self, path: str, value: Any) -> None:
        """Write an entry of the header, of any type that JSON has a counterpart of."""
        home, _, key = path.rpartition(".")
        self.created(home)[key] = _plain(value)

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
        return None if value is None else check.as_read(value)

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

    def check_length(self, path: str, values: Sequence[Any], size: str) -> None:
        """Refuse a list whose length is not that of an axis."""
        if len(values) != self.sizes[size]:
            raise ModelFileError(
                f"its {self.path + path!r} has {len(values)} entries, expected {self.sizes[size]}"
            )


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, Fraction) else value


# Fields


class Field(Protocol):
    """Writes values to a place in a section, and reads them back; ``name`` is that of the field in its record.

    Records are fields too: one inside another shares its section.
    """

    def write(self, value: Any, section: Section, name: str = "") -> None: ...

    def read(self, section: Section, name: str = "") -> Any: ...


@dataclass(frozen=True)
class Entry:
    """A JSON value in the header, at a path that is the field's name by default; lists are read as tuples.

    ``optional`` ones may be null or missing; ``size`` names the length of a list, if it is that of an axis of arrays.
    """

    check: Check = ANYTHING
    path: str = ""
    optional: bool = False
    size: str = ""

    def write(self, value: Any, section: Section, name: str = "") -> None:
        section.put(self.path or name, value)

    def read(self, section: Section, name: str = "") -> Any:
        value = section.entry(self.path or name, self.check, self.optional)
        if self.size and value is not None:
            section.check_length(self.path or name, value, self.size)
        return value


@dataclass(frozen=True)
class Length:
    """The length of an axis that arrays read before have; it is not stored."""

    size: str

    def write(self, value: Any, section: Section, name: str = "") -> None:
        pass

    def read(self, section: Section, name: str = "") -> int:
        return section.sizes[self.size]


@dataclass(frozen=True)
class ArrayField:
    """An array, whose axes are as in :meth:`Section.array`; one that is optional is left out where it is None."""

    shape: tuple[str | int | None, ...]
    check: Check = ANYTHING
    dtype: DTypeLike = np.float64
    array_name: str = ""
    optional: bool = False
    finite: bool = True

    def write(self, value: Any, section: Section, name: str = "") -> None:
        if value is not None:
            section.put_array(self.array_name or name, np.asarray(value, dtype=self.dtype))

    def read(self, section: Section, name: str = "") -> Any:
        name = self.array_name or name
        if self.optional and not section.has_array(name):
            return None
        array = section.array(name, self.dtype, *self.shape, finite=self.finite)
        if not self.check.holds(array):
            raise ModelFileError(
                f"its array {section.prefix + name!r} is not {self.check.expected}"
            )
        return array


@dataclass(frozen=True)
class Part:
    """A record inside another: an object in the header, and arrays whose names begin with its path, or another prefix."""

    record: Any
    path: str = ""
    prefix: str | None = None
    optional: bool = False

    def write(self, value: Any, section: Section, name: str = "") -> None:
        path = self.path or name
        if value is None:
            section.put(path, None)
        else:
            self.record.write(value, self._inner(section, path, section.created(path)))

    def read(self, section: Section, name: str = "") -> Any:
        path = self.path or name
        header = section.entry(path, OBJECT, self.optional)
        return None if header is None else self.record.read(self._inner(section, path, header))

    def _inner(self, section: Section, path: str, header: dict[str, Any]) -> Section:
        return section.inner(header, path, f"{path}." if self.prefix is None else self.prefix)


@dataclass(frozen=True)
class Items:
    """A tuple of records; the names of an item's arrays begin with the path of the list, or another prefix, and its number.

    An item may be None if ``nullable``; ``size`` names the length of the list, if it is that of an axis of arrays. An
    ``optional`` list is left out of the file where it is empty.
    """

    record: Any
    path: str = ""
    prefix: str | None = None
    nullable: bool = False
    size: str = ""
    optional: bool = False

    def write(self, value: Sequence[Any], section: Section, name: str = "") -> None:
        if self.optional and not value:
            return
        headers: list[Any] = [None if item is None else {} for item in value]
        section.created("")[self.path or name] = headers
        for k, (item, header) in enumerate(zip(value, headers, strict=True)):
            if header is not None:
                self.record.write(item, self._item(section, name, k, header))

    def read(self, section: Section, name: str = "") -> tuple[Any, ...] | None:
        path = self.path or name
        item = Check("an object", lambda v: OBJECT.holds(v) or (self.nullable and v is None))
        headers = section.entry(path, list_of(item), self.optional)
        if headers is None:
            return None
        if section.path.count(f".{path}.") > MAX_DEPTH:
            raise ModelFileError(f"its {path!r} are nested more than {MAX_DEPTH} deep")
        if self.size:
            section.check_length(path, headers, self.size)
        return tuple(
            None if header is None else self.record.read(self._item(section, name, k, header))
            for k, header in enumerate(headers)
        )

    def _item(self, section: Section, name: str, k: int, header: dict[str, Any]) -> Section:
        path = self.path or name
        prefix = f"{path}." if self.prefix is None else self.prefix
        return section.inner(header, f"{path}.{k}", f"{prefix}{k}.")


# Records


@dataclass(frozen=True)
class Named:
    """A dictionary some of whose entries are given as fields, by name; any other entry is refused."""

    fields: Mapping[str, Field]

    def write(self, value: Mapping[str, Any], section: Section, name: str = "") -> None:
        for key, item in value.items():
            self.fields[key].write(item, section, key)

    def read(self, section: Section, name: str = "") -> dict[str, Any]:
        unknown = section.header.keys() - self.fields.keys()
        if unknown:
            raise ModelFileError(f"it has the unknown entry {section.path + min(unknown)!r}")
        return {key: self.fields[key].read(section, key) for key in section.header}


@dataclass(frozen=True)
class Record:
    """How objects of a class are stored.

    Attributes
    ----------
    what : str
        What is stored, in words for error messages.
    make : callable
        The class, or a function that builds an object from the fields; its ValueErrors refuse the file.
    fields : dict of str to Field
        By the names of ``make``'s arguments, in the order in which they are written and read.
    check : callable, optional
        Whether an object that was read makes sense as a whole.
    values : dict of str to callable
        How to get a field's value from the object, where it is not the attribute or the item of that name.
    """

    what: str
    make: Callable[..., Any]
    fields: Mapping[str, Field]
    check: Callable[[Any], bool] = lambda value: True
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def write(self, value: Any, section: Section, name: str = "") -> None:
        for key, stored in self.fields.items():
            value_of = itemgetter(key) if isinstance(value, Mapping) else attrgetter(key)
            stored.write(self.values.get(key, value_of)(value), section, key)

    def read(self, section: Section, name: str = "") -> Any:
        values = {key: stored.read(section, key) for key, stored in self.fields.items()}
        for default in fields(self.make) if is_dataclass(self.make) else ():
            if values.get(default.name) is None and default.default is not MISSING:
                values.pop(default.name, None)
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

    def write(self, value: Any, section: Section, name: str = "") -> None:
        kind = self.kind(value)
        section.put(self.path, kind)
        self.records[kind].write(value, section)

    def read(self, section: Section, name: str = "") -> Any:
        return self.records[section.entry(self.path, one_of(*self.records))].read(section)
