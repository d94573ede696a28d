"""Fusions for the attention of transformers: positions, shared heads, packed projections, and the fused operators."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.passes import FunctionPass, LaterFunction, LaterPass

PASSES = (
    FunctionPass("RotaryEmbeddingFusion", LaterFunction(f"{__name__}.rotary"), operators=(("", "Neg"),)),
    LaterPass(f"{__name__}.partial_rotary", "PartialRotaryFusion", "RotaryEmbedding", domains=(MICROSOFT,)),
    LaterPass(f"{__name__}.grouped", "RotaryRowsFusion", "RotaryEmbedding", domains=(MICROSOFT,)),
    LaterPass(f"{__name__}.repeat", "RepeatFusion", "Expand"),
    FunctionPass("PackedHeadsFusion", LaterFunction(f"{__name__}.packed_heads"), operators=(("", "Transpose"),)),
    FunctionPass("StackedBiasFusion", LaterFunction(f"{__name__}.stacked_bias"), operators=(("", "Softmax"),)),
    FunctionPass(
        "AttentionFusion", LaterFunction(f"{__name__}.fusion"), operators=(("", "Softmax"),), also=(("", "MatMul"),)
    ),
    LaterPass(f"{__name__}.grouped", "HeadOrderFusion", "Transpose"),
    LaterPass(f"{__name__}.repeat", "GroupedMatMulFusion", "Gather", "MatMul"),
)
