"""Limits on the time and memory of runs and searches, and the errors of models that exceed them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from ortconv.errors import UsageError
from ortconv.files import byte_count
from ortconv.runtime.deadline import BUSY, TimeLimitError, within

T = TypeVar("T")

SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}

HINT = "write 30s, 2min, 500M or 30s,2GiB"

SHARE_OF_EXTRAS = 0.01
"""Share of the time that may be spent on sets of inputs beyond the first."""

SHARE_OF_SOLVING = 0.15
"""Share of the time that may be spent on further sizes that meet a model's demands."""

SHARE_OF_TRIAL = 0.1
"""Share of the time that may be spent on sizes that are found by running the model."""


def seconds_of(text: str) -> float | None:
    """Convert a time such as 30s, 1.5min or 2h to seconds; None if the text is no time."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)(s|sec|min|h)", text)
    return None if number is None else float(number[1]) * SECONDS[number[2]]


class CannotTryError(Exception):
    """The reason why there are no inputs on which a model can run."""


class BeyondBudgetError(CannotTryError):
    """A run needs more time or memory than the budget has, on any engine."""


class TooLargeError(BeyondBudgetError):
    """The declared inputs need more memory than the budget has."""


class TooSlowError(CannotTryError):
    """A run takes most of the budget's time; another engine may be faster."""


class Budget(NamedTuple):
    """Seconds for all runs together, and bytes for the values of one run, without constants."""

    seconds: float = 20.0
    bytes: int = 2 << 30

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a time, a size or both, such as "30s", "500M" or "2min,4GiB". Raises UsageError for anything else, also for a
        number without a unit, which may be meant as seconds.
        """
        found: dict[str, float] = {}
        for part in re.split(r"[,\s]+", text.strip().lower()):
            try:
                seconds = seconds_of(part)
                if part.isdecimal():
                    raise ValueError(part)
                if seconds is not None:
                    found["seconds"] = seconds
                else:
                    found["bytes"] = byte_count(part)
            except (ValueError, OverflowError) as error:
                raise UsageError(f"'{text}' is not a budget", hint=HINT) from error
        made = cls(found.get("seconds", cls().seconds), int(found.get("bytes", cls().bytes)))
        if not 0 < made.seconds < 1e6 or made.bytes <= 0:
            raise UsageError(f"the budget '{text}' leaves no room for a run", hint=HINT)
        return made

    def __str__(self) -> str:
        return f"{self.seconds:g} s, {self.bytes / 2**30:.3g} GiB"


class SearchTime:
    """The seconds of CPU time that a search may still take in this thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def spend(self, found: Iterator[T], share: float = 1.0) -> Iterator[T]:
        """Yield the results of a search that come in a share of this time. The time between two results does not count."""
        kept = self.seconds * (1 - share)
        while self.seconds > kept:
            began = time.thread_time()
            try:
                with within(self.seconds - kept, cpu=True):
                    item = next(found)
            except (StopIteration, TimeLimitError):
                return
            finally:
                self.seconds -= time.thread_time() - began
            yield item


class Clock:
    """The remaining time of a budget. Only the time inside its `with` blocks counts. It is CPU time of the process if that is less
    than real time, so that results depend less on what else the machine does; but real time never counts less than by 1 / BUSY.

    `by_trial` is the time for sizes that are found by running the model, for all engines together.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.used = 0.0
        self._since: tuple[float, float] | None = None
        self.by_trial = SearchTime(budget.seconds * SHARE_OF_TRIAL)

    def __enter__(self) -> Clock:
        self._since = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exception: object) -> None:
        self.used += self._running()
        self._since = None

    def _running(self) -> float:
        """The time since the beginning of the `with` block, in seconds; 0 outside."""
        if self._since is None:
            return 0.0
        real, cpu = time.perf_counter() - self._since[0], time.process_time() - self._since[1]
        return min(real, max(cpu, real / BUSY))

    def reserve(self, share: float) -> None:
        """Leave at least this share of the budget: a single node may run on after its time limit."""
        self.used = min(self.used, self.budget.seconds * (1 - share))

    @property
    def left(self) -> float:
        return max(0.01, self.budget.seconds - self.used - self._running())

    @property
    def memory_of_run(self) -> int:
        """Number of bytes by which a run may increase the memory of the process. It leaves room for values of unknown shape."""
        return 2 * self.budget.bytes + (1 << 30)
