"""Threads for parts of a step that do not depend on each other: numpy lets other threads run while it computes.

The parts are the same however many threads there are, or are rows of a result that are computed alike, so that results do not
depend on the number of threads beyond rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ortconv.executor.numerics import kernel_settings

T = TypeVar("T")
R = TypeVar("R")


class Threads:
    """So many threads, the caller's among them. BLAS then has one for each of them: its own would wait for each other."""

    def __init__(self, count: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "ortconv")
        _one_blas_thread()

    def run(self, function: Callable[..., R], *args: Any) -> R:
        """A call in which `each` uses these threads."""
        outer = _current.set(self)
        try:
            return function(*args)
        finally:
            _current.reset(outer)

    def each(self, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        results: list[Any] = [None] * len(parts)
        left = iter(range(len(parts)))

        def work() -> None:
            with kernel_settings():
                for i in left:
                    results[i] = function(parts[i])

        helpers = [self._pool.submit(work) for _ in range(min(self.count, len(parts)) - 1)]
        outer = _current.set(None)
        try:
            work()
        finally:
            _current.reset(outer)
            # Those that have not begun need not begin.
            errors = [helper.exception() for helper in helpers if not helper.cancel()]
        for error in errors:
            if error is not None:
                raise error
        return results

    def close(self) -> None:
        self._pool.shutdown()


_current: ContextVar[Threads | None] = ContextVar("threads", default=None)


def each(function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """The results for all parts, in the threads that the run may use."""
    threads = _current.get()
    return [function(part) for part in parts] if threads is None or len(parts) < 2 else threads.each(function, parts)


def shares(length: int, work: int, step: int = 1) -> list[slice]:
    """Slices of nearly the same length, one for each thread that the run may use; only one of all for little work.

    `work` is what there is to do, in elementary operations. All slices but the last are multiples of `step`.
    """
    threads = _current.get()
    if threads is None:
        return [slice(0, length)]
    count = max(1, min(threads.count, work // _LEAST_WORK, length // step))
    size = -(-length // (count * step)) * step
    return [slice(start, min(start + size, length)) for start in range(0, length, size)] if size else [slice(0, 0)]


_LEAST_WORK = 1 << 24
"""Multiplications, or about as much else, that outweigh the waking of a thread."""


@cache
def _one_blas_thread() -> None:
    """Let numpy's OpenBLAS use one thread, in the whole process. Has no effect on other BLAS libraries."""
    import ctypes

    import numpy

    package = Path(numpy.__file__).parent
    libraries = [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]
    for library in libraries:
        with suppress(OSError):
            loaded = ctypes.CDLL(str(library))
            for name in (
                "scipy_openblas_set_num_threads64_",
                "openblas_set_num_threads64_",
                "openblas_set_num_threads",
            ):
                with suppress(AttributeError):
                    getattr(loaded, name)(1)
