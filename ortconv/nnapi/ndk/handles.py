"""The objects behind the pointers of C programs. Handles are never reused, so the use of a freed one is detected."""

from __future__ import annotations

import itertools
from typing import TypeVar

from ortconv.nnapi.errors import bad_state

T = TypeVar("T")

_numbers = itertools.count(0x10000, 16)
_objects: dict[int, object] = {}
_permanent: dict[object, int] = {}


def new(value: object) -> int:
    """A handle for an object, valid until `free`."""
    handle = next(_numbers)
    _objects[handle] = value
    return handle


def permanent(value: object) -> int:
    """The permanent handle of an object that is never freed, such as a device."""
    if value not in _permanent:
        _permanent[value] = new(value)
    return _permanent[value]


def find(handle: int, kind: type[T]) -> T:
    """The object of a handle. Raises BAD_STATE if the handle was freed or has another kind."""
    value = _objects.get(handle)
    if not isinstance(value, kind):
        found = "freed, or never was one" if value is None else f"a {type(value).__name__}"
        raise bad_state(f"{handle:#x} is not a live {kind.__name__}: it is {found}")
    return value


def free(handle: int) -> None:
    _objects.pop(handle, None)
