"""JSON documents: classes that are written as such, and documents read as these classes, with a check of every type."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, NotRequired, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from ortconv.errors import FormatError
from ortconv.files import read_text

T = TypeVar("T")

D = TypeVar("D", bound="Document")

PLAIN = (str, int, bool, NoneType)


class Document:
    """A dataclass that is written as a JSON document. VERSION is that of its fields."""

    VERSION: ClassVar[int] = 1
    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The document as plain data, for JSON."""
        return {"version": self.VERSION, **asdict(self)}  # type: ignore[call-overload]


def read_document(path: str | Path, kind: type[D], name: str) -> D:
    """Read the JSON document of a file. Raises FormatError, with the `name` of such documents, for any other content."""
    try:
        return read_version(kind, json.loads(read_text(path, refusal=FormatError)))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no {name} of version {kind.VERSION}: {error}", file=path) from error


def read_version(kind: type[D], found: object) -> D:
    """Like `read_as`, for the plain data of a document. Raises ValueError if it has another version."""
    if not isinstance(found, dict) or found.get("version") != kind.VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise ValueError("it states no version" if version is None else f"its version is {repr(version)[:20]}")
    return read_as(kind, {name: one for name, one in found.items() if name != "version"})


def read_as(kind: type[T], found: object) -> T:
    """The content of a JSON document as a dataclass or TypedDict, whose fields have such types, plain types, or lists, tuples,
    mappings and unions of these.

    Raises ValueError, with the place, for a value of another type or a field that is missing; of a dataclass also for an unknown
    field.
    """
    made: T = _read(kind, found, "the document")
    return made


def _read(kind: Any, found: Any, place: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return found
    if kind in PLAIN:
        return _checked(type(found) is kind, found, place)
    if kind is float:
        return _checked(type(found) is float or (type(found) is int and abs(found) <= sys.float_info.max), found, place)
    if origin is UnionType:
        return _read(next((one for one in inner if one is type(found)), inner[0]), found, place)
    if origin is list or origin is tuple:
        items = _checked(isinstance(found, list), found, place)
        return origin(_read_items(inner[:1] * len(items) if origin is list or ... in inner else inner, items, place))
    _checked(isinstance(found, dict), found, place)
    if is_dataclass(kind) or is_typeddict(kind):
        return _read_fields(kind, found, place)
    return {name: _read(inner[1], one, f"{place}[{name!r}]") for name, one in found.items()}


def _read_items(kinds: Sequence[Any], items: Sequence[Any], place: str) -> list[Any]:
    _checked(len(items) == len(kinds), items, place)
    return [_read(kind, one, f"{place}[{i}]") for i, (kind, one) in enumerate(zip(kinds, items))]


def _read_fields(kind: Any, found: Mapping[str, Any], place: str) -> Any:
    types, required = _fields(kind)
    is_class = is_dataclass(kind)
    for name in found.keys() - types.keys() if is_class else ():
        raise ValueError(f"{place} has an unknown field '{name}'")
    for name in sorted(required - found.keys()):
        raise ValueError(f"{place} has no '{name}'")
    made = {name: _read(types[name], one, f"'{name}' of {place}") for name, one in found.items() if name in types}
    return kind(**made)


@cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The types of a class's fields, and the names of those that a document must have."""
    if is_typeddict(kind):  # __required_keys__ overlooks NotRequired in postponed annotations
        marked = get_type_hints(kind, include_extras=True)
        return get_type_hints(kind), frozenset(
            name for name, one in marked.items() if get_origin(one) is not NotRequired
        )
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    return get_type_hints(kind), frozenset(required)


def _checked(holds: bool, found: Any, place: str) -> Any:
    if not holds:
        raise ValueError(f"{place} is {repr(found)[:60]}, which has the wrong type")
    return found
