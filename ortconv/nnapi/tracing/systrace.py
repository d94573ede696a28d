"""Traces of phones: NNAPI's marks in Perfetto's traces, or in the text or HTML of systrace, atrace or Linux's tracer.

The marks are those of Android's runtime and drivers, and the calls between processes, which HIDL and AIDL mark.
Other lines are skipped. Times are wall-clock, so they fit a trace with one program that uses NNAPI.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ortconv.errors import UsageError, located
from ortconv.files import opened, read_bytes
from ortconv.nnapi.tracing.perfetto import FIRST, Written, is_perfetto, written
from ortconv.nnapi.tracing.timing import LAYERS, MAIN, Span, Trace

LONGEST_LINE = 1 << 16
WRITTEN = b"tracing_mark_write: "
LOST = re.compile(rb"\[LOST (\d+) EVENTS\]")
LINE = re.compile(
    r"\s*.+-(?P<thread>\d+)\s+(?:\(\s*(?P<process>\d+|-+)\)\s+)?\[\d+\]\s+(?:\S+\s+)?"
    r"(?P<at>\d+\.\d+):\s+tracing_mark_write:\s+(?P<text>[BE].*)"
)
WRITE = re.compile(r"(?P<kind>[BE])(?:\|(?P<owner>\d+))?(?:\|(?P<text>.*))?", re.DOTALL)
MARK = re.compile(r"(?P<flags>(?:\[(?:SW|SUB)\])*)\[NN_(?P<layer>[A-Z]+)_(?P<phase>[A-Z]+)\]\[?(?P<name>[^\]]*)")
CALL = re.compile(r"[HA]IDL::(?:\w+::)?(?P<interface>I[A-Z]\w*)::(?P<method>\w+)::(?P<side>\w+)")
OURS = re.compile(r"\[NN_|IDL::(\w+::)?IDevice::")

OVERALL = ("PO", "PWU", "PBM")  # the program, its warm-up and its benchmark; all other phases are parts of these
INITIALIZING = re.compile(r"getCapabilities|getType|getVersion|getStatus|getSupportedExtensions|getNumberOfCacheFiles")
INTERFACES = {
    "IDevice": "PC",
    "IPreparedModel": "PE",
    "IBurst": "PE",
    "IBurstContext": "PE",
    "IExecution": "PE",
    "IServiceManager": "PI",
    "IBase": "PI",
    "IAllocator": "PU",
    "IMapper": "PU",
}
"""The phases of the interfaces whose calls count, in threads that use NNAPI. PU means the phase of the enclosing mark."""
SIDES = {"client": "LI", "passthrough": "LI", "server": "LD"}

STARTED = re.compile("ANeuralNetworksExecution_startCompute(WithDependencies)?")
WAIT = "ANeuralNetworksEvent_wait"
SERVED = re.compile(r"IPreparedModel::execute(_\d_\d)?::server")
SERVER = re.compile(r"IDevice::.*server", re.IGNORECASE)
NOTIFIED = re.compile(r"IExecutionCallback::notify\w*::client")


class MarkLine(NamedTuple):
    """The begin or end (text None) of a mark. `at` is in seconds."""

    thread: int
    process: int
    at: float
    text: str | None


@dataclass(frozen=True)
class Run:
    """The marks of one run of a program: from a mark [NN_LA_PO] to the next, or of the whole trace. `unfinished` counts
    the marks that never end, which are left out.
    """

    name: str
    trace: Trace
    unfinished: int

    @property
    def benchmark(self) -> Trace:
        """The marks of the benchmark phase if the program marks one in addition to its warm-up, else all."""
        parts = {
            phase: [s for s in self.trace.spans if (s.layer, s.phase) == ("LA", phase)] for phase in ("PWU", "PBM")
        }
        if not all(parts.values()):
            return self.trace
        return Trace([s for s in self.trace.spans if any(one.start <= s.start < one.end for one in parts["PBM"])])


@dataclass(frozen=True)
class PhoneTrace:
    """The runs in a file. `lost` is the least number of dropped events: Perfetto reports only that there were some."""

    runs: list[Run]
    lost: int


def read_trace(path: str | Path) -> PhoneTrace:
    """The runs in a file. Raises UsageError if it cannot be read, or has no marks of NNAPI."""
    lines, lost = _lines(path)
    threads = {line.thread for line in lines if line.text and OURS.search(line.text)}
    if not threads:
        hint = "record the category nnapi of atrace, with Perfetto or systrace"
        raise UsageError("the trace has no marks of NNAPI", file=path, hint=hint)
    notified = [(line.process, line.at) for line in lines if line.text and NOTIFIED.search(line.text)]
    return PhoneTrace(_runs([line for line in lines if line.thread in threads], notified), lost)


def _lines(path: str | Path) -> tuple[list[MarkLine], int]:
    """The marks in a file, and how many events or times the tracer says it lost."""
    found: list[MarkLine] = []
    owners: dict[int, int] = {}
    writes, lost = _writes(path)
    for thread, process, at, write in writes:
        matched = WRITE.match(write)
        if matched is None:
            continue
        owner = process or matched["owner"]
        owners[thread] = int(owner) if owner else owners.get(thread, thread)
        text = (matched["text"] or "") if matched["kind"] == "B" else None
        found.append(MarkLine(thread, owners[thread], at, text))
    return found, lost


def _writes(path: str | Path) -> tuple[list[Written], int]:
    with opened(path) as file:
        if file.read(1) == FIRST and is_perfetto(data := read_bytes(path)):
            with located(path):
                return written(data)
        file.seek(0)
        return _of_text(file)


def _of_text(file: BinaryIO) -> tuple[list[Written], int]:
    found: list[Written] = []
    lost = 0
    for raw in iter(lambda: file.readline(LONGEST_LINE), b""):
        if dropped := LOST.search(raw):
            lost += int(dropped[1])
        matched = LINE.match(raw.decode(errors="replace").rstrip()) if WRITTEN in raw else None
        if matched is not None:
            process = matched["process"] or ""
            numbered = process if process.isdigit() else ""
            found.append(Written(int(matched["thread"]), numbered, float(matched["at"]), matched["text"]))
    return found, lost


def _meaning(text: str) -> tuple[str, str, str] | None:
    """Layer, phase and name of a mark. None for marks that do not count."""
    if (mark := MARK.search(text)) is not None:
        layer, phase = mark["layer"], mark["phase"]
        return (layer, phase, mark["name"]) if layer in (*LAYERS, "LO", "LU") else None
    call = CALL.search(text)
    side = None if call is None else re.sub("^.*(?=client|server)", "", call["side"].lower())
    if call is None or side not in SIDES or call["interface"] not in INTERFACES or call["method"].startswith("notify"):
        return None
    phase = "PI" if INITIALIZING.match(call["method"]) else INTERFACES[call["interface"]]
    return SIDES[side], phase, f"{call['interface']}::{call['method']}::{side}"


@dataclass(slots=True)
class _Open:
    """A mark that has begun. Marks that do not count, and marks ended by a switch of phase, have no layer."""

    start: float
    layer: str = ""
    phase: str = ""
    name: str = ""
    aside: bool = False
    elsewhere: float = 0.0

    def leaves(self, outer: _Open) -> bool:
        """True if the time of this mark does not belong to the enclosing mark."""
        if outer.phase in OVERALL:
            return False
        apart = self.phase in MAIN and self.phase not in ("PE", outer.phase)
        return apart or (self.aside and self.layer != outer.layer)


class _Thread:
    """The marks of a thread, from their begins and ends."""

    def __init__(self, drives: bool | None) -> None:
        self.layers = {None: {}, True: {"LC": "LD"}, False: {"LD": "LC"}}[drives]
        self.stack: list[_Open] = []
        self.spans: list[Span] = []

    def take(self, line: MarkLine) -> None:
        if line.text is None:
            if self.stack:
                self._end(line)
            return
        meaning = _meaning(line.text)
        if "[SW]" in line.text and self.stack and meaning is not None:
            self._end(line)
            self.stack.append(_Open(line.at))
        if meaning is None:
            self.stack.append(_Open(line.at))
            return
        layer, phase, name = meaning
        if phase == "PU":
            around = self.around
            phase = around[-1].phase if around else phase
        self.stack.append(_Open(line.at, self.layers.get(layer, layer), phase, name, "[SUB]" in line.text))

    @property
    def around(self) -> list[_Open]:
        """The marks that have begun and count, the outermost first."""
        return [one for one in self.stack if one.layer]

    def _end(self, line: MarkLine) -> None:
        ended = self.stack.pop()
        if not ended.layer:
            return
        around = self.around
        inside = tuple((one.layer, one.phase) for one in around)
        span = Span(ended.layer, ended.phase, ended.name, line.thread, ended.start, line.at, inside, ended.elsewhere)
        self.spans.append(span)
        for index in range(len(around) - 1, -1, -1):
            outer = around[index]
            if not ended.leaves(outer):
                break
            outer.elsewhere += line.at - ended.start
            if index and outer.leaves(around[index - 1]):
                break  # this time moves with the outer mark


def _runs(lines: list[MarkLine], notified: list[tuple[int, float]]) -> list[Run]:
    """The runs of the threads that use NNAPI. `notified` lists processes and times of a driver's callbacks."""
    processes = {line.thread: line.process for line in lines}
    threads = _threads(lines, processes)
    spans = _spans(threads, processes, notified)
    unfinished = [mark.start for mark in chain.from_iterable(one.around for one in threads)]
    runs = []
    for name, start, end in _programs(lines):
        trace = Trace([span for span in spans if start <= span.start < end])
        runs.append(Run(name, trace, sum(start <= at < end for at in unfinished)))
    return runs


