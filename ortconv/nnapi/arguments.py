"""Checks arguments of API calls against the types that the functions declare.

`checked` is the only guard against values of other Python types. It knows the annotations of the public functions:
those in PLAIN, classes of the API, sequences of either, and each of them with `| None`. A conversion may run code of
the caller's objects, so any exception in it means that the value is refused.
"""

from __future__ import annotations

import functools
import numbers
import operator
import os
from collections.abc import Callable, Iterable
from enum import IntEnum
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import Operand, Operation, ResultCode
from ortconv.nnapi.errors import NnapiError

P = ParamSpec("P")
R = TypeVar("R")
ArgumentRule = Callable[[str, object], Any]
"""Maps the name of a parameter and a value to what the function receives. Raises NnapiError for a refused value."""

Nanoseconds = int
Values = Any
"""Elements of an operand: an array of its type or of its bytes, or numbers that its type can hold; see `elements`."""

SHOWN = 60  # characters of a wrong value


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse values that are not of the declared types: UNEXPECTED_NULL for None, BAD_DATA for others."""
    count = function.__code__.co_argcount
    names = function.__code__.co_varnames[:count]
    texts = function.__annotations__
    rules = {name: _rule(texts[name], function) for name in names if name in texts}
    order = [(name, rules.get(name)) for name in names]

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> R:
        given = [value if rule is None else rule(name, value) for (name, rule), value in zip(order, args)]
        if kwargs:
            kwargs = {name: rules[name](name, value) if name in rules else value for name, value in kwargs.items()}
        return function(*given, *args[count:], **kwargs)

    return guarded


def wrong(name: str, value: object, wanted: str, hint: str | None = None) -> NnapiError:
    if value is None:
        return NnapiError(ResultCode.UNEXPECTED_NULL, f"{name} is None, not {wanted}", hint=hint)
    try:
        shown = repr(value)
    except Exception:
        shown = "a value"
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
    return NnapiError(ResultCode.BAD_DATA, f"{name} is {shown} ({type(value).__name__}), not {wanted}", hint=hint)


def whole(name: str, value: object) -> int:
    """Convert to an integer that fits into 64 bits."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except Exception:
        raise wrong(name, value, "an integer", "pass an int, such as the index that add_operand returned") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise wrong(name, value, "an integer of 64 bits")
    return number


def nanoseconds(name: str, value: object) -> int:
    number = whole(name, value)
    if number < 0:
        raise wrong(name, value, "a number of nanoseconds from 0 on")
    return number


def number(name: str, value: object) -> float:
    if not isinstance(value, numbers.Real):
        raise wrong(name, value, "a number")
    try:
        return float(value)
    except Exception:
        raise wrong(name, value, "a number that a float can hold") from None


def _of(kinds: Any, wanted: str, made: Callable[[Any], Any]) -> ArgumentRule:
    """The rule for values of some Python types, of which the function gets `made(value)`."""

    def check(name: str, value: object) -> Any:
        if not isinstance(value, kinds):
            raise wrong(name, value, wanted)
        return made(value)

    return check


def array(name: str, value: object) -> Array:
    """A numpy array of numbers or bytes, as a plain ndarray that shares its memory."""
    if not isinstance(value, np.ndarray):
        raise wrong(name, value, "a numpy array", "pass a numpy array: its memory is used, not a copy")
    if value.dtype.hasobject:
        raise wrong(name, value, "an array of numbers", f"its elements are Python objects ({value.dtype})")
    return np.asarray(value)


def elements(name: str, value: object, dtype: np.dtype[Any]) -> Array:
    """An array unchanged; numbers and nested lists of them as an array of `dtype`. Raises BAD_DATA if it cannot hold them."""
    if isinstance(value, np.ndarray | np.generic):
        return array(name, np.asarray(value))
    try:
        plain = np.array(value)
    except Exception:
        raise wrong(name, value, "an array or numbers", "every row of nested lists needs the same length") from None
    if plain.dtype.kind not in "biuf":
        raise wrong(name, value, "an array or numbers", f"pass a numpy array of {dtype}")
    with np.errstate(all="ignore"):
        typed = plain.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(typed, plain):
        raise wrong(name, value, f"numbers that {dtype} can hold")
    return typed


def _member(members: type[IntEnum]) -> ArgumentRule:
    """The rule for a member of an enumeration, or its code."""

    def check(name: str, value: object) -> IntEnum:
        try:
            return members(operator.index(value))  # type: ignore[arg-type]
        except Exception:
            hint = f"pass a member of nnapi.{members.__name__}, or its code"
            raise wrong(name, value, f"a member of {members.__name__}", hint) from None

    return check


def text_or_path(name: str, value: object) -> str:
    try:
        found = os.fspath(value)  # type: ignore[call-overload]
    except Exception:
        found = None
    if not isinstance(found, str) or "\0" in found:
        raise wrong(name, value, "a path", "pass a str or a pathlib.Path")
    return found


PLAIN: dict[str, ArgumentRule] = {
    "int": whole,
    "str": _of(str, "a text", str),
    "float": number,
    "bool": _of(bool | np.bool_ | int, "True or False", bool),
    "bytes": _of(bytes | bytearray | memoryview, "bytes", bytes),
    "Nanoseconds": nanoseconds,
    "Operation": _member(Operation),
    "Operand": _member(Operand),
    "Array": array,
    "Values": lambda name, value: value,  # `elements` reads them with the type of the operand
    "str | int": lambda name, value: value if isinstance(value, str) else whole(name, value),
    "str | os.PathLike[str]": text_or_path,
    "str | Path": text_or_path,
}


def _rule(text: str, function: Callable[..., object]) -> ArgumentRule:
    """The rule for an annotation, given as text."""
    bare = text.removesuffix(" | None")
    inner = bare.removeprefix("Sequence[").removesuffix("]") if bare.startswith("Sequence[") else bare
    rule = PLAIN.get(inner) or _instance(inner, function)
    rule = rule if inner == bare else _each(rule)
    return rule if bare == text else lambda name, value: None if value is None else rule(name, value)


def _each(rule: ArgumentRule) -> ArgumentRule:
    def check(name: str, value: object) -> list[Any]:
        if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
            raise wrong(name, value, "a list")
        try:
            items = list(value)
        except Exception:  # such as an array without dimensions
            raise wrong(name, value, "a list") from None
        return [rule(f"{name}[{at}]", one) for at, one in enumerate(items)]

    return check


def _instance(class_name: str, function: Callable[..., object]) -> ArgumentRule:
    """The rule for objects of a class, which is looked up in the function's module and then in the API."""

    @functools.cache
    def owner() -> type:
        found = function.__globals__.get(class_name)
        return found or getattr(import_module("ortconv.nnapi"), class_name)  # type: ignore[no-any-return]

    def check(name: str, value: object) -> object:
        if not isinstance(value, owner()):
            article = "an" if class_name[0] in "AEIOU" else "a"
            raise wrong(name, value, f"{article} {class_name}", f"pass an object of nnapi.{class_name}")
        return value

    return check
