"""A time at which runs are given up: between two nodes on numpy, wherever it is on onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ortconv.errors import BackendError


class TimeLimitError(BackendError):
    """A run took longer than the time that `within` allows."""


T = TypeVar("T")

_ENDS: ContextVar[float | None] = ContextVar("deadline", default=None)
"""A time of time.monotonic()."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Runs in this block raise TimeLimitError once it has lasted so long. Of nested blocks, the earliest end counts."""
    ends, outer = time.monotonic() + seconds, _ENDS.get()
    token = _ENDS.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _ENDS.reset(token)


def seconds_left() -> float | None:
    """The time until runs are given up, 0 if it is over; None where there is no limit."""
    ends = _ENDS.get()
    return None if ends is None else max(0.0, ends - time.monotonic())


def watched(steps: Iterable[T], backend: str) -> Iterable[T]:
    """The steps, looking at the clock before each one where there is a limit."""
    ends = _ENDS.get()
    return steps if ends is None else _watched(steps, ends, backend)


def _watched(steps: Iterable[T], ends: float, backend: str) -> Iterator[T]:
    check(ends, backend)
    for step in steps:
        check(ends, backend)
        yield step


def check(ends: float, backend: str) -> None:
    if time.monotonic() > ends:
        raise TimeLimitError("the run takes longer than it may", backend=backend)
