"""The runs of a system trace as a JSON document and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ortconv.documents import Document
from ortconv.nnapi.tracing.systrace import PhoneTrace, Run
from ortconv.nnapi.tracing.timing import Trace, executions, per_execution, summary, table
from ortconv.wording import counted

Times = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class TimedMark:
    """A mark. `at` is in seconds by the clock of the trace; `depth` counts the marks around it in its thread."""

    thread: int
    at: float
    milliseconds: float
    layer: str
    phase: str
    name: str
    depth: int


@dataclass(frozen=True)
class TimedRun:
    """A run of a program: milliseconds by layer and column, with and without those of the layers below. `execution` holds the same
    for one execution, of the benchmark phase if the program marks one. `marks` is None unless they are requested.
    """

    name: str
    executions: int
    unfinished: int
    times: Times
    self_times: Times
    execution_times: Times
    execution_self_times: Times
    marks: list[TimedMark] | None


@dataclass(frozen=True)
class Timings(Document):
    """The runs in a file. `lost` is the least number of events that the tracer dropped."""

    file: str
    lost: int
    runs: list[TimedRun]


def timings(path: Path, found: PhoneTrace, *, detail: bool) -> Timings:
    """The times of the runs in a file; with all marks if `detail` is true."""
    return Timings(str(path), found.lost, [_run(run, detail) for run in found.runs])


def _run(run: Run, detail: bool) -> TimedRun:
    overall = [summary(run.trace, self_times) for self_times in (False, True)]
    each = [per_execution(summary(run.benchmark, own), executions(run.benchmark)) for own in (False, True)]
    rows = [{layer: dict(row) for layer, row in found.items()} for found in (*overall, *each)]
    marks = _marks(run.trace) if detail else None
    return TimedRun(run.name, executions(run.trace), run.unfinished, rows[0], rows[1], rows[2], rows[3], marks)


def _marks(trace: Trace) -> list[TimedMark]:
    spans = sorted(trace.spans, key=lambda one: (one.thread, one.start, -one.end, len(one.inside)))
    return [
        TimedMark(one.thread, one.start, (one.end - one.start) * 1e3, one.layer, one.phase, one.name, len(one.inside))
        for one in spans
    ]


def text(found: Timings, *, total_times: bool, each: bool) -> str:
    """A table for each run, then its marks; `each` chooses the times of one execution."""
    lines = [f"events were lost, at least {found.lost}: the times are too small"] if found.lost else []
    for run in found.runs:
        count = f"{run.executions} executions" if run.executions != 1 else "one execution"
        lines.append(f"{run.name}: {count}" if run.name else count)
        if run.unfinished:
            unfinished = counted(run.unfinished, "mark that does not end", "marks that do not end")
            lines.append(f"left out: {unfinished} within the trace")
        overall, own = (run.execution_times, run.execution_self_times) if each else (run.times, run.self_times)
        lines += [table(overall if total_times else own, not total_times), ""]
        lines += _detail(run.marks or [])
    return "\n".join(lines).rstrip()


def _detail(marks: list[TimedMark]) -> Iterator[str]:
    thread = None
    for one in marks:
        if one.thread != thread:
            thread = one.thread
            yield f"thread {thread}"
        yield f"{one.at:16.6f} {one.milliseconds:12.3f} ms  {'  ' * one.depth}{one.layer}_{one.phase} {one.name}"
