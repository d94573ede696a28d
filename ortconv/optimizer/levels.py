"""The optimization levels as data: each is an ordered tuple of passes, run to a fixpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from ortconv.ir.graph import Graph
from ortconv.optimizer.engine import Context
from ortconv.optimizer.looks import Looks
from ortconv.optimizer.passes import FunctionPass, RulePass

MAX_STEPS = 10

AnyPass = FunctionPass | RulePass


def basic_passes() -> tuple[AnyPass, ...]:
    """Rewrites into standard ONNX operators, valid for any execution provider."""
    from ortconv.optimizer import basic

    return basic.PASSES


def offload_passes() -> tuple[AnyPass, ...]:
    """Rewrites into forms that accelerators support. All of them run only on request."""
    return ()


def extended_passes() -> tuple[AnyPass, ...]:
    """Fusions into operators of ONNX Runtime's CPU provider."""
    from ortconv.optimizer import extended

    return extended.PASSES


def layout_passes() -> tuple[AnyPass, ...]:
    from ortconv.optimizer import layout

    return layout.PASSES


def all_passes() -> tuple[AnyPass, ...]:
    from ortconv.optimizer.layout import float16

    return float16.PASSES


STAGES = {
    "basic": basic_passes,
    "offload": offload_passes,
    "extended": extended_passes,
    "layout": layout_passes,
    "all": all_passes,
}
"""The passes that each level adds to those below it, in the order in which they run. offload belongs to basic; the
levels above basic run together.
"""

PACKAGES = ("basic", "offload", "extended", "layout")
"""The stages with a package of their own, which may have OPT_IN passes."""


def opt_in_passes(stage: str) -> tuple[AnyPass, ...]:
    """The passes of a stage that run only on request; they run after its other passes."""
    return getattr(import_module(f"ortconv.optimizer.{stage}"), "OPT_IN", ()) if stage in PACKAGES else ()


def inexact(stages: Iterable[str] = STAGES) -> frozenset[str]:
    """Names of the rewrites in these stages that change the numbers by more than rounding. All run only on request."""
    modules = (import_module(f"ortconv.optimizer.{stage}") for stage in stages if stage in PACKAGES)
    return frozenset(name for module in modules for name in getattr(module, "INEXACT", ()))


def run_passes(graph: Graph, passes: tuple[AnyPass, ...], context: Context) -> Iterator[tuple[AnyPass, int]]:
    """Run passes over a graph and its subgraphs, repeatedly until none changes anything.

    Yields each pass after it has run, with its number of changes, so that a caller can observe the passes. A pass that
    changed nothing runs again only after another pass has made changes, and then looks only near these. A pass for
    operators that the model lacks never runs.
    """
    if not passes:
        return
    looks = context.looks = Looks(graph)
    try:
        yield from _until_idle(graph, passes, context, looks)
    finally:
        looks.close()
        context.looks = None


def _until_idle(
    graph: Graph, passes: tuple[AnyPass, ...], context: Context, looks: Looks
) -> Iterator[tuple[AnyPass, int]]:
    graphs = list(graph.graphs())
    total = 0
    idle_at: dict[AnyPass, int] = {}
    for step in range(MAX_STEPS):
        before = total
        for p in passes:
            if (step and p.once) or idle_at.get(p) == total:
                continue
            context.forget()
            if not looks.has_all(p.operators, p.also):
                yield p, 0
                continue
            looks.begin(p)
            count = sum(p.run(g, context) for g in graphs if graph.encloses(g))
            looks.spread()
            looks.release()
            total += count
            if not count:
                idle_at[p] = total
            yield p, count
        if total == before or context.exhausted:
            return
