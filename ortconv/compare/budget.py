"""Limits on the time and memory of a validation."""

from __future__ import annotations

import re
import time
from dataclasses import field

from ortconv.errors import UsageError
from ortconv.files import byte_count
from ortconv.records import dataclass

SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}

SHARE_OF_EXTRAS = 0.02
"""Share of the time that may be spent on sets of inputs beyond the first."""


def seconds_of(text: str) -> float | None:
    """Convert a time such as 30s, 1.5min or 2h to seconds; None if the text is no time."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)(s|sec|min|h)", text)
    return None if number is None else float(number[1]) * SECONDS[number[2]]


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds for all runs together, and bytes for the values of one run, without constants."""

    seconds: float = 20.0
    bytes: int = 2 << 30

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a time, a size or both, such as "30s", "500M" or "2min,4GiB". Raises UsageError for anything else."""
        found: dict[str, float] = {}
        for part in re.split(r"[,\s]+", text.strip().lower()):
            try:
                seconds = seconds_of(part)
                if seconds is not None:
                    found["seconds"] = seconds
                else:
                    found["bytes"] = byte_count(part)
            except (ValueError, OverflowError) as error:
                raise UsageError(f"'{text}' is no budget", hint="write 30s, 2min, 500M or 30s,2GiB") from error
        made = cls(found.get("seconds", cls().seconds), int(found.get("bytes", cls().bytes)))
        if not 0 < made.seconds < 1e6 or made.bytes <= 0:
            raise UsageError(f"the budget '{text}' leaves no room for a run", hint="write 30s, 2min, 500M or 30s,2GiB")
        return made

    def __str__(self) -> str:
        return f"{self.seconds:g} s, {self.bytes / 2**30:.3g} GiB"


@dataclass(slots=True)
class Clock:
    """The remaining time of a budget. Only the time spent in `reference` and `validate` counts."""

    budget: Budget
    used: float = 0.0
    _since: float | None = field(default=None, repr=False)

    def __enter__(self) -> Clock:
        self._since = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._since is not None
        self.used += time.monotonic() - self._since
        self._since = None

    @property
    def left(self) -> float:
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return max(0.01, self.budget.seconds - self.used - running)
