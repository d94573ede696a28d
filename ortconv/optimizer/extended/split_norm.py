"""Splits the normalization of a sum, which ONNX Runtime computes faster in two nodes."""

from __future__ import annotations

from ortconv.ir.graph import Attribute
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.standard_forms import plus

_NORMS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")


@rule("SkipLayerNormSplit", P(_NORMS, "x", "skip", ..., domain=MICROSOFT))
def split_norm(m: Match) -> Replacement:
    """SkipLayerNormalization(x, skip, scale, shift, bias)  ->  LayerNormalization(x + skip + bias, scale, shift); also
    SkipSimplifiedLayerNormalization
    """
    node, op = m.root, m.root.op.removeprefix("Skip")
    if m.x.dtype is not DType.FLOAT or any(v is not None and v.is_used for v in node.outputs[1:3]):
        return None
    parameters = [node.input(i) for i in range(2, 4 if op == "LayerNormalization" else 3)]
    total = plus(New("Add", [m.x, m.skip]), node.input(2 + len(parameters)))
    attrs: dict[str, Attribute] = {"axis": -1, "epsilon": attribute(node, "epsilon"), "stash_type": int(DType.FLOAT)}
    return (New(op, [total, *parameters], attrs), None, None, total)[: len(node.outputs)]
