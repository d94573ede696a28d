"""Cancels the Transposes that other rewrites of this level leave, as around attention."""

from __future__ import annotations

from ortconv.ir.graph import Graph
from ortconv.optimizer.basic.transpose import optimize_transposes
from ortconv.optimizer.basic.transpose_handlers import HANDLERS, Handlers
from ortconv.optimizer.engine import Context


def cancel_transposes(graph: Graph, context: Context) -> int:
    """Move, merge and cancel Transposes again, but not past a Split or a Gather.

    A Split may have one for each part then. A Gather copies rows faster than single elements of the last axis.

    Counterpart: TransposeOptimizer
    Differs: ONNX Runtime does not run it after its fusions.
    """
    return optimize_transposes(graph, context, _HANDLERS)


_HANDLERS: Handlers = {key: handler for key, handler in HANDLERS.items() if key[1] not in ("Gather", "Split")}
