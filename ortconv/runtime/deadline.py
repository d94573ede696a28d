"""A time limit for runs: numpy checks it before each node, onnxruntime can be stopped at any time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from ortconv.errors import BackendError


class TimeLimitError(BackendError):
    """A run exceeded the time limit set with `within`."""


T = TypeVar("T")

BUSY = 4.0
"""A limit of CPU time is also one of BUSY times as much real time."""


class Deadline(NamedTuple):
    """The latest times by time.perf_counter() and by time.thread_time()."""

    real: float = math.inf
    cpu: float = math.inf


_ENDS: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def within(seconds: float, *, cpu: bool = False) -> Iterator[None]:
    """Context manager: runs in the block raise TimeLimitError after `seconds`. In nested blocks, the earliest deadline counts.

    With `cpu`, the seconds are CPU time of this thread, so that results depend less on what else the machine does.
    """
    outer = _ENDS.get() or Deadline()
    real = time.perf_counter() + (BUSY * seconds if cpu else seconds)
    token = _ENDS.set(
        Deadline(min(real, outer.real), min(time.thread_time() + seconds, outer.cpu) if cpu else outer.cpu)
    )
    try:
        yield
    finally:
        _ENDS.reset(token)


def seconds_left() -> float | None:
    """Seconds until the deadline, at least 0; None if there is no limit."""
    ends = _ENDS.get()
    return None if ends is None else max(0.0, ends.real - time.perf_counter())


def check_limit() -> None:
    """Raise TimeLimitError if the time that `within` allows is over. For work other than runs, such as a search."""
    ends = _ENDS.get()
    if ends is not None:
        check(ends, "")


def watched(steps: Iterable[T], backend: str) -> Iterable[T]:
    """Iterate over the steps. If there is a limit, the clock is checked before each step."""
    ends = _ENDS.get()
    return steps if ends is None else _watched(steps, ends, backend)


def _watched(steps: Iterable[T], ends: Deadline, backend: str) -> Iterator[T]:
    check(ends, backend)
    for step in steps:
        check(ends, backend)
        yield step


def check(ends: Deadline, backend: str) -> None:
    if time.perf_counter() > ends.real or (ends.cpu < math.inf and time.thread_time() > ends.cpu):
        raise TimeLimitError("the run exceeds its time limit", backend=backend)
