"""A comparison of devices and backends as a JSON document and as a page: one file, no network."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from ortconv.compare.benchmark import BenchmarkRow
from ortconv.nnapi import timing
from ortconv.report.scene import clean

LABEL, PLOT, VALUE, BAR, GAP = 300, 460, 150, 9, 8
"""Widths of a chart's columns, and heights of its bars and the space between rows, in pixels."""
SMALLEST = 1e-8
"""Differences below that are drawn as none."""

STYLE = """
body { font: 14px/1.5 system-ui, Helvetica, Arial, sans-serif; color: #1b1b1b; max-width: 70em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.3em } h2 { font-size: 1.05em; margin-top: 2em } small, .note { color: #555 }
table { border-collapse: collapse; font-size: .93em }
td, th { padding: .25em .9em .25em 0; border-bottom: 1px solid #ddd; text-align: left }
td.n, th.n { text-align: right } pre { overflow-x: auto; font-size: .85em } .error { color: #b3261e }
svg { max-width: 100%; height: auto } text { font: 12px Helvetica, Arial, sans-serif; fill: #1b1b1b }
.axis { fill: #555; font-size: 10px }
.here { fill: #c9cfda } .device { fill: #b3261e } .cpu { fill: #2f7d3b } .off { fill: #b45309 } .grid { stroke: #e3e3e8 }
.key { display: inline-block; width: 1.2em; height: .7em; margin: 0 .3em 0 1em }
.key.here { background: #c9cfda } .key.device { background: #b3261e } .key.cpu { background: #2f7d3b }
"""


@dataclass(frozen=True)
class BenchmarkComparison:
    """Rows for one model, and the backend that their outputs were compared with."""

    model: str
    expected_by: str
    feeds: Mapping[str, Any]
    repeat: int
    rows: Sequence[BenchmarkRow]


def document(found: BenchmarkComparison) -> dict[str, Any]:
    """Everything as JSON values. `mismatch` is the reason why numbers cannot be compared; infinite differences are null."""
    return {
        "version": 1,
        "model": found.model,
        "compared_with": found.expected_by,
        "runs": found.repeat,
        "inputs": {name: _described(value) for name, value in found.feeds.items()},
        "rows": [{k: _finite(v) for k, v in row.to_dict().items()} for row in found.rows],
    }


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, list) or value is None:
        return {"type": "sequence", "length": len(value or ())}
    array = np.asarray(value)
    return {"type": str(array.dtype), "shape": list(array.shape)}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def title(row: BenchmarkRow) -> str:
    """The contender, with its flags."""
    return clean(f"{row.contender.name} [{row.contender.flags}]" if row.contender.flags else row.contender.name)


def operations(row: BenchmarkRow) -> str:
    """How many operations run on which device."""
    if row.contender.options is not None and not row.partitions:
        return "none: NNAPI takes no node"
    return clean(", ".join(f"{name} {count}" for name, count in row.operations.items()))


def accuracy(row: BenchmarkRow) -> str:
    """How far the outputs are off."""
    d = row.difference
    if d is None:
        return ""
    return clean(d.mismatch) if d.mismatch else "equal" if d.max_abs == 0 else f"{d.max_abs:.2e} ({d.scaled:.1e})"


def page(found: BenchmarkComparison) -> str:
    """The page with everything in it."""
    name = escape(clean(found.model.replace("\\", "/").rpartition("/")[2]))
    inputs = ", ".join(_input(key, value) for key, value in found.feeds.items())
    good = [row for row in found.rows if row.error is None]
    tables = [f"<h3>{escape(title(r))}</h3><pre>{escape(timing.table(r.summary))}</pre>" for r in good if r.summary]
    note = f'<p class="note">Of lowering, compiling and {found.repeat} runs.</p>'
    where = f"<h2>Where the time goes</h2>{note}{''.join(tables)}" if tables else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name}: NNAPI benchmark</title><style>{STYLE}</style></head>
