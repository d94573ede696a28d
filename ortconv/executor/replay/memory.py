"""Calls that are made once, when their result is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def once(function: Callable[..., _T], *args: Any) -> Callable[[], _T]:
    """A function that makes this call when it is first called, and from then on holds only the result."""
    pending: list[Callable[[], _T]] = [lambda: function(*args)]
    made: list[_T] = []

    def result() -> _T:
        for make in [] if made else pending.copy():
            made.append(make())
        pending.clear()
        return made[0]

    return result
