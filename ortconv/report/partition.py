"""What `ortconv partition` shows. docs/partition.md documents the JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortconv.files import size
from ortconv.ir.symbols import open_dims
from ortconv.partition import Partitioning
from ortconv.partition.advice import Merge
from ortconv.partition.cost import ASSUMPTIONS, Estimate
from ortconv.partition.refusals import refusals
from ortconv.report.convert import gained
from ortconv.report.sections import Link, Section, first_rows
from ortconv.wording import count_as_one, counted, milliseconds, shortened

if TYPE_CHECKING:
    from ortconv.pipeline.analysis import Analysis
    from ortconv.report.scene import Scene

VERSION = 1


def metrics(partitioning: Partitioning, estimate: Estimate) -> dict[str, float]:
    """The numbers that --fail-on can name."""
    return {
        "partitions": len(partitioning.partitions),
        "coverage": partitioning.coverage,
        "work_coverage": estimate.work_coverage,
        "nodes": partitioning.total,
        "refused": partitioning.total - partitioning.taken,
        "worthwhile": sum(c.is_worthwhile for c in estimate.partitions),
    }


def document(model: Path, analysis: Analysis, advice: Sequence[Merge], levels: Sequence[Analysis]) -> dict[str, Any]:
    """The report as JSON values, with the parts that only some analyses have."""
    target = analysis.partitioning.target
    more: dict[str, Any] = {"levels": list(map(_level, levels))} if levels else {}
    if target.takes_subgraphs:
        more["subgraphs"] = [{"graph": i.label, **_divided(i.partitioning, i.estimate)} for i in analysis.inside]
    if analysis.gain is not None:
        more["offload"] = analysis.gain.to_dict()
    return {
        "version": VERSION,
        "model": str(model),
        "level": analysis.level,
        "ep": target.ep_type,
        **target.options,
        **_divided(analysis.partitioning, analysis.estimate),
        "advice": [merge.to_dict() for merge in advice],
        **more,
    }


def _divided(partitioning: Partitioning, estimate: Estimate) -> dict[str, Any]:
    """The report on one graph, as JSON values."""
    partitions = zip(partitioning.partitions, estimate.partitions, strict=True)
    return {
        "nodes": partitioning.total,
        "nodes_taken": partitioning.taken,
        "coverage_percent": partitioning.coverage,
        "partitions": [{**p.to_dict(), "cost": c.to_dict()} for p, c in partitions],
        "refusals": [row._asdict() | {"example": row.example._asdict()} for row in refusals(partitioning)],
        "estimate": estimate.to_dict(),
        "verdicts": [v.to_dict() for v in partitioning.verdicts.values()],
    }


def _level(found: Analysis) -> dict[str, Any]:
    partitioning, estimate = found.partitioning, found.estimate
    return {
        "level": found.level,
        "nodes": partitioning.total,
        "partitions": len(partitioning.partitions),
        "nodes_taken": partitioning.taken,
        "coverage_percent": partitioning.coverage,
        "largest": _largest(partitioning),
        "cpu_seconds": estimate.cpu_seconds,
        "seconds": estimate.seconds,
    }


def _largest(partitioning: Partitioning) -> int:
    return max((len(p.nodes) for p in partitioning.partitions), default=0)


# ---------------------------------------------------------------------- sections

MOST_PARTITIONS = 20
MOST_REASONS = 20
NAMES = {"disable": "as it is", "basic": "basic", "extended": "extended", "aware": "{}-aware"}


def sections(
    analysis: Analysis, advice: Sequence[Merge], levels: Sequence[Analysis], model: Path, *, is_wide: bool
) -> list[Section]:
    """The analysis as lists and tables; `is_wide` adds sizes."""
    p, e = analysis.partitioning, analysis.estimate
    refused = f", without {', '.join(p.target.refused_ops)}" if p.target.refused_ops else ""
    head = (
        f"{counted(len(p.partitions), 'partition')}, "
        f"{p.taken} of {p.total} nodes ({p.coverage:.1f} %), "
        f"{shortened(e.multiply_adds_taken)} of {shortened(e.multiply_adds)} multiply-adds"
    )
    offload = gained(analysis.gain) if analysis.gain is not None else []
    times = f"{compared_times(e)}. The formula and its assumptions are in docs/cost.md."
    return [
        Section(f"{model}, {_level_name(analysis)}, for {p.target.label}{refused}", [head, *offload]),
        _levels_section(levels),
        _partition_table(analysis, is_wide),
        _inside_section(analysis),
        _reasons_section(analysis),
        _advice_section(advice),
        Section(f"Estimated on {e.device.name}", [times, *count_as_one(open_dims(analysis.model.graph.inputs))]),
    ]


def _partition_table(analysis: Analysis, wide: bool) -> Section:
    title, shown = first_rows("Partitions", analysis.partitioning.partitions, MOST_PARTITIONS)
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


def _reasons_section(analysis: Analysis) -> Section:
    """Two lines for each reason: the refused operators, rule and an example, then the advice. An advice is printed once; later
    reasons name the one that it is printed with.
    """
    title, shown = first_rows("Left to the CPU", refusals(analysis.partitioning), MOST_REASONS, " reasons")
    lines, given = [], dict[str, str]()
    for row in shown:
        more = f" (and {counted(len(row.advice) - 1, 'other')})" if len(row.advice) > 1 else ""
        lines.append(f"{row.nodes} {row.op} by {row.rule}, for example {row.example.node}: {row.example.message}")
        for advice in row.advice[:1]:
            lines.append(f"  advice: {f'as for {given[advice]}' if advice in given else advice}{more}")
            given.setdefault(advice, f"{row.op} by {row.rule}")
    return Section(title, lines)


def _advice_section(advice: Sequence[Merge]) -> Section:
    return Section("Changes that join partitions or put more nodes in them", list(map(str, advice)))


def _level_name(analysis: Analysis) -> str:
    return NAMES[analysis.level].format(analysis.partitioning.target.provider.name)


def compared_times(estimate: Estimate) -> str:
    """The estimated times without partitions, with all and with the worthwhile ones."""
    return (
        f"{milliseconds(estimate.cpu_seconds)} on the CPU alone, {milliseconds(estimate.seconds)} with these partitions, "
        f"{milliseconds(estimate.best_seconds)} with the worthwhile ones"
    )


COUNTS, TIMES = (">nodes", ">partitions", ">assigned", ">coverage"), (">CPU", ">divided")


def _levels_section(levels: Sequence[Analysis]) -> Section:
    rows = [
        (_level_name(one), *_counts(one.partitioning), _largest(one.partitioning), *_times(one.estimate))
        for one in levels
    ]
    return Section("Levels", header=("level", *COUNTS, ">largest", *TIMES), rows=rows)


def _counts(p: Partitioning) -> tuple[object, ...]:
    return p.total, len(p.partitions), p.taken, f"{p.coverage:.1f} %"


def _times(estimate: Estimate) -> tuple[str, str]:
    return milliseconds(estimate.cpu_seconds), milliseconds(estimate.seconds)


def _inside_section(analysis: Analysis) -> Section:
    """The graphs inside of nodes that have partitions."""
    rows = [(i.label, *_counts(i.partitioning), *_times(i.estimate)) for i in analysis.inside]
    return Section("Graphs inside of nodes", header=("graph", *COUNTS, *TIMES), rows=rows)


# ---------------------------------------------------------------------- page


def page_of(
    analysis: Analysis,
    scene: Scene,
    title: str,
    advice: Sequence[Merge],
    levels: Sequence[Analysis],
    options: Mapping[str, object],
) -> str:
    """The page; `levels` are analyses at all levels to compare, `options` those of the command."""
    from ortconv.report.page import about, page
    from ortconv.report.picture import picture, stage
    from ortconv.report.scene import headline

    found = picture(scene, title, analysis.estimate)
    return page(
        title,
        headline(analysis.partitioning),
        [*_page_sections(analysis, advice, levels), about(options)],
        kind="partitions",
        stage=stage(found),
    )


def _page_sections(analysis: Analysis, advice: Sequence[Merge], levels: Sequence[Analysis]) -> Iterator[Section]:
    yield Section("Estimate", _totals(analysis))
    yield Section("Why nodes stay on the CPU", (), ("reason", ">nodes"), list(_reason_rows(analysis)))
    yield _advice_section(advice)
    target = analysis.partitioning.target.provider.name
    header = ("partition", ">nodes", ">CPU ms", f">{target} ms", ">copies ms", ">gain ms")
    yield Section("Partitions", (), header, list(_partition_rows(analysis)))
    yield _levels_section(levels)
    yield _inside_section(analysis)
    yield Section("Assumptions of the estimate", ASSUMPTIONS)


def _totals(analysis: Analysis) -> list[str]:
    p, e = analysis.partitioning, analysis.estimate
    parts = counted(len(p.partitions), "partition")
    lines = [
        f"{p.taken} of {p.total} nodes and {e.work_coverage:.1f} % of the multiply-adds are in {parts}",
        f"on {e.device.name}: {compared_times(e)}",
        f"level {analysis.level}",
    ]
    if p.target.refused_ops:
        lines.append(f"without {', '.join(p.target.refused_ops)}")
    if analysis.gain is not None:
        lines.append(f"rewrites for the target: {counted(len(analysis.gain.rewrites), 'kind')}")
    return lines


def _reason_rows(analysis: Analysis) -> Iterator[tuple[object, ...]]:
    for row in refusals(analysis.partitioning):
        advice = f"Advice: {row.advice[0]}" if row.advice else ""
        yield (Link(f"{row.op}: {row.rule}", f"{row.op} {row.rule}:"), row.example.message, advice), row.nodes


def _partition_rows(analysis: Analysis) -> Iterator[tuple[object, ...]]:
    """The partitions. Those that save or lose most come first."""
    from ortconv.report.labels import byte_text, operators

    pairs = zip(analysis.partitioning.partitions, analysis.estimate.partitions, strict=True)
    for i, (p, c) in sorted(enumerate(pairs), key=lambda row: -abs(row[1][1].gain)):
        copied = f"{byte_text(c.bytes_in)} in, {byte_text(c.bytes_out)} out"
        name = Link(f"{i}: {operators(p.nodes, 2)}", f"partition:{i};"), copied
        times = (c.cpu_seconds, c.accelerator_seconds, c.copy_seconds, c.gain)
        yield name, len(p.nodes), *(f"{seconds * 1e3:.3g}" for seconds in times)
