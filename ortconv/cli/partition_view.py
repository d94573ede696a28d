"""What `ortconv partition` shows people."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortconv.cli import printable
from ortconv.cli.render import gained, size
from ortconv.report.partitions import refusals

if TYPE_CHECKING:
    from ortconv.partition.advice import Merge
    from ortconv.study import Study

MOST_PARTITIONS = 20
MOST_REASONS = 20
WIDE = 110
"""Columns of a terminal that has room for sizes."""
NAMES = {"disable": "as it is", "basic": "basic", "extended": "extended", "aware": "{}-aware"}


def show(study: Study, advice: Sequence[Merge], levels: Sequence[dict[str, Any]], model: Path) -> None:
    """Print the study to stdout."""
    console = Console(no_color=True if os.environ.get("NO_COLOR") else None, highlight=False, soft_wrap=False)
    p, e = study.partitioning, study.estimate
    refused = f", without {', '.join(p.target.refused_ops)}" if p.target.refused_ops else ""
    console.print(
        Text.assemble(
            (printable(str(model)), "bold"),
            f", {_named(study.level, study)}, for {p.target.label}{refused}: ",
            (f"{len(p.partitions)} partition{'' if len(p.partitions) == 1 else 's'}", "bold"),
            f", {p.taken} of {p.total} nodes ({p.coverage:.1f} %), ",
            f"{_count(e.multiply_adds_taken)} of {_count(e.multiply_adds)} multiply-adds",
        )
    )
    if study.gain is not None:
        for line in gained(study.gain.to_dict()):
            console.print(Text(printable(line)))
    for table in (_levels(levels, study), _partitions(study, console.width), _inside(study), _reasons(study)):
        if table is not None and table.row_count:
            console.print(table)
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


def _named(level: str, study: Study) -> str:
    return NAMES[level].format(study.partitioning.target.provider.name)


def _table(title: str, *columns: str) -> Table:
    """A table; columns with a star hold words, the others numbers, which are never broken."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        words = column.startswith("*")
        name = column.removeprefix("*")
        table.add_column(
            name, justify="left" if words else "right", overflow="fold", no_wrap=not words, min_width=len(name)
        )
    return table


def _levels(rows: Sequence[dict[str, Any]], study: Study) -> Table | None:
    table = _table("Levels", "*level", "nodes", "partitions", "taken", "coverage", "largest", "CPU", "divided")
    for r in rows:
        coverage = f"{r['coverage_percent']:.1f} %"
        times = (_ms(r["cpu_seconds"]), _ms(r["seconds"]))
        cells = (r["nodes"], r["partitions"], r["nodes_taken"], coverage, r["largest"], *times)
        table.add_row(_named(r["level"], study), *map(str, cells))
    return table


def _partitions(study: Study, width: int) -> Table:
    shown = study.partitioning.partitions[:MOST_PARTITIONS]
    rest = len(study.partitioning.partitions) - len(shown)
    title = f"Partitions, the first {len(shown)} of {len(study.partitioning.partitions)}" if rest else "Partitions"
    wide = width >= WIDE
    sizes = ("in", "out", "mult-adds") if wide else ()
    table = _table(title, "#", "nodes", "*operators", *sizes, "CPU", "accelerator", "copies", "*worth it")
    for i, (p, c) in enumerate(zip(shown, study.estimate.partitions, strict=False)):
        ops = Counter(n.op for n in p.nodes).most_common()
        named = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in ops[:4]) + (", ..." if len(ops) > 4 else "")
        amounts = (size(c.bytes_in), size(c.bytes_out), _count(c.multiply_adds)) if wide else ()
        times = (_ms(c.cpu_seconds), _ms(c.accelerator_seconds), _ms(c.copy_seconds))
        table.add_row(str(i), str(len(p.nodes)), printable(named), *amounts, *times, "yes" if c.is_worthwhile else "no")
    return table


def _inside(study: Study) -> Table:
    table = _table("Graphs inside of nodes", "*graph", "nodes", "partitions", "taken", "coverage", "CPU", "divided")
    for label, p, e in ((i.label, i.partitioning, i.estimate) for i in study.inside):
        counts = (str(p.total), str(len(p.partitions)), str(p.taken), f"{p.coverage:.1f} %")
        table.add_row(Text(printable(label)), *counts, _ms(e.cpu_seconds), _ms(e.seconds))
    return table


def _reasons(study: Study) -> Table:
    rows = refusals(study.partitioning)
    title = "Left to the CPU" + (
        f", the first {MOST_REASONS} of {len(rows)} reasons" if len(rows) > MOST_REASONS else ""
    )
    table = _table(title, "nodes", "*operator", "*rule", "*for example", "*what helps")
    for row in rows[:MOST_REASONS]:
        more = f" (and {len(row.advice) - 1} others)" if len(row.advice) > 1 else ""
        example = printable(f"{row.example}: {row.message}")
        table.add_row(
            str(row.nodes),
            Text(printable(row.op)),
            row.rule,
            Text(example),
            Text(printable("".join(row.advice[:1]) + more)),
        )
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _count(number: int) -> str:
    value, unit = float(number), ""
    for unit in ("", " k", " M", " G"):
        if value < 1000 or unit == " G":
            break
        value /= 1000
    return f"{number}" if unit == "" else f"{value:.1f}{unit}"
