"""The number of threads of a run, and of BLAS, which computes numpy's matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from ortconv.process import openblas

R = TypeVar("R")

_of_run: ContextVar[int] = ContextVar("threads of a run", default=1)


def thread_count() -> int:
    """Number of threads that this run may use."""
    return _of_run.get()


def in_threads(count: int, function: Callable[..., R], *args: Any) -> R:
    """Call a function that may use `count` threads."""
    outer = _of_run.set(count)
    try:
        return function(*args)
    finally:
        _of_run.reset(outer)


@contextmanager
def products_in(count: int) -> Iterator[None]:
    """Set the number of threads of numpy's OpenBLAS, in the whole process. Other BLAS libraries are not changed."""
    changed = [(change, was) for change, ask in openblas() if (was := ask()) != count]
    for change, _ in changed:
        change(count)
    try:
        yield
    finally:
        for change, was in changed:
            change(was)
