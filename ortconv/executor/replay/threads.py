"""The number of threads of BLAS, which computes numpy's matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortconv.process import openblas


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
