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

    def check(self, backend: str) -> None:
        """Raise TimeLimitError if one of these times is over."""
        if time.perf_counter() > self.real or (self.cpu < math.inf and time.thread_time() > self.cpu):
            raise TimeLimitError("the run exceeds its time limit", backend=backend)


_NEVER = Deadline()
_END: ContextVar[Deadline] = ContextVar("deadline", default=_NEVER)


@contextmanager
def within(seconds: float, *, cpu: bool = False) -> Iterator[None]:
    """Context manager: runs in the block raise TimeLimitError after `seconds`. In nested blocks, the earliest deadline counts.

    With `cpu`, the seconds are CPU time of this thread, so that results depend less on what else the machine does.
    """
    outer = _END.get()
    real = time.perf_counter() + (BUSY * seconds if cpu else seconds)
    own = time.thread_time() + (seconds if cpu else math.inf)
    token = _END.set(Deadline(min(real, outer.real), min(own, outer.cpu)))
    try:
        yield
    finally:
        _END.reset(token)


def deadline() -> Deadline | None:
    """The deadline of a run in this thread; None if there is no limit."""
    end = _END.get()
    return None if end is _NEVER else end


def check_limit() -> None:
    """Raise TimeLimitError if the time that `within` allows is over. For work other than runs, such as a search."""
    _END.get().check("")


def watched(steps: Iterable[T], backend: str) -> Iterable[T]:
    """Iterate over the steps. If there is a limit, the clock is checked before each step."""
    end = _END.get()
    return steps if end is _NEVER else _watched(steps, end, backend)


def _watched(steps: Iterable[T], end: Deadline, backend: str) -> Iterator[T]:
    end.check(backend)  # even if there are no steps
    for step in steps:
        end.check(backend)
        yield step