<body><h1>{name}</h1>
<p>{len(good)} of {len(found.rows)} ways to run it, {found.repeat} runs each, taking turns, on the same inputs: {escape(inputs)}</p>
<h2>Latency</h2>
<p class="note">Median of a run, in milliseconds.<span class="key device"></span>with simulated devices as fast as their
profiles say<span class="key cpu"></span>on the CPU alone<span class="key here"></span>what the simulation itself took here</p>
{latency_chart(good)}
<h2>Accuracy</h2>
<p class="note">Largest difference of any output from that of {escape(found.expected_by)}, over the largest magnitude of the
output; logarithmic.</p>
{accuracy_chart(good)}
<h2>Numbers</h2>
{_table(found.rows)}
<p class="note">Times of simulated devices are those of the same nodes on the numpy backend, times the profile's figures, plus its
costs of launches and copies. Ratios say more than milliseconds: no phone was involved.</p>
{where}
</body></html>
"""


def _input(name: str, value: Any) -> str:
    about = _described(value)
    return clean(f"{name} {about['type']}{about.get('shape', '')}")


def latency_chart(rows: Sequence[BenchmarkRow]) -> str:
    """Bars by the latency of each row; below it, pale, what a simulation took here."""
    most = max((max(statistics.median(r.times), r.latency) for r in rows), default=0.0) or 1.0
    step = _step(most)
    ticks = [(i * step / most, f"{i * step * 1e3:g}") for i in range(int(most / step) + 1)]
    bars = []
    for row in rows:
        here = statistics.median(row.times)
        parts = [("device" if row.simulated else "cpu", row.latency / most)]
        parts += [("here", here / most)] if row.simulated else []
        bars.append((title(row), parts, f"{row.latency * 1e3:.3f} ms"))
    return _chart("Latency", bars, ticks)


def _step(most: float) -> float:
    """1, 2 or 5 times a power of ten: four to ten of it are `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(power / 10, *(f * power for f in (0.2, 0.5, 1.0) if most / (f * power) >= 4))


def accuracy_chart(rows: Sequence[BenchmarkRow]) -> str:
    """Bars by scaled difference, on a logarithmic axis that ends at 1."""
    decades = -math.log10(SMALLEST)
    ticks = [
        (i / decades, f"≤ 1e{-round(decades)}" if i == 0 else f"1e{i - round(decades)}")
        for i in range(0, round(decades) + 1, 2)
    ]
    bars = []
    for row in rows:
        d = row.difference
        scaled = 1.0 if d is None or d.mismatch or d.scaled > 1 else d.scaled
        length = 1 + math.log10(scaled) / decades if scaled > SMALLEST else 0.0
        bars.append((title(row), [("off", length)], accuracy(row)))
    return _chart("Accuracy", bars, ticks)


def _chart(
    name: str, bars: Sequence[tuple[str, Sequence[tuple[str, float]], str]], ticks: Sequence[tuple[float, str]]
) -> str:
    """Rows of bars with lengths from 0 to 1, a label before and a value behind them."""
    lines, y = [], float(GAP)
    for label, parts, value in bars:
        height = len(parts) * BAR
        middle = y + max(height, 12) / 2 + 4
        lines.append(f'<text x="{LABEL - 10}" y="{middle:g}" text-anchor="end">{escape(_short(label))}</text>')
        end = 0.0
        for at, (kind, length) in enumerate(parts):
            end = max(end, length)
            lines.append(
                f'<rect class="{kind}" x="{LABEL}" y="{y + at * BAR:g}" width="{max(length * PLOT, 0.5):.1f}" height="{BAR - 1}"/>'
            )
        lines.append(f'<text x="{LABEL + end * PLOT + 8:.1f}" y="{middle:g}">{escape(value)}</text>')
        y += max(height, 12) + GAP
    grid = [
        f'<line class="grid" x1="{LABEL + at * PLOT:g}" x2="{LABEL + at * PLOT:g}" y1="0" y2="{y:g}"/>'
        f'<text class="axis" x="{LABEL + at * PLOT:g}" y="{y + 12:g}" text-anchor="middle">{text}</text>'
        for at, text in ticks
    ]
    width, bottom = LABEL + PLOT + VALUE, y + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom:g}" width="{width}" height="{bottom:g}" role="img" '
        f'aria-label="{name}">{"".join(grid)}{"".join(lines)}</svg>'
    )


def _short(text: str) -> str:
    return text if len(text) <= 44 else f"{text[:43]}…"


def _table(rows: Sequence[BenchmarkRow]) -> str:
    head = "".join(
        f'<th class="{"n" if name.startswith(">") else ""}">{name.removeprefix(">")}</th>'
        for name in ("runs on", ">nodes on NNAPI", "operations", ">ms here", ">ms simulated", ">off by", ">loading, ms")
    )
    body = []
    for row in rows:
        first = f"<td>{escape(title(row))}</td>"
        if row.error is not None:
            body.append(f'<tr>{first}<td class="error" colspan="6">{escape(clean(row.error))}</td></tr>')
            continue
        nodes = f"{row.nodes} of {row.total}, in {row.partitions}" if row.contender.options else ""
        simulated = f"{statistics.median(row.simulated) * 1e3:.3f}" if row.simulated else ""
        numbers = (f"{statistics.median(row.times) * 1e3:.3f}", simulated, accuracy(row), f"{row.loading * 1e3:.0f}")
        cells = "".join(f'<td class="n">{escape(text)}</td>' for text in numbers)
        body.append(f'<tr>{first}<td class="n">{nodes}</td><td>{escape(operations(row))}</td>{cells}</tr>')
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"
