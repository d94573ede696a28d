"""Merges or folds the DequantizeLinear nodes that remain after the fusions of quantized units."""

from __future__ import annotations

from ortconv.ir.graph import Graph
from ortconv.ir.types import DType
from ortconv.optimizer.basic.cse import merge_nodes
from ortconv.optimizer.engine import Context, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.quantizers import DOMAINS, is_quantizer


def merge_dequantized(graph: Graph, context: Context) -> int:
    """Merge DequantizeLinear nodes with the same attributes and inputs: no unit needs one of its own any more.

    Counterpart: CommonSubexpressionElimination
    Differs: ONNX Runtime keeps all that EnsureUniqueDQForNodeUnit adds.
    """
    return merge_nodes(graph, context, lambda node: is_quantizer(node, "DequantizeLinear"))


_CONSTANTS = (C("x"), C("scale"), C("zero", optional=True))


@rule("ConstantFolding", *(P("DequantizeLinear", *_CONSTANTS, domain=domain) for domain in DOMAINS))
def fold_bias(m: Match) -> Replacement:
    """DequantizeLinear of constant int32  ->  constant of as many bytes: no unit needs it any more

    Counterpart: ConstantFolding
    Differs: ONNX Runtime folds no DequantizeLinear.
    """
    from ortconv.executor.kernels.evaluate import evaluate

    return evaluate(m.root)[0] if m.tensor("x").dtype is DType.INT32 and m.root.out.dtype is DType.FLOAT else None
