"""Calls of numpy cut into calls on parts of the same arrays, for several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.executor.work import Call, divided
from ortconv.ir.tensor import Array

_PER_CALL, _PER_MULTIPLICATION, _PER_BYTE, _PER_BYTE_OF_WEIGHTS, _PER_ELEMENT_APART = 3e-7, 2e-11, 2e-11, 1.5e-11, 3e-10
"""Seconds, about. Elements are apart where neighbours on the last axis are not neighbours in memory."""

_FEWEST_SECONDS = 1.5e-6
_FEWEST_SECONDS_OF_A_RUN = 50e-6

_MANY = 8
"""Products from which it does not matter that one lane has one more."""


def seconds(calls: Iterable[Call]) -> float:
    """About how long calls take."""
    return sum(_seconds(function, args) for function, args in calls)


def is_worth_sharing(calls: Iterable[Call]) -> bool:
    """True for what takes longer than to hand it to another process and to wait for it."""
    return seconds(calls) > _FEWEST_SECONDS


def are_worth_workers(pieces: Iterable[Sequence[Sequence[Call]]]) -> bool:
    """True where what other lanes do in a run takes longer than to wake their processes."""
    return sum(seconds(lane) for piece in pieces for lane in piece[1:]) > _FEWEST_SECONDS_OF_A_RUN


def _seconds(function: Callable[..., Any], args: Sequence[Any]) -> float:
    if function is np.matmul:
        a, b, out = args
        return float(_PER_CALL + out.size * a.shape[-1] * _PER_MULTIPLICATION + b.nbytes * _PER_BYTE_OF_WEIGHTS)
    arrays = [x for x in (*getattr(function, "args", ()), *args) if isinstance(x, np.ndarray)]
    apart = sum(x.size for x in arrays if x.ndim and x.strides[-1] != x.itemsize and x.shape[-1] > 1)
    return _PER_CALL + sum(x.nbytes for x in arrays) * _PER_BYTE + apart * _PER_ELEMENT_APART


def in_lanes(function: Callable[..., Any], args: Sequence[Any], lanes: int) -> list[Call] | None:
    """A call as one for each lane. None where it is too little work, or nothing is known about it."""
    cut = _cut(function, args, lanes)
    return cut if cut and all(is_worth_sharing([call]) for call in cut[1:]) else None


def _cut(function: Callable[..., Any], args: Sequence[Any], lanes: int) -> list[Call] | None:
    if function is np.matmul:
        return _of_product(*args, lanes=lanes) if len(args) == 3 else None
    if function is np.copyto:
        return _of_elements(function, (*args[1:2], args[0]), lambda x, out: (out, x, *args[2:]), lanes)
    if isinstance(function, np.ufunc):
        return _of_elements(function, args, lambda *parts: parts, lanes) if len(args) == function.nargs else None
    if isinstance(function, partial) and isinstance(function.func, np.ufunc) and function.keywords.keys() == {"out"}:
        ufunc = function.func
        operands = (*function.args, *args, function.keywords["out"])
        if len(operands) != ufunc.nargs:
            return None
        cut = _of_elements(ufunc, operands, lambda *parts: parts, lanes)
        return cut and [(partial(ufunc, out=parts[-1]), parts[:-1]) for _, parts in cut]
    return None


def _of_elements(
    function: Callable[..., Any], arrays: Sequence[Any], arranged: Callable[..., tuple[Any, ...]], lanes: int
) -> list[Call] | None:
    """An elementwise function of arrays, of which the last is the result."""
    out = arrays[-1]
    if not isinstance(out, np.ndarray) or getattr(function, "nout", 1) != 1:
        return None
    if getattr(function, "signature", None) or not all(_is_apart(x, out) for x in arrays[:-1]):
        return None
    axis = max((a for a in range(out.ndim) if out.shape[a] >= lanes), key=lambda a: abs(out.strides[a]), default=None)
    if axis is None:
        return None
    size, place = out.shape[axis], axis - out.ndim
    parts = divided(slice(0, size), lanes)
    return [(function, arranged(*[_part(x, place, part, size) for x in arrays])) for part in parts]


def _of_product(a: Array, b: Array, out: Array, *, lanes: int) -> list[Call] | None:
    if min(a.ndim, b.ndim, out.ndim) < 2 or any(np.may_share_memory(x, out) for x in (a, b)):
        return None
    axis = max(range(-out.ndim, -2), key=lambda axis: out.shape[axis], default=-2)
    if axis < -2 and out.shape[axis] >= lanes and (out.shape[axis] % lanes == 0 or out.shape[axis] >= _MANY):
        is_cut = True, True, True
    elif out.shape[-2] >= max(out.shape[-1] // 4, lanes):
        axis, is_cut = -2, (True, False, True)
    else:
        axis, is_cut = -1, (False, True, True)
    size = out.shape[axis]
    if size < lanes:
        return None
    operands = list(zip((a, b, out), is_cut, strict=True))
    return [
        (np.matmul, tuple([_part(x, axis, part, size) if cut else x for x, cut in operands]))
        for part in divided(slice(0, size), lanes)
    ]


def _part(x: Any, axis: int, part: slice, size: int) -> Any:
    """A part along an axis, counted from behind, of what is broadcast to so many elements there."""
    if not isinstance(x, np.ndarray) or x.ndim < -axis or x.shape[axis] != size:
        return x
    return x[(slice(None),) * (x.ndim + axis) + (part,)]


def _is_apart(x: Any, out: Array) -> bool:
    """True if an operand is not in the memory of the result, or element by element at the same place."""
    if not isinstance(x, np.ndarray) or not np.may_share_memory(x, out):
        return True
    same_place = x.__array_interface__["data"] == out.__array_interface__["data"]
    return same_place and x.shape == out.shape and x.strides == out.strides
