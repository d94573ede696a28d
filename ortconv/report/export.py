"""What `ortconv export` shows."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.exporting.export import Export
from ortconv.files import size
from ortconv.report.sections import Fact
from ortconv.wording import counted, tally


def facts(found: Export) -> Iterator[Fact]:
    yield "nodes", f"{found.nodes}, {size(found.bytes)}"
    if found.upgraded_from is not None:
        yield "format", f"was version {found.upgraded_from}"
    if found.rewrites:
        yield "rewrites", tally(found.rewrites)
    if found.saved_fusions:
        kept = found.upgraded_from is not None and not found.saved_fusions_made
        fate = "kept" if kept else f"{found.saved_fusions_made} made, the others dropped"
        yield "saved", f"{counted(found.saved_fusions, 'fusion')} for onnxruntime: {fate}"
    if found.own_operators:
        yield "not ONNX", tally(found.own_operators)
    if found.providers:
        names = ", ".join(found.providers)
        yield "lost", f"the assignment of nodes to {names}: convert for them again"
