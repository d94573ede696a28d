"""How kernels and steps do their work: memory and calls to numpy, at once or recorded to be done again.

A function that takes a `Work` as its first argument, has its memory from it and calls numpy through it can be recorded.
`recordable` makes an ordinary function of it, such as the copies here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, Self

import numpy as np

from ortconv.ir.tensor import Array

Function = Callable[..., Any]

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class ChangedError(Exception):
    """The recording does not hold for this run."""


class Work:
    """Does work at once, in new memory."""

    def empty(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Contiguous memory. In a recording it is the step's own, unless its result lies there."""
        return np.empty(shape, dtype)

    def like(self, x: Array, dtype: Any = None) -> Array:
        """Memory for an array that is laid out like another, without gaps, and of its type if no other is given."""
        return np.empty_like(x, dtype)

    def do(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function; in a recording again in each run, or what it calls if that can be recorded."""
        function(*args)

    def scratch(self) -> AbstractContextManager[None]:
        """Memory that is allocated inside the block is free again after it."""
        return nullcontext()

    def contiguous(self, x: Array) -> Array:
        """x in row order: itself, or memory that it is copied to."""
        return x if x.flags.c_contiguous else self.copied(x)

    def copied(self, x: Array) -> Array:
        """Memory in row order that x is copied to."""
        out = self.empty(x.shape, x.dtype)
        self.do(copy_pixels if x.ndim else copy_to, x, out)
        return out

    def arranged(self, arrange: Callable[[Array], Array], x: Array) -> Array:
        """arrange(x), which is a view or a copy."""
        return arrange(x)

    def reshaped(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(shape)

    def holds(self, x: Array) -> bool:
        """True for memory that later runs write to again."""
        return True

    def call(self, function: Function, *operands: Any) -> Any:
        """What a function makes, which may be recordable or not. None where it cannot be recorded."""
        return function(*operands)


AT_ONCE = Work()


Finish = Callable[[Work, Array], None]
"""Changes a contiguous part of a result, channels last, in place, as soon as it is made."""


class Recordable(partial[Any]):
    """A function of operands, and `record`, the function (work, *operands) that does the same in calls that can be recorded.

    `record` returns None for operands that cannot be recorded.
    """

    record: Callable[..., Any]

    def __new__(cls, function: Function, record: Callable[..., Any]) -> Self:
        made = super().__new__(cls, function)
        made.record = record
        return made


def recordable(function: Callable[..., Any]) -> Recordable:
    """A function (work, *operands) as one of operands alone that can be recorded."""
    return Recordable(partial(function, AT_ONCE), function)


def or_else(fast: Callable[..., Any], reference: Function) -> Recordable:
    """`fast(work, *operands)`, or `reference(*operands)` where that returns None; recordable where `fast` is."""

    def run(*operands: Any) -> Any:
        result = fast(AT_ONCE, *operands)
        return reference(*operands) if result is None else result

    return Recordable(run, fast)


def with_inner(definition: Function, inner: Mapping[str, Function]) -> Recordable:
    """A function that takes others by keyword, with functions (work, *operands) for these.

    It can be recorded where nothing else in it computes: where all that the others read lies in memory of the work or of its
    operands, and so does its result.
    """

    def record(work: Work, *operands: Any) -> Any:
        given = [x for x in operands if isinstance(x, np.ndarray)]

        def bound(function: Function) -> Function:
            def call(*args: Any, **attributes: Any) -> Any:
                arrays = [x for x in args if isinstance(x, np.ndarray)]
                if not all(work.holds(x) or any(np.may_share_memory(x, y) for y in given) for x in arrays):
                    raise _ComputedError
                return function(work, *args, **attributes)

            return call

        try:
            result = definition(*operands, **{name: bound(function) for name, function in inner.items()})
        except _ComputedError:
            return None
        return result if isinstance(result, np.ndarray) and work.holds(result) else None

    at_once = {name: partial(function, AT_ONCE) for name, function in inner.items()}
    return Recordable(partial(definition, **at_once), record)


class _ComputedError(Exception):
    """An inner function reads an array that is not recorded."""


@recordable
def copy_to(work: Work, x: Array, out: Array) -> None:
    work.do(np.copyto, out, x)


@recordable
def copy_runs(work: Work, x: Array, out: Array) -> None:
    """For arrays whose last axis is contiguous in memory: each run is one item, which numpy copies faster."""
    if out.size:
        run = _item(out.shape[-1] * out.itemsize)
        x, out = x.view(run), out.view(run)
    work.do(np.copyto, out, x)


@recordable
def copy_pixels(work: Work, x: Array, out: Array) -> None:
    """For memory whose last axis is contiguous, be that of x or not."""
    has_runs = x.strides[-1] == x.itemsize and not x.dtype.hasobject
    is_wide = x.ndim == 4 and x.strides[1] == x.itemsize and x.shape[1] >= _WIDE and x[0, 0].size >= _LARGE
    work.do(copy_runs if has_runs else _copy_channels if is_wide else copy_to, x, out)


_WIDE, _LARGE = 32, 1 << 11
"""The least channels and pixels of an image that is copied in parts. Reading it once for each channel would miss the cache."""
_TOGETHER = 1 << 7
"""Pixels that are copied at a time, in whole rows."""


def _copy_channels(x: Array, out: Array) -> None:
    """Copy (N, C, H, W) from channels-last to channels-first memory, a few rows at a time."""
    rows = max(1, _TOGETHER // x.shape[3])
    for start in range(0, x.shape[2], rows):
        part = slice(start, start + rows)
        out[:, :, part] = x[:, :, part]


@cache
def _item(size: int) -> np.dtype[Any]:
    """The type of items of `size` bytes."""
    return np.dtype((np.void, size))
