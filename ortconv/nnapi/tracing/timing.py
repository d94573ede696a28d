"""Timing: marks in the format of Android's systrace, and a summary computed from them.

    with timing.tracing() as trace:
        ...
    print(timing.table(timing.summary(trace)))

A mark has a layer (LA application, LR runtime, LD driver, LC CPU) and a phase (PI initialization, PP preparation, PC
compilation, PE execution with its parts PIO inputs and outputs, PCO computation, PR results, PT termination). The
calls of the API mark themselves; an application adds its own with `mark`.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from ortconv.files import write_text

LAYERS = {"LA": "Application", "LR": "Runtime", "LI": "IPC", "LD": "Driver", "LC": "CPU"}
MAIN = ("PI", "PP", "PC", "PE", "PT")
PHASES = ("PI", "PP", "PC", "PIO", "PR", "PE", "PT")
EXECUTION = ("PE", "PIO", "PTR", "PCO", "PR")
BELOW: Mapping[str, tuple[str, ...]] = {"LA": ("LR",), "LR": ("LI", "LC"), "LI": ("LD",), "LD": (), "LC": ()}
"""The layers that a layer waits for. If one has no time, as IPC within one process, those below it count."""
COLUMNS = {
    "PI": "Initialization",
    "PP": "Preparation",
    "PC": "Compilation",
    "PIO": "I/O",
    "compute": "Compute",
    "PR": "Results",
    "PE": "Ex. total",
    "PT": "Termination",
    "total": "Total",
}
PARTS = ("PIO", "compute", "PR")
EACH = {**{column: COLUMNS[column] for column in (*PARTS, "PE")}, "percentage": "Percentage"}
"""The columns of one execution."""
STARTS = tuple(
    f"ANeuralNetworksExecution_{name}"
    for name in ("compute", "burstCompute", "startCompute", "startComputeWithDependencies")
)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Span:
    """One mark. Times are in seconds, by any one clock; `inside` lists layers and phases of the enclosing marks, outermost
    first. `elsewhere` seconds of it belong to marks within it that have another phase.
    """

    layer: str
    phase: str
    name: str
    thread: int
    start: float
    end: float
    inside: tuple[tuple[str, str], ...]
    elsewhere: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start - self.elsewhere


@dataclass(slots=True)
class Trace:
    """The marks of one traced block, from all threads, sorted by their ends."""

    spans: list[Span] = field(default_factory=list)
    local: threading.local = field(default_factory=threading.local)

    def ftrace(self) -> str:
        """The marks in the text form of Linux's tracer, which Android's parser reads."""
        process = os.getpid()
        lines = [
            f"{'nnapi':>16}-{thread % 100_000:<5} ({process:5}) [000] .... {at:.6f}: tracing_mark_write: {text}\n"
            for at, thread, text in self._marks()
        ]
        return FTRACE_HEAD + "".join(lines)

    def _marks(self) -> list[tuple[float, int, str]]:
        """Time, thread and text of each mark, sorted by time. Marks with equal times keep their nesting."""
        found = []
        for s in self.spans:
            depth = len(s.inside)
            found.append(((s.start, 1, depth), s.thread, f"B|{s.thread}|[NN_{s.layer}_{s.phase}]{s.name}"))
            found.append(((s.end, 0, -depth), s.thread, f"E|{s.thread}"))
        return [(key[0], thread, text) for key, thread, text in sorted(found)]


FTRACE_HEAD = """# tracer: nop
#
#           TASK-PID    TGID   CPU#  ||||    TIMESTAMP  FUNCTION
#              | |        |      |   ||||       |         |
"""

_current: Trace | None = None
_file: str | None = None


def trace_to(path: str) -> None:
    """Collect all marks from now on, for `write_trace`."""
    global _current, _file
    _current, _file = Trace(), path


def write_trace() -> None:
    """Write the file of `trace_to`. Raises UsageError if it cannot be written."""
    if _file is not None and _current is not None:
        write_text(Path(_file), _current.ftrace())


@contextmanager
def tracing() -> Iterator[Trace]:
    """Context manager that collects the marks of all threads within the block."""
    global _current
    before, _current = _current, Trace()
    try:
        yield _current
    finally:
        _current = before


class mark(ContextDecorator):  # noqa: N801, as a function
    """Context manager or decorator that marks a block, or the calls of a function, with a layer and phase."""

    def __init__(self, layer: str, phase: str, name: str) -> None:
        self._place, self._name = (layer, phase), name
        self._trace: Trace | None = None

    def _recreate_cm(self) -> Self:
        """For each call of a function, as several threads may call it."""
        return type(self)(*self._place, self._name)

    def __enter__(self) -> None:
        self._trace = trace = _current
        if trace is not None:
            self._around: tuple[tuple[str, str], ...] = getattr(trace.local, "around", ())
            trace.local.around = (*self._around, self._place)
            self._start = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        trace = self._trace
        if trace is not None:
            end, thread = time.perf_counter(), threading.get_native_id()
            trace.local.around = self._around
            trace.spans.append(Span(*self._place, self._name, thread, self._start, end, self._around))


def timed(phase: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of API methods: each call is marked with its name in the NDK."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = ndk_name(function.__qualname__)

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            if _current is None:
                return function(*args, **kwargs)
            with mark("LR", phase, name):
                return function(*args, **kwargs)

        return marked

    return decorate


@functools.cache
def ndk_name(qualified: str) -> str:
    """The name in the NDK: Execution.set_input -> ANeuralNetworksExecution_setInput"""
    owner, _, method = qualified.rpartition(".")
    method = {"__init__": "create", "close": "free"}.get(method, method)
    first, *words = method.split("_")
    camel = first + "".join(word.capitalize() for word in words)
    return f"ANeuralNetworks{owner}_{camel}" if owner else f"ANeuralNetworks_{camel}"


Summary = Mapping[str, Mapping[str, float | None]]
"""Milliseconds by layer and column; None for a layer without the column."""


def totals(trace: Trace) -> dict[str, dict[str, float]]:
    """Milliseconds by layer and phase. A mark inside another one of the same layer and phase is not counted twice;
    parts of an execution count for the execution too.
    """
    found: dict[str, dict[str, float]] = {layer: defaultdict(float) for layer in LAYERS}
    for span in trace.spans:
        if span.layer not in found:
            continue
        around = {phase for layer, phase in span.inside if layer == span.layer}
        if span.phase not in around:
            found[span.layer][span.phase] += span.seconds * 1e3
        if span.phase in EXECUTION[1:] and not around & set(EXECUTION):
            found[span.layer]["PE"] += span.seconds * 1e3
    return found


def summary(trace: Trace, self_times: bool = True) -> Summary:
    """The time of each layer; if `self_times`, without the layers below it."""
    times = totals(trace)
    result = {layer: _layer(times, layer, self_times) for layer in LAYERS}
    result["total"] = {column: _column_total(result, column, self_times) for column in COLUMNS}
    return result


def _layer(times: Mapping[str, Mapping[str, float]], layer: str, self_times: bool) -> dict[str, float | None]:
    here, lower = times[layer], BELOW[layer] if self_times else ()
    found = {phase: max(0.0, here[phase] - _reached(times, lower, phase)) for phase in PHASES}
    found["compute"] = max(0.0, found["PE"] - found["PIO"] - found["PR"])
    if here["PO"]:
        found["total"] = max(0.0, here["PO"] - _reached(times, lower, *MAIN))
    else:
        found["total"] = sum(found[phase] for phase in MAIN)
    is_divided = layer in ("LR", "LI") or any(here[phase] for phase in EXECUTION[1:])
    unknown = () if is_divided else PARTS
    return {column: None if column in unknown else found[column] for column in COLUMNS}


def _reached(times: Mapping[str, Mapping[str, float]], layers: Sequence[str], *phases: str) -> float:
    """The time of phases in these layers; in those below a layer if it has none."""
    return sum(times[one][phase] or _reached(times, BELOW[one], phase) for one in layers for phase in phases)


def _column_total(rows: Summary, column: str, self_times: bool) -> float:
    known = [value for row in rows.values() if (value := row[column]) is not None]
    return sum(known) if self_times else max(known, default=0.0)


def executions(trace: Trace) -> int:
    """Number of executions in the trace: calls that compute, else executions created, else those marked by the application."""
    names = Counter(span.name for span in trace.spans)
    calls = sum(names[name] for name in STARTS) or names["ANeuralNetworksExecution_create"]
    return calls or sum((span.layer, span.phase) == ("LA", "PE") for span in trace.spans)


def per_execution(rows: Summary, count: int) -> Summary:
    """The columns of one execution, out of `count` of them; percentages are those of the execution's total time."""
    whole = rows["total"]["PE"] or 0.0
    result: dict[str, dict[str, float | None]] = {}
    columns = (*PARTS, "PE")
    for layer, row in rows.items():
        each = {column: None if not count or (value := row[column]) is None else value / count for column in columns}
        result[layer] = {**each, "percentage": (row["PE"] or 0.0) / whole * 100 if whole else None}
    return result


def table(rows: Summary, self_times: bool = True) -> str:
    """The summary as text, in the form of Android's parser of system traces. It may be that of one execution."""
    kind = "self-times" if self_times else "total time"
    columns = COLUMNS if "total" in rows["total"] else EACH
    above = ["" if column != "PIO" else "Execution" for column in columns]
    lines = [f"NNAPI timing summary ({kind}, ms wall-clock)", _line("", above), _line("", columns.values())]
    for layer, name in [*LAYERS.items(), ("total", "Total")]:
        if layer == "LC" and not any(rows[layer].values()):
            continue
        star = "*" if layer == "total" else ""
        lines.append(_line(name, [_cell(rows[layer][column], star if column in PARTS else "") for column in columns]))
    return "\n".join([*lines, "* Values that are n/a are left out."])


def _line(name: str, cells: Iterable[str]) -> str:
    return "".join([f"{name:12}", *(f"{cell:>16}" for cell in cells)]).rstrip()


def _cell(value: float | None, star: str) -> str:
    if value is None:
        return "n/a"
    text = f"{value:.2f}"
    return ("-" if text == "0.00" else text) + star
