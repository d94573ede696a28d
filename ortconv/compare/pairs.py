"""Pairs of results of one function: their forms, types and elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array

OTHER_FORM = "one is a map, sequence or empty, the other is not of that form"


def changed_form(a: Array, b: Array) -> str | None:
    """The types and shapes of two arrays, if they differ."""
    same = a.shape == b.shape and a.dtype == b.dtype
    return None if same else f"{_type_text(a)} became {_type_text(b)}"


def _type_text(a: Array) -> str:
    return f"{element_type(a)}{list(a.shape)}"


def element_type(a: Array) -> str:
    """The name of an array's element type: numpy's, except for strings, which numpy calls objects."""
    return "string" if a.dtype.kind in "OUST" else str(a.dtype)


def unequal(a: Array, b: Array) -> str | None:
    """The number of elements that differ; None if there are none."""
    wrong = int(np.count_nonzero(a != b))
    return f"{wrong} of {a.size} elements differ" if wrong else None


def are_single(*values: Any) -> bool:
    """True if all values are arrays or numbers, and none is None, a list or a map."""
    return not any(value is None or isinstance(value, list | dict) for value in values)


def paired(want: Any, got: Any) -> list[tuple[Any, Any]] | None:
    """The elements of two lists in pairs, none for twice None; None if the lengths or forms of the two values differ. A map
    consists of its sorted keys and their values.
    """
    if want is None and got is None:
        return []
    if isinstance(want, dict) and isinstance(got, dict):
        return list(zip(_columns(want), _columns(got), strict=True))
    if not isinstance(want, list) or not isinstance(got, list) or len(want) != len(got):
        return None
    return list(zip(want, got, strict=True))


def arrays_of(want: Any, got: Any) -> Iterator[tuple[Array, Array] | None]:
    """The pairs of arrays that two outputs consist of; None for a pair whose forms differ."""
    if are_single(want, got):
        yield comparable(want, got)
    elif (each := paired(want, got)) is None:
        yield None
    else:
        for a, b in each:
            yield from arrays_of(a, b)


def _columns(entries: dict[Any, Any]) -> tuple[Array, Array]:
    """The keys of a map in order, and their values."""
    keys = sorted(entries)
    return _column(keys), _column([entries[key] for key in keys])


def _column(values: list[Any]) -> Array:
    array = np.array(values)
    return array.astype(object) if array.dtype.kind in "UT" else array


def widened(a: Array) -> Array:
    """The elements of an array in float64 or complex128."""
    return np.asarray(a, np.complex128 if a.dtype.kind == "c" else np.float64)


def _beyond_mask(a: Array, b: Array, rtol: float, atol: float) -> Array:
    """Mask of elements that differ by more than atol + rtol * |expected|; integers by more than atol."""
    if a.dtype == object or a.dtype.kind == "b":
        return np.asarray(a != b)
    x, y = widened(a), widened(b)
    rtol = 0.0 if a.dtype.kind in "iu" else rtol
    with np.errstate(all="ignore"):
        return ~np.isclose(y, x, rtol, atol, equal_nan=True)


def beyond(want: Any, got: Any, rtol: float, atol: float) -> str | None:
    """Describe how an output differs from the expected one by more than atol + rtol * |expected|; None if it does not.

    Integers may differ by at most atol. NaN equals NaN, an infinity equals itself.
    """
    if not are_single(want, got):
        each = paired(want, got)
        if each is None:
            return OTHER_FORM
        texts = (beyond(a, b, rtol, atol) for a, b in each)
        return next((f"element {i}: {text}" for i, text in enumerate(texts) if text is not None), None)
    a, b = comparable(want, got)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{_type_text(a)} expected, {_type_text(b)} found"
    wrong = _beyond_mask(a, b, rtol, atol)
    return _first_of(wrong, a, b) if wrong.any() else None


def _first_of(wrong: Array, a: Array, b: Array) -> str:
    """Describe the number of wrong elements, and the first one."""
    first = tuple(int(i[0]) for i in np.nonzero(wrong)) if a.ndim else ()
    at = f" at {list(first)}" if first else ""
    count = np.count_nonzero(wrong)
    return f"{count} of {a.size} elements differ, first{at}: {a[first]} expected, {b[first]} found"


def comparable(want: Any, got: Any) -> tuple[Array, Array]:
    """Both as arrays. Strings become objects, since numpy's types of strings have lengths."""
    a, b = np.asarray(want), np.asarray(got)
    return (a.astype(object), b.astype(object)) if a.dtype.kind in "OUST" and b.dtype.kind in "OUST" else (a, b)
