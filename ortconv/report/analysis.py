"""Sections about the analysis of a model for a target, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortconv.report.sections import Section
from ortconv.wording import milliseconds

if TYPE_CHECKING:
    from ortconv.partition.cost import Estimate
    from ortconv.pipeline.analysis import Analysis

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
    """A comparison of levels, from rows of `ortconv.report.partitions.level_row`."""
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
