"""What `ortconv partition` shows people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ortconv.cli import color, printable
from ortconv.cli.render import columns, gained, room, size
from ortconv.cli.run_view import stdout
from ortconv.report.partitions import refusals

if TYPE_CHECKING:
    from ortconv.partition.advice import Merge
    from ortconv.pipeline.analysis import Analysis

MOST_PARTITIONS = 20
MOST_REASONS = 20
WIDE = 110
"""Columns of a terminal that has room for sizes."""
NAMES = {"disable": "as it is", "basic": "basic", "extended": "extended", "aware": "{}-aware"}


def show(analysis: Analysis, advice: Sequence[Merge], levels: Sequence[dict[str, Any]], model: Path) -> None:
    """Print the analysis to stdout."""
    width = room()
    console = stdout()
    p, e = analysis.partitioning, analysis.estimate
    refused = f", without {', '.join(p.target.refused_ops)}" if p.target.refused_ops else ""
    console.print(
        Text.assemble(
            (printable(str(model)), "bold"),
            f", {_named(analysis.level, analysis)}, for {p.target.label}{refused}: ",
            (f"{len(p.partitions)} partition{'' if len(p.partitions) == 1 else 's'}", "bold"),
            f", {p.taken} of {p.total} nodes ({p.coverage:.1f} %), ",
            f"{_count(e.multiply_adds_taken)} of {_count(e.multiply_adds)} multiply-adds",
        )
    )
    if analysis.gain is not None:
        for line in gained(analysis.gain.to_dict()):
            console.print(Text(printable(line)))
    wide = width is None or width >= WIDE
    for text in (_levels(levels, analysis), _partitions(analysis, wide), _inside(analysis), _reasons(analysis)):
        if text:
            click.echo(f"\n{text}\n", color=color())
    if advice:
        console.print(Text("What would join partitions or put more nodes in them", style="bold"))
        for merge in advice:
            console.print(Text(f"  {printable(str(merge))}"))
    console.print(
        Text(
            f"Estimated on {printable(e.device.name)}: {_ms(e.cpu_seconds)} on the CPU alone, {_ms(e.seconds)} with these "
            f"partitions, {_ms(e.best_seconds)} with the worthwhile ones. The formula and its assumptions are in docs/cost.md."
        )
    )


def _named(level: str, analysis: Analysis) -> str:
    return NAMES[level].format(analysis.partitioning.target.provider.name)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return f"{click.style(title, bold=True)}\n{columns(header, rows)}" if rows else ""


def _levels(rows: Sequence[dict[str, Any]], analysis: Analysis) -> str:
    header = ("level", ">nodes", ">partitions", ">taken", ">coverage", ">largest", ">CPU", ">divided")
    cells = [
        (
            _named(r["level"], analysis), r["nodes"], r["partitions"], r["nodes_taken"], f"{r['coverage_percent']:.1f} %",
            r["largest"], _ms(r["cpu_seconds"]), _ms(r["seconds"]),
        )
        for r in rows
    ]  # fmt: skip
    return _table("Levels", header, cells)


def _partitions(analysis: Analysis, wide: bool) -> str:
    shown = analysis.partitioning.partitions[:MOST_PARTITIONS]
    rest = len(analysis.partitioning.partitions) - len(shown)
    title = f"Partitions, the first {len(shown)} of {len(analysis.partitioning.partitions)}" if rest else "Partitions"
    sizes = (">in", ">out", ">mult-adds") if wide else ()
    rows = []
    for i, (p, c) in enumerate(zip(shown, analysis.estimate.partitions, strict=False)):
        ops = Counter(n.op for n in p.nodes).most_common()
        named = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in ops[:4]) + (", ..." if len(ops) > 4 else "")
        amounts = (size(c.bytes_in), size(c.bytes_out), _count(c.multiply_adds)) if wide else ()
        times = (_ms(c.cpu_seconds), _ms(c.accelerator_seconds), _ms(c.copy_seconds))
        rows.append((f"{i}  {named}", len(p.nodes), *amounts, *times, "yes" if c.is_worthwhile else "no"))
    return _table(title, ("#  operators", ">nodes", *sizes, ">CPU", ">accelerator", ">copies", "worth it"), rows)


def _inside(analysis: Analysis) -> str:
    header = ("graph", ">nodes", ">partitions", ">taken", ">coverage", ">CPU", ">divided")
    rows = [
        (i.label, p.total, len(p.partitions), p.taken, f"{p.coverage:.1f} %", _ms(e.cpu_seconds), _ms(e.seconds))
        for i, p, e in ((i, i.partitioning, i.estimate) for i in analysis.inside)
    ]
    return _table("Graphs inside of nodes", header, rows)


def _reasons(analysis: Analysis) -> str:
    """Two lines for each reason: what was refused by which rule, with an example, then what helps. Both may be long."""
    rows = refusals(analysis.partitioning)
    if not rows:
        return ""
    title = "Left to the CPU" + (
        f", the first {MOST_REASONS} of {len(rows)} reasons" if len(rows) > MOST_REASONS else ""
    )
    lines = [click.style(title, bold=True)]
    for row in rows[:MOST_REASONS]:
        more = f" (and {len(row.advice) - 1} others)" if len(row.advice) > 1 else ""
        lines.append(printable(f"{row.nodes} {row.op} by {row.rule}, for example {row.example}: {row.message}"))
        if row.advice:
            lines.append(printable(f"    what helps: {row.advice[0]}{more}"))
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _count(number: int) -> str:
    value, unit = float(number), ""
    for unit in ("", " k", " M", " G"):
        if value < 1000 or unit == " G":
            break
        value /= 1000
    return f"{number}" if unit == "" else f"{value:.1f}{unit}"
