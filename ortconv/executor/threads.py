"""Threads of a run: those of BLAS, in which numpy's matrix products run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")

_current: ContextVar[int] = ContextVar("threads", default=1)


def thread_count() -> int:
    """How many threads the products of this run may use."""
    return _current.get()


def in_threads(count: int, function: Callable[..., R], *args: Any) -> R:
    """A call in which products may use so many threads."""
    if count == thread_count():
        return function(*args)
    outer = _current.set(count)
    try:
        with _blas_threads(count):
            return function(*args)
    finally:
        _current.reset(outer)


@contextmanager
def _blas_threads(count: int) -> Iterator[None]:
    """numpy's OpenBLAS with so many threads, in the whole process. Other BLAS libraries stay as they are."""
    before = [(change, ask()) for change, ask in _openblas()]
    try:
        for change, _ in before:
            change(count)
        yield
    finally:
        for change, was in before:
            change(was)


@cache
def _openblas() -> list[tuple[Callable[[int], Any], Callable[[], int]]]:
    """The functions that change and tell the number of threads of the OpenBLAS that came with numpy."""
    import ctypes

    import numpy

    package, found = Path(numpy.__file__).parent, []
    for path in [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]:
        with suppress(OSError):
            library = ctypes.CDLL(str(path))
            for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("", "")):
                with suppress(AttributeError):
                    change = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
                    found.append((change, getattr(library, f"{prefix}openblas_get_num_threads{suffix}")))
                    break
    return found
