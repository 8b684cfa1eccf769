"""Read-only attributes of an estimator that forward to its fitted state."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["FittedAttribute"]

Value = TypeVar("Value")


class FittedAttribute(Generic[Value]):
    """A quantity of an estimator's ``state_``, given by its path there.

    Before a fit ``state_`` raises an AttributeError, so that ``hasattr`` returns False.

    Parameters
    ----------
    path : str
        Such as ``"model.leaf_noise"``.
    """

    def __init__(self, path: str) -> None:
        self._read: Callable[[Any], Value] = attrgetter(f"state_.{path}")
        self.__doc__ = f"``state_.{path}``; see the attributes of the class."

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, estimator: None, owner: type) -> Self: ...
    @overload
    def __get__(self, estimator: object, owner: type) -> Value: ...
    def __get__(self, estimator: object | None, owner: type) -> Self | Value:
        return self if estimator is None else self._read(estimator)

    def __set__(self, estimator: object, value: object) -> None:
        raise AttributeError(f"{self._name} cannot be set: it is part of what fit has learned")
