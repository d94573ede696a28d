"""A time limit for runs: numpy checks it before each node, onnxruntime can be stopped at any time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ortconv.errors import BackendError


class TimeLimitError(BackendError):
    """A run exceeded the time limit set with `within`."""


T = TypeVar("T")

_ENDS: ContextVar[float | None] = ContextVar("deadline", default=None)
"""The deadline as a time of time.monotonic()."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Context manager: runs in the block raise TimeLimitError after `seconds`. In nested blocks, the earliest deadline counts."""
    ends, outer = time.monotonic() + seconds, _ENDS.get()
    token = _ENDS.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _ENDS.reset(token)


def seconds_left() -> float | None:
    """Seconds until the deadline, at least 0; None if there is no limit."""
    ends = _ENDS.get()
    return None if ends is None else max(0.0, ends - time.monotonic())


def check_limit() -> None:
    """Raise TimeLimitError if the time that `within` allows is over. For work other than runs, such as a search."""
    ends = _ENDS.get()
    if ends is not None:
        check(ends, "")


def watched(steps: Iterable[T], backend: str) -> Iterable[T]:
    """Iterate over the steps. If there is a limit, the clock is checked before each step."""
    ends = _ENDS.get()
    return steps if ends is None else _watched(steps, ends, backend)


def _watched(steps: Iterable[T], ends: float, backend: str) -> Iterator[T]:
    check(ends, backend)
    for step in steps:
        check(ends, backend)
        yield step


def check(ends: float, backend: str) -> None:
    if time.monotonic() > ends:
        raise TimeLimitError("the run exceeds its time limit", backend=backend)
