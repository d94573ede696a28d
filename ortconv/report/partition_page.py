"""The page of `ortconv partition`: the graph with its partitions, reasons, advice, levels and estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortconv.partition.cost import ASSUMPTIONS
from ortconv.partition.refusals import refusals
from ortconv.report.labels import byte_text, operators
from ortconv.report.page import about, page
from ortconv.report.partition import compared_times, inside_section, levels_section
from ortconv.report.picture import picture, stage
from ortconv.report.scene import Scene, headline
from ortconv.report.sections import Link, Section
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.partition.advice import Merge
    from ortconv.pipeline.analysis import Analysis


def partition_page(
    analysis: Analysis,
    scene: Scene,
    title: str,
    advice: Sequence[Merge],
    levels: Sequence[Mapping[str, Any]],
    options: Mapping[str, object],
) -> str:
    """The page; `levels` are rows of a comparison of levels, `options` those of the command."""
    found = picture(scene, title, analysis.estimate)
    return page(
        title,
        headline(analysis.partitioning),
        [*_sections(analysis, advice, levels), about(options)],
        kind="partitions",
        stage=stage(found),
    )


def _sections(analysis: Analysis, advice: Sequence[Merge], levels: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    yield Section("Estimate", _totals(analysis))
    yield Section("Why nodes stay on the CPU", (), ("reason", ">nodes"), list(_reasons(analysis)))
    yield Section("Changes that join partitions or put more nodes in them", [str(merge) for merge in advice])
    target = analysis.partitioning.target.provider.name
    header = ("partition", ">nodes", ">CPU ms", f">{target} ms", ">copies ms", ">gain ms")
    yield Section("Partitions", (), header, list(_partitions(analysis)))
    yield levels_section(levels, analysis)
    yield inside_section(analysis)
    yield Section("Assumptions of the estimate", ASSUMPTIONS)


def _totals(analysis: Analysis) -> list[str]:
    p, e = analysis.partitioning, analysis.estimate
    share = 100 * e.multiply_adds_taken / e.multiply_adds if e.multiply_adds else 0.0
    parts = counted(len(p.partitions), "partition")
    lines = [
        f"{p.taken} of {p.total} nodes and {share:.1f} % of the multiply-adds are in {parts}",
        f"on {e.device.name}: {compared_times(e)}",
        f"level {analysis.level}",
    ]
    if p.target.refused_ops:
        lines.append(f"without {', '.join(p.target.refused_ops)}")
    if analysis.gain is not None:
        lines.append(f"rewrites for the target: {len(analysis.gain.to_dict().get('rewrites', ()))} kinds")
    return lines


def _reasons(analysis: Analysis) -> Iterator[tuple[object, ...]]:
    for row in refusals(analysis.partitioning):
        advice = f"Advice: {row.advice[0]}" if row.advice else ""
        yield (Link(f"{row.op}: {row.rule}", f"{row.op} {row.rule}:"), row.message, advice), row.nodes


def _partitions(analysis: Analysis) -> Iterator[tuple[object, ...]]:
    """The partitions. Those that save or lose most come first."""
    pairs = zip(analysis.partitioning.partitions, analysis.estimate.partitions, strict=True)
    for i, (p, c) in sorted(enumerate(pairs), key=lambda row: -abs(row[1][1].gain)):
        copied = f"{byte_text(c.bytes_in)} in, {byte_text(c.bytes_out)} out"
        name = Link(f"{i}: {operators(p.nodes, 2)}", f"partition:{i};"), copied
        times = (c.cpu_seconds, c.accelerator_seconds, c.copy_seconds, c.gain)
        yield name, len(p.nodes), *(f"{seconds * 1e3:.3g}" for seconds in times)
