"""The boundary of the Python API: what leaves a public function as an exception is an error of ortconv.

An exception of Python is traced back to the argument that does not fit its annotation. Arguments are examined only after such an
exception. So calls that work cost nothing more, and may pass objects that behave like the annotated ones.
"""

from __future__ import annotations

import builtins
import errno
import re
import reprlib
import sys
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from ortconv.errors import FULL, MAKE_ROOM, InternalError, OrtconvError, UnsupportedError, UsageError

P = ParamSpec("P")
R = TypeVar("R")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for functions of the API. Exceptions of Python become UsageError if an argument has a wrong type or a file cannot
    be read or written, and UnsupportedError if memory runs out. Others are bugs, and pass.
    """

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            if isinstance(error, OrtconvError) and not isinstance(error, InternalError):
                raise
            found = _misfit(function, arguments, keywords)
            if found is None and isinstance(error, MemoryError | OSError):
                found = by_system(error)
            if found is None:
                raise
            raise found from error

    return call


def by_system(error: MemoryError | OSError) -> OrtconvError:
    """An error for an exception of the system: out of memory, or a file that could not be read or written."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return UnsupportedError(
            f"out of memory{f': {error}' if str(error) else ''}",
            hint="try smaller inputs, or a machine with more memory",
        )
    reason = error.strerror or str(error)
    if error.filename is None and error.errno in FULL:
        return UsageError(f"cannot write the output: {reason}", hint=MAKE_ROOM)
    return UsageError(f"cannot read or write: {reason}" if error.filename else reason, file=error.filename)


def _misfit(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> OrtconvError | None:
    """An error about the first argument that does not fit its annotation; None if all fit."""
    code, kinds = function.__code__, _annotations(function)
    for name, value in {**dict(zip(code.co_varnames[: code.co_argcount], arguments)), **keywords}.items():
        if name in kinds and not _fits(kinds[name], value):
            kind = function.__annotations__[name]
            return UsageError(f"{name} is {reprlib.repr(value)}", hint=f"it must be {kind}")
    return None


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters. Names that its module imports only for type checkers are Any."""
    names = re.findall(r"\w+", " ".join(function.__annotations__.values()))
    known = ChainMap(vars(sys.modules[function.__module__]), vars(builtins))
    return get_type_hints(function, localns={name: known.get(name, Any) for name in names})


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value has a type, and its elements have theirs. True for types that cannot be examined."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return any(_fits(one, value) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    return _is_instance(value, {float: float | int}.get(kind, origin or kind)) and _holds(value, inner)


def _is_instance(value: Any, kind: Any) -> bool:
    """Whether a value has a type, regardless of its elements. A bool is no number, and a text is no list."""
    if kind is Any or not isinstance(kind, type | UnionType) or getattr(kind, "_is_protocol", False):
        return True
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, kind) and not (kind is Sequence and isinstance(value, str | bytes))


def _holds(value: Any, kinds: Sequence[Any]) -> bool:
    """Whether the elements of a collection have the types of its annotation; True for other values."""
    if not kinds or not isinstance(value, Collection):
        return True
    if isinstance(value, Mapping) and len(kinds) == 2:
        return all(_fits(kinds[0], key) and _fits(kinds[1], one) for key, one in value.items())
    return all(_fits(kinds[0], one) for one in value)