def _spans(threads: list[_Thread], processes: Mapping[int, int], notified: list[tuple[int, float]]) -> list[Span]:
    """The marks of all threads. Those that start work end when the work ends."""
    spans = sorted(chain.from_iterable(one.spans for one in threads), key=attrgetter("start"))
    waits = [(processes[one.thread], one.end) for one in spans if one.name == WAIT]
    for kind, ends in ((STARTED, waits), (SERVED, notified)):
        _join([one for one in spans if kind.fullmatch(one.name)], ends, spans, processes)
    return spans


def _threads(lines: list[MarkLine], processes: Mapping[int, int]) -> list[_Thread]:
    """The threads with their marks. If a process is known to be a driver, the others are not."""
    drivers = {line.process for line in lines if line.text and SERVER.search(line.text)}
    threads = {thread: _Thread(process in drivers if drivers else None) for thread, process in processes.items()}
    for line in lines:
        threads[line.thread].take(line)
    return list(threads.values())


def _programs(lines: list[MarkLine]) -> list[tuple[str, float, float]]:
    """The name, begin and end of each run: from a mark [NN_LA_PO] to the next. The first begin and the last end are infinite."""
    texts = ((line.at, line.text) for line in lines if line.text and "[NN_LA_PO]" in line.text)
    found = [(at, meaning[2]) for at, text in texts if (meaning := _meaning(text)) is not None]
    starts = [at for at, _ in found[1:]]
    names = [name for _, name in found] or [""]
    return list(zip(names, [-math.inf, *starts], [*starts, math.inf]))


