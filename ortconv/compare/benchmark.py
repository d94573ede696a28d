"""Compares backends, NNAPI devices and flags: latency and accuracy on the same inputs."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ortconv.backends.nnapi.backend import NnapiOptions, RecordingBackend
from ortconv.choices import REFERENCE_DEVICE
from ortconv.compare.gap import Gap, strict_gap
from ortconv.compare.simulation import TimedPartitions
from ortconv.errors import OrtconvError
from ortconv.inputs.feeds import Feeds
from ortconv.ir.model import Model
from ortconv.nnapi.tracing import timing
from ortconv.runtime.session import Session

NAMES_DEVICES = 29
"""The feature level from which on the CPU can be selected as a device."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A configuration in the benchmark: a backend of this name, or NNAPI with options."""

    name: str
    options: NnapiOptions | None = None
    flags: str = ""


@dataclass(slots=True)
class BenchmarkRow:
    """The results of a contender. Times are in seconds; `simulated` are estimated times of the runs on the simulated devices, see
    `ortconv.compare.simulation`. `nodes` of `total` are in `partitions`; `operations` counts those of NNAPI by device. `error` is
    the reason if there are no results.
    """

    contender: Contender
    loading: float = 0.0
    times: list[float] = field(default_factory=list)
    simulated: list[float] = field(default_factory=list)
    partitions: int = 0
    nodes: int = 0
    total: int = 0
    operations: dict[str, int] = field(default_factory=dict)
    gap: Gap | None = None
    summary: timing.Summary | None = None
    error: str | None = None

    @property
    def latency(self) -> float:
        """The median time in seconds: of simulated times if there are any, else of measured ones."""
        return statistics.median(self.simulated or self.times)

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON; times are in milliseconds."""
        found: dict[str, Any] = {"name": self.contender.name, "flags": self.contender.flags, "error": self.error}
        if self.error is not None or self.gap is None:
            return found
        return found | {
            "load_ms": _ms(self.loading),
            "median_ms": _ms(statistics.median(self.times)),
            "p90_ms": _ms(sorted(self.times)[-(-9 * len(self.times) // 10) - 1]),
            "simulated_ms": _ms(statistics.median(self.simulated)) if self.simulated else None,
            "partitions": self.partitions,
            "nodes": self.nodes,
            "nodes_total": self.total,
            "operations": self.operations,
            "max_abs": self.gap.largest,
            "scaled": self.gap.scaled,
            "mismatch": self.gap.mismatch,
            "timing": self.summary,
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def contenders(
    backends: Sequence[str], profiles: Sequence[str | Path], variants: Mapping[str, dict[str, Any]], **settings: Any
) -> list[Contender]:
    """The backends; then for each variant of flags NNAPI on the CPU, on each device, and on all devices together.

    `settings` are options that all contenders share.
    """
    found = [Contender(name) for name in backends]
    together = [tuple(profiles)] if len(profiles) > 1 else []
    for text, flags in variants.items():
        if not flags.get("cpu_disabled") and settings.get("feature_level", NAMES_DEVICES) >= NAMES_DEVICES:
            found.append(Contender(REFERENCE_DEVICE, NnapiOptions(**settings | flags | {"cpu_only": True}), text))
        if flags.get("cpu_only"):
            continue
        for devices in [*((profile,) for profile in profiles), *together]:
            options = NnapiOptions(**settings | flags, devices=devices)
            found.append(Contender(" + ".join(d.name for d in RecordingBackend(options).accelerators), options, text))
    return found


class _Runner:
    """A contender that runs, and its row."""

    def __init__(self, contender: Contender, model: Model) -> None:
        self.row, self._model = BenchmarkRow(contender), model
        self._backend: TimedPartitions | None = None

    def attempt(self, step: Callable[[], object]) -> None:
        """Take a step of the benchmark, unless an earlier one failed. An error becomes that of the row."""
        if self.row.error is None:
            try:
                step()
            except OrtconvError as error:
                self.row.error = str(error)

    def start(self, feeds: Feeds, expected: Sequence[Any]) -> None:
        """Open the model, and run it once to compare the outputs."""
        options, row = self.row.contender.options, self.row
        self._backend = None if options is None else TimedPartitions(options)
        start = time.perf_counter()
        self._session = Session(self._model, [self._backend or row.contender.name])
        row.loading = time.perf_counter() - start
        if self._backend is not None:
            row.total, row.partitions = len(self._model.graph), len(self._backend.compiled)
            row.nodes = sum(len(region.nodes) for region, _ in self._backend.compiled)
            places = (place for _, program in self._backend.compiled for place in program.compilation.plan.places)
            row.operations = dict(Counter(device.name for device in places if device is not None))
        gaps = (strict_gap(a, b) for a, b in zip(expected, self.run(feeds), strict=True))
        row.gap = max(gaps, key=lambda one: one.severity, default=Gap())
        row.times.clear()
        row.simulated.clear()

    def run(self, feeds: Feeds) -> list[Any]:
        """Run once and record the time."""
        start = time.perf_counter()
        results = self._session.run(None, feeds)
        self.row.times.append(time.perf_counter() - start)
        simulated = None if self._backend is None else self._backend.simulated(self.row.times[-1])
        if simulated is not None:
            self.row.simulated.append(simulated)
        return results

    def trace(self, feeds: Feeds, runs: int) -> None:
        """Compile again and run, and summarize the trace of both."""
        if self._backend is not None:
            with timing.tracing() as trace:
                session = Session(self._model, [RecordingBackend(self.row.contender.options)])
                for _ in range(runs):
                    session.run(None, feeds)
                session.close()
            self.row.summary = timing.summary(trace)


def benchmark(
    model: Model, entrants: Sequence[Contender], feeds: Feeds, expected: Sequence[Any], repeat: int, trace: bool
) -> list[BenchmarkRow]:
    """A row for each contender, in the given order. Runs of the contenders alternate; the first run of each is not measured.

    `expected` are the outputs to compare with. With `trace`, rows of NNAPI have a summary of where the time is spent.
    """
    runners = [_Runner(entrant, model) for entrant in entrants]
    for runner in runners:
        runner.attempt(partial(runner.start, feeds, expected))
    for _ in range(repeat):
        for runner in runners:
            runner.attempt(partial(runner.run, feeds))
    for runner in runners if trace else ():
        runner.attempt(partial(runner.trace, feeds, repeat))
    return [runner.row for runner in runners]
