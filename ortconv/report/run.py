"""The time of a run: as a Chrome trace, and by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ortconv.runtime.backend import TimedStep


class Share(NamedTuple):
    """The time of one operator on one backend."""

    op: str
    backend: str
    steps: int
    seconds: float
    share: float


def by_operator(events: Sequence[TimedStep]) -> list[Share]:
    """The time of each operator and its share, longest first."""
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for event in events:
        count, seconds = sums.get((event.op, event.backend), (0, 0.0))
        sums[event.op, event.backend] = count + 1, seconds + event.seconds
    total = sum(seconds for _, seconds in sums.values()) or 1.0
    shares = (Share(*key, count, seconds, seconds / total) for key, (count, seconds) in sums.items())
    return sorted(shares, key=lambda s: -s.seconds)


def chrome_trace(events: Sequence[TimedStep]) -> dict[str, Any]:
    """The events in the trace event format, for chrome://tracing or Perfetto: one thread for each backend, microseconds."""
    threads = {name: i for i, name in enumerate(dict.fromkeys(e.backend for e in events), 1)}
    begin = min((e.start for e in events), default=0.0)
    named = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": backend}}
        for backend, tid in threads.items()
    ]
    steps = [
        {
            "name": e.name,
            "cat": e.op,
            "ph": "X",
            "ts": round((e.start - begin) * 1e6, 3),
            "dur": round(e.seconds * 1e6, 3),
            "pid": 1,
            "tid": threads[e.backend],
            "args": {"op": e.op, "outputs": [None if s is None else list(s) for s in e.shapes]},
        }
        for e in events
    ]
    return {"traceEvents": named + steps, "displayTimeUnit": "ms"}
