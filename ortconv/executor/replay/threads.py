"""How many threads a run may use, and those of BLAS, in which numpy's matrix products run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")

_of_run: ContextVar[int] = ContextVar("threads of a run", default=1)
_of_products: ContextVar[int] = ContextVar("threads of products", default=1)


def thread_count() -> int:
    """How many threads this run may use."""
    return _of_run.get()


def in_threads(count: int, function: Callable[..., R], *args: Any) -> R:
    """Call a function that may use `count` threads."""
    outer = _of_run.set(count)
    try:
        return function(*args)
    finally:
        _of_run.reset(outer)


def threads_of_products() -> int:
    """How many threads share each matrix product."""
    return _of_products.get()


class products_in:  # noqa: N801, as other contexts
    """Set the threads of numpy's OpenBLAS, in the whole process. Other BLAS libraries stay as they are."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._outer = _of_products.set(self._count)
        self._changed = [(change, was) for change, ask in _openblas() if (was := ask()) != self._count]
        for change, _ in self._changed:
            change(self._count)

    def __exit__(self, *_: object) -> None:
        for change, was in self._changed:
            change(was)
        _of_products.reset(self._outer)


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
