"""The view of `ortconv partition`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.cli.render import gained, room
from ortconv.files import size
from ortconv.partition.refusals import refusals
from ortconv.report.partition import compared_times, inside_section, level_name, levels_section
from ortconv.report.sections import Section
from ortconv.wording import counted, milliseconds, shortened

if TYPE_CHECKING:
    from ortconv.partition.advice import Merge
    from ortconv.pipeline.analysis import Analysis

MOST_PARTITIONS = 20
MOST_REASONS = 20
WIDE = 110
"""Columns of a terminal from which on sizes are shown."""


def sections(
    analysis: Analysis, advice: Sequence[Merge], levels: Sequence[dict[str, Any]], model: Path
) -> list[Section]:
    """The analysis as lists and tables."""
    p, e = analysis.partitioning, analysis.estimate
    refused = f", without {', '.join(p.target.refused_ops)}" if p.target.refused_ops else ""
    head = (
        f"{counted(len(p.partitions), 'partition')}, "
        f"{p.taken} of {p.total} nodes ({p.coverage:.1f} %), "
        f"{shortened(e.multiply_adds_taken)} of {shortened(e.multiply_adds)} multiply-adds"
    )
    offload = gained(analysis.gain.to_dict()) if analysis.gain is not None else []
    width = room()
    times = f"{compared_times(e)}. The formula and its assumptions are in docs/cost.md."
    return [
        Section(f"{model}, {level_name(analysis.level, analysis)}, for {p.target.label}{refused}", [head, *offload]),
        levels_section(levels, analysis),
        _partitions(analysis, width is None or width >= WIDE),
        inside_section(analysis),
        _reasons(analysis),
        Section("Changes that join partitions or put more nodes in them", list(map(str, advice))),
        Section(f"Estimated on {e.device.name}", [times]),
    ]


def _partitions(analysis: Analysis, wide: bool) -> Section:
    shown = analysis.partitioning.partitions[:MOST_PARTITIONS]
    rest = len(analysis.partitioning.partitions) - len(shown)
    title = f"Partitions, the first {len(shown)} of {len(analysis.partitioning.partitions)}" if rest else "Partitions"
    sizes = (">in", ">out", ">mult-adds") if wide else ()
    rows, width = [], len(str(len(shown) - 1))
    for i, (p, c) in enumerate(zip(shown, analysis.estimate.partitions, strict=False)):
        ops = Counter(n.op for n in p.nodes).most_common()
        named = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in ops[:4]) + (", ..." if len(ops) > 4 else "")
        amounts = (size(c.bytes_in), size(c.bytes_out), shortened(c.multiply_adds)) if wide else ()
        times = (milliseconds(c.cpu_seconds), milliseconds(c.accelerator_seconds), milliseconds(c.copy_seconds))
        rows.append((f"{i:<{width}}  {named}", len(p.nodes), *amounts, *times, "yes" if c.is_worthwhile else "no"))
    header = (f"{'#':<{width}}  operators", ">nodes", *sizes, ">CPU", ">accelerator", ">copies", "worth it")
    return Section(title, header=header, rows=rows)


def _reasons(analysis: Analysis) -> Section:
    """Two lines for each reason: the refused operators, rule and an example, then the advice."""
    rows = refusals(analysis.partitioning)
    cut = f", the first {MOST_REASONS} of {len(rows)} reasons" if len(rows) > MOST_REASONS else ""
    lines = []
    for row in rows[:MOST_REASONS]:
        more = f" (and {counted(len(row.advice) - 1, 'other')})" if len(row.advice) > 1 else ""
        lines.append(f"{row.nodes} {row.op} by {row.rule}, for example {row.example}: {row.message}")
        lines += [f"  advice: {row.advice[0]}{more}"] if row.advice else []
    return Section(f"Left to the CPU{cut}", lines)
