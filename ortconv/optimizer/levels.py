"""The optimization levels as data: each an ordered tuple of passes, run to a fixpoint."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.errors import UsageError
from ortconv.ir.graph import Graph
from ortconv.optimizer.engine import Context, FunctionPass, RulePass

LEVELS = ("disable", "basic", "extended", "layout", "all")
MAX_STEPS = 10

AnyPass = FunctionPass | RulePass


def basic_passes() -> tuple[AnyPass, ...]:
    """Rewrites into standard ONNX operators, right for any execution provider."""
    from ortconv.optimizer import basic

    return basic.PASSES


def extended_passes() -> tuple[AnyPass, ...]:
    """Fusions into operators that ONNX Runtime's CPU provider has."""
    from ortconv.optimizer import extended

    return extended.PASSES


def layout_passes() -> tuple[AnyPass, ...]:
    from ortconv.optimizer import layout

    return layout.PASSES


def all_passes() -> tuple[AnyPass, ...]:
    """What the highest level has beyond layout. It comes first, since other passes want weights to be constants."""
    from ortconv.optimizer.layout import float16

    return float16.PASSES


def above_basic(level: str) -> tuple[AnyPass, ...]:
    """The passes of a level that follow the basic ones."""
    if level not in LEVELS:
        raise UsageError(f"optimization level '{level}' is not one of {', '.join(LEVELS)}")
    rank = LEVELS.index(level)
    fused = (extended_passes() if rank >= 2 else ()) + (layout_passes() if rank >= 3 else ())
    return (all_passes() if rank >= 4 else ()) + fused


def run_passes(graph: Graph, passes: tuple[AnyPass, ...], context: Context) -> Iterator[tuple[AnyPass, int]]:
    """Run passes over a graph and all below it, again and again until none changes anything.

    Yields each pass after it ran, with the number of its changes, so that a caller can watch. A pass that found nothing to do
    is not asked again until another one has changed something.
    """
    graphs = list(graph.graphs())
    total = 0
    idle_at: dict[AnyPass, int] = {}
    for step in range(MAX_STEPS):
        before = total
        for p in passes:
            if (step and p.once) or idle_at.get(p) == total:
                continue
            if isinstance(p, FunctionPass) and not context.allows(p.name):
                continue
            count = sum(p.run(g, context) for g in graphs if g is graph or _is_alive(g))
            total += count
            if not count:
                idle_at[p] = total
            yield p, count
        if total == before or context.exhausted:
            return


def _is_alive(graph: Graph) -> bool:
    return graph.owner is not None and graph.owner.graph is not None
