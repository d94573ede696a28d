"""Puts quantizers around more operators that only move data: those that the CPU provider, unlike NNAPI, runs on integers."""

from __future__ import annotations

from ortconv.ir.graph import Graph, Node
from ortconv.ir.operands import constant_of, producer_of
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
    return propagate_past(
        graph,
        context,
        lambda node, dtype: (
            node.op not in GROW and (node.op not in PICK or _is_table(node)) and _moves_data(node, dtype)
        ),
        lambda node, dtype: node.op not in PICK and _moves_data(node, dtype),
    )


def _is_table(gather: Node) -> bool:
    """True if input 0 is a dequantized constant."""
    dq = producer_of(gather.input(0), "DequantizeLinear")
    return dq is not None and constant_of(dq.input(0)) is not None


def _moves_data(node: Node, dtype: DType | None) -> bool:
    mover = MOVERS.get(node.op) if node.domain == "" and not any(node.outputs[1:]) else None
    return mover is not None and mover.accepts(node, dtype)
