"""Puts quantizers around more operators that only move data: those that the CPU provider, unlike NNAPI, runs on integers."""

from __future__ import annotations

from ortconv.ir.graph import Graph, Node
from ortconv.ir.operands import producer_of
from ortconv.ir.types import DType
from ortconv.optimizer.basic.qdq import propagate_past
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.qdq.drop import MOVERS

GROW = ("Expand", "Tile", "Resize")
"""Operators whose results have more elements than input 0: dequantizing them would be more work."""

PICK = ("Gather", "GatherElements")
"""Operators that may read few elements of input 0, or the same ones many times."""


def propagate_further(graph: Graph, context: Context) -> int:
    """Put Q/DQ pairs around all operators that only move data.

    Counterpart: QDQPropagationTransformer
    Differs: also past Flatten, DepthToSpace, ReduceMax and ReduceMin, forward past Gather, so that only the rows of a quantized
        table that are read become real, backward past Resize, Expand and Tile; past nodes that several nodes read.
    """
    return propagate_past(graph, context, _moves_forward, _moves_backward)


def _moves_forward(node: Node, dtype: DType | None) -> bool:
    dq = producer_of(node.input(0), "DequantizeLinear")
    reads_table = dq is not None and dq.constant(0) is not None
    return node.op not in GROW and (node.op not in PICK or reads_table) and _moves_data(node, dtype)


def _moves_backward(node: Node, dtype: DType | None) -> bool:
    return node.op not in PICK and _moves_data(node, dtype)


def _moves_data(node: Node, dtype: DType | None) -> bool:
    mover = MOVERS.get(node.op) if node.domain == "" and not any(node.outputs[1:]) else None
    return mover is not None and mover.accepts(node, dtype)
