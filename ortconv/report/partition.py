"""A report on a model's partitions: as plain data, which docs/partition.md documents, and as sections for terminals and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortconv.partition import Partitioning
from ortconv.partition.advice import Merge
from ortconv.partition.cost import Estimate
from ortconv.partition.refusals import refusals
from ortconv.report.sections import Section
from ortconv.wording import milliseconds

if TYPE_CHECKING:
    from ortconv.pipeline.analysis import Analysis

VERSION = 1


def metrics(partitioning: Partitioning, estimate: Estimate) -> dict[str, float]:
    """The numbers that --fail-on can name."""
    share = 100.0 * estimate.multiply_adds_taken / estimate.multiply_adds if estimate.multiply_adds else 0.0
    return {
        "partitions": len(partitioning.partitions),
        "coverage": partitioning.coverage,
        "work_coverage": share,
        "nodes": partitioning.total,
        "refused": partitioning.total - partitioning.taken,
        "worthwhile": sum(c.is_worthwhile for c in estimate.partitions),
    }


def document(
    model: str, level: str, partitioning: Partitioning, estimate: Estimate, advice: Sequence[Merge]
) -> dict[str, Any]:
    """The report as JSON values."""
    target = partitioning.target
    return {
        "version": VERSION,
        "model": model,
        "level": level,
        "ep": target.ep_type,
        **target.options,
        **divided(partitioning, estimate),
        "advice": [merge.to_dict() for merge in advice],
    }


def divided(partitioning: Partitioning, estimate: Estimate) -> dict[str, Any]:
    """The report on one graph, as JSON values."""
    partitions = zip(partitioning.partitions, estimate.partitions, strict=True)
    return {
        "nodes": partitioning.total,
        "nodes_taken": partitioning.taken,
        "coverage_percent": partitioning.coverage,
        "partitions": [{**p.to_dict(), "cost": c.to_dict()} for p, c in partitions],
        "refusals": [row.to_dict() for row in refusals(partitioning)],
        "estimate": estimate.to_dict(),
        "verdicts": [v.to_dict() for v in partitioning.verdicts.values()],
    }


def level_row(level: str, partitioning: Partitioning, estimate: Estimate) -> dict[str, Any]:
    """One line of a comparison of levels."""
    return {
        "level": level,
        "nodes": partitioning.total,
        "partitions": len(partitioning.partitions),
        "nodes_taken": partitioning.taken,
        "coverage_percent": partitioning.coverage,
        "largest": max((len(p.nodes) for p in partitioning.partitions), default=0),
        "cpu_seconds": estimate.cpu_seconds,
        "seconds": estimate.seconds,
    }


# ---------------------------------------------------------------------- sections

NAMES = {"disable": "as it is", "basic": "basic", "extended": "extended", "aware": "{}-aware"}


def level_name(level: str, analysis: Analysis) -> str:
    """A level of analysis in words."""
    return NAMES[level].format(analysis.partitioning.target.provider.name)


def compared_times(estimate: Estimate) -> str:
    """The estimated times without partitions, with all and with the worthwhile ones."""
    return (
        f"{milliseconds(estimate.cpu_seconds)} on the CPU alone, {milliseconds(estimate.seconds)} with these partitions, "
        f"{milliseconds(estimate.best_seconds)} with the worthwhile ones"
    )


def levels_section(rows: Sequence[Mapping[str, Any]], analysis: Analysis) -> Section:
    """A comparison of levels, from rows of `level_row`."""
    header = ("level", ">nodes", ">partitions", ">assigned", ">coverage", ">largest", ">CPU", ">divided")
    cells = [
        (
            level_name(r["level"], analysis), r["nodes"], r["partitions"], r["nodes_taken"], f"{r['coverage_percent']:.1f} %",
            r["largest"], milliseconds(r["cpu_seconds"]), milliseconds(r["seconds"]),
        )
        for r in rows
    ]  # fmt: skip
    return Section("Levels", header=header, rows=cells)


def inside_section(analysis: Analysis) -> Section:
    """The graphs inside of nodes that have partitions."""
    header = ("graph", ">nodes", ">partitions", ">assigned", ">coverage", ">CPU", ">divided")
    rows = [
        (i.label, p.total, len(p.partitions), p.taken, f"{p.coverage:.1f} %", milliseconds(e.cpu_seconds), milliseconds(e.seconds))
        for i, p, e in ((i, i.partitioning, i.estimate) for i in analysis.inside)
    ]  # fmt: skip
    return Section("Graphs inside of nodes", header=header, rows=rows)
