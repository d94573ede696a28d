"""Fusions for the attention of transformers: positions, shared heads, packed projections, and the fused operators."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, Later
from ortconv.optimizer.extended.attention import grouped, partial_rotary, repeat

PASSES = (
    FunctionPass("RotaryEmbeddingFusion", Later(f"{__name__}.rotary"), operators=(("", "Neg"),)),
    *partial_rotary.PASSES,
    grouped.ROTARY_ROWS,
    repeat.REPEAT,
    FunctionPass("PackedHeadsFusion", Later(f"{__name__}.packed_heads"), operators=(("", "Transpose"),)),
    FunctionPass("StackedBiasFusion", Later(f"{__name__}.stacked_bias"), operators=(("", "Softmax"),)),
    FunctionPass("AttentionFusion", Later(f"{__name__}.fusion"), operators=(("", "Softmax"),), also=(("", "MatMul"),)),
    grouped.HEAD_ORDER,
    repeat.GROUPED,
)
