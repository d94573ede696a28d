"""Merges the DequantizeLinear nodes that remain after the fusions of quantized units."""

from __future__ import annotations

from ortconv.ir.graph import Graph
from ortconv.optimizer.basic.cse import merge_nodes
from ortconv.optimizer.engine import Context
from ortconv.optimizer.quantizers import is_quantizer


def merge_dequantized(graph: Graph, context: Context) -> int:
    """Merge DequantizeLinear nodes with the same attributes and inputs: no unit needs one of its own any more.

    Counterpart: CommonSubexpressionElimination
    Differs: ONNX Runtime keeps all that EnsureUniqueDQForNodeUnit adds.
    """
    return merge_nodes(graph, context, lambda node: is_quantizer(node, "DequantizeLinear"))
