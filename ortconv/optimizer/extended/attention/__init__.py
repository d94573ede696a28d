"""Fusions for the attention of transformers: positions, shared heads, packed projections, and the fused operators."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.basic import NAN_GUARDS
from ortconv.optimizer.passes import Pass

_MATMUL = (("", "MatMul"),)
_PARTS = (("", "Gather"), ("", "Slice"), ("", "Split"))
_ROTARY = ((MICROSOFT, "RotaryEmbedding"), "RotaryEmbedding")

PASSES = (
    Pass("HeadColumnsFusion", "extended.attention.head_columns:fuse", "Reshape", also=_PARTS),
    Pass("RotaryEmbeddingFusion", "extended.attention.rotary:fuse", "Neg", "Sub"),
    Pass("PartialRotaryFusion", "extended.attention.partial_rotary", *_ROTARY),
    Pass("RotaryRowsFusion", "extended.attention.grouped:ROTARY_ROWS", *_ROTARY),
    Pass("RepeatFusion", "extended.attention.repeat:REPEATS", "Expand", "Tile"),
    Pass("MatrixTransposeFusion", "extended.transpose:MATRIX", "Transpose"),
    Pass("BatchFirstFusion", "extended.attention.batch_first:put_batch_first", "Softmax", also=_MATMUL),
    Pass("BatchFirstFusion", "extended.attention.batch_first:merge_heads_of_one", "Reshape", also=(("", "Softmax"),)),
    Pass(
        "StackedBiasFusion",
        "extended.attention.stacked_bias:fuse",
        "Softmax",
        also=(*_MATMUL, (MICROSOFT, "FusedMatMul")),
    ),
    NAN_GUARDS,
    Pass("AttentionFusion", "extended.attention.fusion:fuse", "Softmax", also=_MATMUL),
    Pass("StandardAttentionFusion", "extended.attention.standard:fuse", "Attention"),
    Pass("HeadOrderFusion", "extended.attention.grouped:HEAD_ORDER", "Transpose"),
    Pass("GroupedMatMulFusion", "extended.attention.repeat:PRODUCTS", "Gather", "MatMul"),
)
