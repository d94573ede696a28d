"""A comparison of devices and backends as a JSON document and as a page: one file, no network."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ortconv.compare.benchmark import BenchmarkRow
from ortconv.nnapi.tracing import timing
from ortconv.report.page import about, clean, page, text
from ortconv.report.run import finite, form_of
from ortconv.report.sections import Markup, Section

BAR = 9
"""The height of a bar, in pixels."""
DECADES = 8
"""The axis of differences is from 10^-DECADES to 1. Smaller ones are drawn as zero."""


@dataclass(frozen=True)
class BenchmarkComparison:
    """Rows for one model, and the backend that their outputs were compared with."""

    model: str
    expected_by: str
    feeds: Mapping[str, Any]
    repeat: int
    rows: Sequence[BenchmarkRow]


def document(found: BenchmarkComparison) -> dict[str, Any]:
    """The comparison as JSON values. `mismatch` is the reason why numbers cannot be compared. Infinite differences are null."""
    return {
        "version": 1,
        "model": found.model,
        "compared_with": found.expected_by,
        "runs": found.repeat,
        "inputs": {name: form_of(value) for name, value in found.feeds.items()},
        "rows": [{k: finite(v) if isinstance(v, float) else v for k, v in row.to_dict().items()} for row in found.rows],
    }


def title(row: BenchmarkRow) -> str:
    """The contender, with its flags."""
    return clean(f"{row.contender.name} [{row.contender.flags}]" if row.contender.flags else row.contender.name)


def operations(row: BenchmarkRow) -> str:
    if row.contender.options is not None and not row.partitions:
        return "none: NNAPI supports no node"
    return clean(", ".join(f"{name} {count}" for name, count in row.operations.items()))


def accuracy(row: BenchmarkRow) -> str:
    """How far the outputs differ."""
    d = row.gap
    if d is None:
        return ""
    return clean(d.mismatch) if d.mismatch else "equal" if d.largest == 0 else f"{d.largest:.2e} ({d.scaled:.1e})"


LATENCY_NOTE = "Median of a run, in milliseconds."
LATENCY_KEYS = {
    "good": "with simulated devices as fast as their profiles say",
    "plain": "on the CPU alone",
    "pale": "what the simulation itself took here",
}
NUMBERS_NOTE = (
    "Times of simulated devices are those of the same nodes on the numpy backend, times the profile's figures, plus its costs of "
    "launches and copies. Ratios say more than milliseconds: no phone was involved."
)
HEADER = ("runs on", ">nodes on NNAPI", "operations", ">ms here", ">ms simulated", ">off by", ">loading, ms")


def page_of(found: BenchmarkComparison, options: Mapping[str, object]) -> str:
    """The comparison as a page; `options` are those of the command."""
    name = Path(found.model).name
    inputs = ", ".join(_input(key, value) for key, value in found.feeds.items())
    good = [row for row in found.rows if row.error is None]
    keys = "".join(f'<span class="key bar {kind}"></span>{text} ' for kind, text in LATENCY_KEYS.items())
    off_by = f"Largest difference of any output from that of {found.expected_by}, over the output's largest magnitude; logarithmic."
    sections = [
        Section("Latency", [LATENCY_NOTE], figure=Markup(f'<p class="note">{keys}</p>{latency_chart(good)}')),
        Section("Accuracy", [off_by], figure=Markup(accuracy_chart(good))),
        Section("Numbers", [NUMBERS_NOTE], HEADER, list(map(_cells, found.rows))),
        Section("Where the time goes", figure=_summaries(good, found.repeat)),
        about(options),
    ]
    ways = f"{len(good)} of {len(found.rows)} ways to run it, {found.repeat} runs each, taking turns, on the same inputs: {inputs}"
    return page(name, ways, sections, kind="NNAPI benchmark")


def _summaries(rows: Sequence[BenchmarkRow], repeat: int) -> Markup:
    tables = [(text(title(row)), text(timing.table(row.summary))) for row in rows if row.summary]
    frame = '<pre role="region" tabindex="0" aria-label="{0}">{1}</pre>'
    parts = [f"<h3>{name}</h3>{frame.format(name, table)}" for name, table in tables]
    note = f'<p class="note">Of lowering, compiling and {repeat} runs.</p>'
    return Markup("".join((note, *parts)) if parts else "")


def _input(name: str, value: Any) -> str:
    about = form_of(value)
    return clean(f"{name} {about['type']}{about.get('shape', '')}")


def latency_chart(rows: Sequence[BenchmarkRow]) -> str:
    """Bars for the latency of each row. Below each, in a pale color, is the real time of a simulated device."""
    most = max((max(statistics.median(r.times), r.latency) for r in rows), default=0.0) or 1.0
    step = _step(most)
    ticks = [(i * step / most, f"{i * step * 1e3:g}") for i in range(int(most / step) + 1)]
    bars = []
    for row in rows:
        here = statistics.median(row.times)
        parts = [("good" if row.simulated else "plain", row.latency / most)]
        parts += [("pale", here / most)] if row.simulated else []
        bars.append(_ChartRow(title(row), parts, f"{row.latency * 1e3:.3f} ms"))
    return _chart("Latency", bars, ticks)


def _step(most: float) -> float:
    """A step of 1, 2 or 5 times a power of ten, so that the range has four to ten steps."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(power / 10, *(f * power for f in (0.2, 0.5, 1.0) if most / (f * power) >= 4))


