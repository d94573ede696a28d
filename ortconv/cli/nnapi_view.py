"""The view of `ortconv nnapi benchmark`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import click

from ortconv.cli import printable
from ortconv.cli.render import columns
from ortconv.compare.benchmark import BenchmarkRow
from ortconv.nnapi.tracing import timing
from ortconv.report.nnapi.benchmark import BenchmarkComparison, accuracy, operations, title

NOTHING = (
    "NNAPI supports no node of this model; ortconv partition says why, --fix-dim gives symbolic dimensions numbers"
)


def _cells(row: BenchmarkRow, base: BenchmarkRow) -> tuple[str, ...]:
    return (
        title(row),
        f"{row.nodes}/{row.total}" if row.contender.options else "",
        operations(row),
        f"{statistics.median(row.times) * 1e3:.3f}",
        f"{row.latency * 1e3:.3f}" if row.simulated else "",
        f"{row.latency / base.latency:.2f}",
        accuracy(row),
    )


def show(found: BenchmarkComparison) -> str:
    """A table of the rows, the failures, and with a trace the time of each layer and phase."""
    good = [row for row in found.rows if row.error is None]
    ratio = f">ratio to {title(good[0])}" if good else "ratio"
    header = ("", ">nodes", "operations", ">ms here", ">ms simulated", ratio, f"off from {found.expected_by} by")
    rows = [_cells(row, good[0]) for row in good]
    runs = f"median of {found.repeat} runs" if found.repeat > 1 else "one run"
    lines = [f"{click.style(printable(found.model), bold=True)}, {runs} of each, taking turns", columns(header, rows)]
    lines += [printable(f"{title(row)} fails: {row.error}") for row in found.rows if row.error is not None]
    if not any(row.partitions for row in good):
        lines.append(NOTHING)
    return "\n".join([*lines, *_timings(found)])


def _timings(found: BenchmarkComparison) -> Iterator[str]:
    """The tables of the rows with a trace."""
    for row in found.rows:
        if row.error is None and row.summary is not None:
            name = click.style(printable(title(row)), bold=True)
            yield from ("", f"{name}: lowered, compiled and run {found.repeat} times", timing.table(row.summary))