def _join(
    starts: Iterable[Span], ends: Iterable[tuple[int, float]], spans: list[Span], processes: Mapping[int, int]
) -> None:
    """Extend each mark that only starts an execution to the next unused end, given by process and time. Marks of its
    layer and process that begin within it become details of it.
    """
    free: dict[int, list[float]] = defaultdict(list)
    for process, at in sorted(ends, reverse=True):
        free[process].append(at)
    wholes: dict[int, Span] = {}
    for start in starts:
        process = processes[start.thread]
        left, before = free[process], wholes.get(process)
        while left and left[-1] < start.start:
            left.pop()
        if not left:
            continue
        if before is not None and start.start <= before.end:
            before.end = left.pop()
            continue
        _swallow(before, spans, processes)
        start.end = left.pop()
        wholes[process] = start
    for whole in wholes.values():
        _swallow(whole, spans, processes)


def _swallow(whole: Span | None, spans: list[Span], processes: Mapping[int, int]) -> None:
    if whole is None:
        return
    first = bisect_left(spans, whole.start, key=attrgetter("start"))
    for one in spans[first : bisect_right(spans, whole.end, key=attrgetter("start"))]:
        same = one.layer == whole.layer and processes[one.thread] == processes[whole.thread]
        if same and one is not whole:
            one.inside = ((whole.layer, whole.phase), *one.inside)
