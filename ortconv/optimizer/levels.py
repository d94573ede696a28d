"""The optimization levels as data: each is an ordered tuple of passes, run to a fixpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from ortconv.ir.graph import Graph
from ortconv.optimizer.engine import Context
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.tracking import Tracker

MAX_STEPS = 10

STAGES = {
    "basic": "ortconv.optimizer.basic",
    "offload": "ortconv.optimizer.offload",
    "extended": "ortconv.optimizer.extended",
    "layout": "ortconv.optimizer.layout",
    "all": "ortconv.optimizer.layout.float16",
}
"""The modules with the passes that each level adds to those below it, in the order in which they run. offload belongs to basic;
the levels above basic run together. Modules are imported when their passes are needed.
"""


def passes_of(stage: str) -> tuple[Pass, ...]:
    """The passes that a stage always runs. Those of offload run only on request, so its module is not imported here."""
    return () if stage == "offload" else import_module(STAGES[stage]).PASSES


def opt_in_passes(stage: str) -> tuple[Pass, ...]:
    """The passes of a stage that run only on request; they run after its other passes."""
    return getattr(import_module(STAGES[stage]), "OPT_IN", ())


def inexact(stages: Iterable[str] = STAGES) -> frozenset[str]:
    """Names of the rewrites in these stages that change the numbers by more than rounding. All run only on request."""
    return frozenset(p.name for stage in stages for p in opt_in_passes(stage) if p.inexact)


def run_passes(graph: Graph, passes: tuple[Pass, ...], context: Context) -> Iterator[tuple[Pass, int]]:
    """Run passes over a graph and its subgraphs, repeatedly until none changes anything.

    Yields each pass after it has run, with its number of changes, so that a caller can observe the passes. A pass that
    changed nothing runs again only after another pass has made changes, and then looks only near these. A pass for
    operators that the model lacks never runs.
    """
    if not passes:
        return
    tracker = context.tracker = Tracker(graph)
    try:
        yield from _until_idle(graph, passes, context, tracker)
    finally:
        tracker.close()
        context.tracker = None


def _until_idle(
    graph: Graph, passes: tuple[Pass, ...], context: Context, tracker: Tracker
) -> Iterator[tuple[Pass, int]]:
    graphs = list(graph.graphs())
    total = 0
    idle_at: dict[Pass, int] = {}
    for step in range(MAX_STEPS):
        before = total
        for p in passes:
            if (step and p.once) or idle_at.get(p) == total:
                continue
            context.forget()
            if not tracker.has_all(p.roots, p.also):
                yield p, 0
                continue
            tracker.begin(p)
            count = sum(p.run(g, context) for g in graphs if graph.encloses(g))
            tracker.mark_touched()
            tracker.release()
            total += count
            if not count:
                idle_at[p] = total
            yield p, count
        if total == before or context.exhausted:
            return
