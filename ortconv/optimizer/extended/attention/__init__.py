"""Fusions for the attention of transformers: positions, shared heads, packed projections, and the fused operators."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.passes import LaterPass, later_function

PASSES = (
    later_function(f"{__name__}.rotary", "RotaryEmbeddingFusion", "Neg"),
    LaterPass(f"{__name__}.partial_rotary", "PartialRotaryFusion", "RotaryEmbedding", domains=(MICROSOFT,)),
    LaterPass(f"{__name__}.grouped", "RotaryRowsFusion", "RotaryEmbedding", domains=(MICROSOFT,)),
    LaterPass(f"{__name__}.repeat", "RepeatFusion", "Expand"),
    later_function(f"{__name__}.packed_heads", "PackedHeadsFusion", "Transpose"),
    later_function(f"{__name__}.stacked_bias", "StackedBiasFusion", "Softmax"),
    later_function(f"{__name__}.fusion", "AttentionFusion", "Softmax", also=(("", "MatMul"),)),
    LaterPass(f"{__name__}.grouped", "HeadOrderFusion", "Transpose"),
    LaterPass(f"{__name__}.repeat", "GroupedMatMulFusion", "Gather", "MatMul"),
)
