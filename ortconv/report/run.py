"""What `ortconv run` shows: parts of its document, and the time of a run as a Chrome trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.compare.pairs import element_type
from ortconv.ir.tensor import Array
from ortconv.runtime.backend import TimedStep
from ortconv.runtime.session import Session


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


def metrics(document: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that conditions can name, as far as they are known."""
    fields = {"latency": "median_seconds", "p90": "p90_seconds", "load": "load_seconds", "memory": "peak_bytes"}
    return {name: document[field] for name, field in fields.items() if document[field] is not None}


def described(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The type of each value and, of numbers, their range."""
    return {name: _describe(value) for name, value in values.items()}


def form_of(value: Any) -> dict[str, Any]:
    """The type of a value, and its shape or length."""
    if value is None or isinstance(value, list):
        return {"type": "sequence" if isinstance(value, list) else "empty", "length": len(value or ())}
    array = np.asarray(value)
    return {"type": element_type(array), "shape": list(array.shape)}


def _describe(value: Any) -> dict[str, Any]:
    found = form_of(value)
    if "shape" in found and (array := np.asarray(value)).size and _is_numeric(array):
        numbers = array.astype(np.float64)
        with np.errstate(all="ignore"):
            found |= {"min": finite(numbers.min()), "max": finite(numbers.max()), "mean": finite(numbers.mean())}
    return found


def _is_numeric(array: Array) -> bool:
    """True for integers and floating-point numbers, those of numpy's extensions included."""
    return array.dtype.kind not in "bcOUST"


def finite(value: Any) -> float | None:
    """A number as JSON can hold it: None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def largest(results: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The classes with the largest scores, for each result that has classes."""
    found = {name: _best(value, count) for name, value in results.items()}
    return {name: rows for name, rows in found.items() if rows}


def _best(value: Any, count: int) -> list[dict[str, Any]]:
    """The largest elements of each row, largest first; empty for a value that is not a numeric tensor with one axis of classes."""
    if value is None or isinstance(value, list):
        return []
    array = np.asarray(value)
    if not _is_numeric(array) or array.size < 2 or sum(n > 1 for n in array.shape[1:]) > 1:
        return []
    rows = array.reshape(array.shape[0] if array.ndim > 1 else 1, -1).astype(np.float64)
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    return [{"row": n, "class": int(i), "value": finite(rows[n, i])} for n, best in enumerate(order) for i in best]


def plan(session: Session) -> list[dict[str, Any]]:
    """The backend of each node, and why the backends before it do not run it."""
    return [
        {"node": p.node.label, "backend": p.backend, "partition": p.claim, "refused": dict(p.refused)}
        for p in session.plan
    ]
