"""Cancels the Transposes that other rewrites of this level leave, as around attention."""

from __future__ import annotations

from ortconv.ir.graph import Graph
from ortconv.optimizer.basic.transpose import optimize_transposes
from ortconv.optimizer.basic.transpose_handlers import HANDLERS, Handlers
from ortconv.optimizer.engine import Context


def cancel_transposes(graph: Graph, context: Context) -> int:
    """Move, merge and cancel Transposes again, but not past a Split, after which there may be one for each part.

    Counterpart: TransposeOptimizer
    Differs: ONNX Runtime does not run it after its fusions.
    """
    return optimize_transposes(graph, context, _ONE_OUTPUT)


_ONE_OUTPUT: Handlers = {operator: handler for operator, handler in HANDLERS.items() if operator != ("", "Split")}
