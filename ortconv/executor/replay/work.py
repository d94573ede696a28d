"""The way in which kernels and steps use memory and numpy: at once, or recorded to be repeated.

A function can be recorded if its first argument is a `Work`, from which it gets its memory and through which it calls
numpy. `recordable` makes an ordinary function of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import numpy as np

from ortconv.ir.tensor import Array

Function = Callable[..., Any]

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The results of a function: a tuple if it has several, else a single one."""
    return result if type(result) is tuple else (result,)


class ChangedError(Exception):
    """The recording is not valid for this run."""


class Work:
    """Computes at once, in new memory."""

    def empty(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        """Contiguous memory. In a recording, it belongs to the step, unless the step's result is in it."""
        return np.empty(shape, dtype)

    def like(self, x: Array, dtype: Any = None) -> Array:
        """Memory for an array with the layout of another, without gaps, and with its type unless one is given."""
        return np.empty_like(x, dtype)

    def do(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function. A recording repeats the call in each run, or the calls that a Recordable makes in its place."""
        function(*args)

    def scratch(self) -> AbstractContextManager[None]:
        """Memory allocated inside the block is free again after it."""
        return nullcontext()

    def contiguous(self, x: Array) -> Array:
        """x in row order: x itself, or memory to which it is copied."""
        return x if x.flags.c_contiguous else self.copied(x)

    def copied(self, x: Array) -> Array:
        """Memory in row order to which x is copied."""
        out = self.empty(x.shape, x.dtype)
        self.do(np.copyto, out, x)
        return out

    def arranged(self, arrange: Callable[[Array], Array], x: Array) -> Array:
        """arrange(x), as a view or a copy."""
        return arrange(x)

    def reshaped(self, x: Array, shape: tuple[int, ...]) -> Array:
        return self.arranged(lambda x: x.reshape(shape), x)

    def holds(self, x: Array) -> bool:
        """True for memory that later runs write to again."""
        return True

    def call(self, function: Function, *operands: Any) -> Any:
        """The result of a function, which need not be recordable. None if it cannot be recorded."""
        return function(*operands)


AT_ONCE = Work()


class Recordable(partial[Any]):
    """A function of operands, and `record`, the function (work, *operands) that computes the same in calls that can be
    recorded.

    `record` returns None for operands that cannot be recorded.
    """

    record: Callable[..., Any]

    def __new__(cls, function: Function, record: Callable[..., Any]) -> Self:
        made = super().__new__(cls, function)
        made.record = record
        return made


def recordable(function: Callable[..., Any]) -> Recordable:
    """A function (work, *operands) as a recordable function of operands."""
    return Recordable(partial(function, AT_ONCE), function)


def or_else(fast: Callable[..., Any], reference: Function) -> Recordable:
    """`fast(work, *operands)`, or `reference(*operands)` if that returns None; recordable if `fast` is."""

    def run(*operands: Any) -> Any:
        result = fast(AT_ONCE, *operands)
        return reference(*operands) if result is None else result

    return Recordable(run, fast)


def with_inner(definition: Function, inner: Mapping[str, Function]) -> Recordable:
    """A function that accepts others by keyword, with functions (work, *operands) for these.

    It can be recorded if nothing else in it computes: everything that the other functions read, and its result, must be
    in memory of the work or of its operands.
    """

    def record(work: Work, *operands: Any) -> Any:
        given = [x for x in operands if isinstance(x, np.ndarray)]

        def checked(function: Function, *args: Any, **attributes: Any) -> Any:
            arrays = [x for x in args if isinstance(x, np.ndarray)]
            if not all(work.holds(x) or any(np.may_share_memory(x, y) for y in given) for x in arrays):
                raise _ComputedError
            return function(work, *args, **attributes)

        try:
            result = definition(*operands, **{name: partial(checked, function) for name, function in inner.items()})
        except _ComputedError:
            return None
        return result if isinstance(result, np.ndarray) and work.holds(result) else None

    at_once = {name: partial(function, AT_ONCE) for name, function in inner.items()}
    return Recordable(partial(definition, **at_once), record)


class _ComputedError(Exception):
    """An inner function reads an array that is not recorded."""