def accuracy_chart(rows: Sequence[BenchmarkRow]) -> str:
    """Bars by scaled difference, on a logarithmic axis."""
    ticks = [(i / DECADES, f"{'' if i else '≤ '}1e{i - DECADES}") for i in range(0, DECADES + 1, 2)]
    bars = []
    for row in rows:
        d = row.gap
        scaled = 1.0 if d is None or d.mismatch or d.scaled > 1 else d.scaled
        length = max(0.0, 1 + math.log10(scaled) / DECADES) if scaled else 0.0
        bars.append(_ChartRow(title(row), [("poor", length)], accuracy(row)))
    return _chart("Accuracy", bars, ticks)


class _ChartRow(NamedTuple):
    """A row of a chart: bars, each with its style and a length from 0 to 1, between a label and a value."""

    label: str
    bars: Sequence[tuple[str, float]]
    value: str


def _chart(name: str, rows: Sequence[_ChartRow], ticks: Sequence[tuple[float, str]]) -> str:
    """The rows of bars, and the ticks of their axis. On a narrow screen the label is above."""
    grid = "".join(f'<line class="grid" x1="{at:.2%}" x2="{at:.2%}" y1="0" y2="100%"/>' for at, _ in ticks)
    drawn = [
        f'<dt>{text(row.label)}</dt><dd><svg height="{len(row.bars) * BAR + 8}" aria-hidden="true">{grid}{_bars(row.bars)}</svg>'
        f"<span>{text(row.value)}</span></dd>"
        for row in rows
    ]
    scale = "".join(
        f'<text class="axis" x="{at:.2%}" y="12" text-anchor="{_anchor(at)}">{tick}</text>' for at, tick in ticks
    )
    axis = f'<dt></dt><dd aria-hidden="true"><svg height="16">{scale}</svg><span></span></dd>'
    return f'<dl class="chart" aria-label="{name}">{"".join(drawn)}{axis}</dl>'


def _bars(parts: Sequence[tuple[str, float]]) -> str:
    return "".join(
        f'<rect class="{kind}" x="0" y="{4 + at * BAR}" width="{length:.2%}" height="{BAR - 1}"/>'
        for at, (kind, length) in enumerate(parts)
    )


def _anchor(at: float) -> str:
    return "start" if at < 0.03 else "end" if at > 0.97 else "middle"


def _cells(row: BenchmarkRow) -> tuple[object, ...]:
    if row.error is not None:
        return title(row), "", Markup(f'<span class="error">{text(row.error)}</span>'), "", "", "", ""
    nodes = f"{row.nodes} of {row.total}, in {row.partitions}" if row.contender.options else ""
    simulated = f"{statistics.median(row.simulated) * 1e3:.3f}" if row.simulated else ""
    here, loading = f"{statistics.median(row.times) * 1e3:.3f}", f"{row.loading * 1e3:.0f}"
    return title(row), nodes, operations(row), here, simulated, accuracy(row), loading
