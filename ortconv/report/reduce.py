"""What `ortconv reduce` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.files import size
from ortconv.reduction.reduce import Reduction
from ortconv.report.sections import Fact
from ortconv.wording import command_line, counted, tally

WHY = {
    "steps": "stopped at the limit of --steps",
    "time": "stopped at the limit of --timeout",
    "interrupted": "interrupted",
}


def facts(found: Reduction) -> Iterator[Fact]:
    yield "nodes", f"{found.nodes_before} -> {found.nodes_after}   {tally(found.operators)}"
    yield "size", f"{size(found.bytes_before)} -> {size(found.bytes_after)}"
    known = f", {counted(found.known, 'result')} known from an earlier run" if found.known else ""
    yield "runs", f"{found.steps} in {found.seconds:.1f} s{known}"
    if found.stopped is not None:
        yield "", f"{WHY[found.stopped]}: the same command line goes on from here"
    elif found.command is not None:
        line = command_line(["ortconv", "bundle", found.output, "--check", found.command])
        yield "report", f"{line} packs it for a bug report"
