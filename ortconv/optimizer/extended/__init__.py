"""The extended level: fusions into operators of ONNX Runtime's CPU provider."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.basic import sharing
from ortconv.optimizer.extended import (
    affine,
    attention,
    einsum,
    fill,
    fuse_conv,
    fuse_gemm,
    fuse_matmul,
    gemm_rows,
    norm_scale,
    qdq,
    recurrent,
)
from ortconv.optimizer.passes import FunctionPass, LaterPass, RulePass, later_function

_RESIZES = f"{__name__}.channels_last_resize"
RESIZES = later_function(_RESIZES, "ChannelsLastResize", "Resize", "Upsample", also=(("", "Transpose"),), once=True)

PASSES: tuple[FunctionPass | RulePass, ...] = (
    *qdq.PASSES,
    later_function(f"{__name__}.cubic_resize", "CubicOperatorSet", "Resize"),
    LaterPass(f"{__name__}.cubic_resize", "CubicUpsampling", "Resize"),
    RESIZES,
    *recurrent.PASSES,
    *fill.PASSES,
    *fuse_gemm.PASSES,
    LaterPass(f"{__name__}.distribution", "SoftmaxExpectationFusion", "Softmax"),
    *gemm_rows.PASSES,
    *fuse_conv.PASSES,
    LaterPass(f"{__name__}.gelu", "GeluFusion", "Erf"),
    LaterPass(f"{__name__}.gelu", "FastGeluFusion", "Tanh"),
    LaterPass(f"{__name__}.gelu", "QuickGeluFusion", "Sigmoid"),
    LaterPass(f"{__name__}.gelu", "BiasGeluFusion", "Gelu", "FastGelu", domains=("", MICROSOFT)),
    LaterPass(f"{__name__}.pointwise", "PointwiseConvFusion", "Transpose"),
    LaterPass(f"{__name__}.layer_norm", "LayerNormFusion", "ReduceMean", "LayerNormalization"),
    LaterPass(f"{__name__}.layer_norm", "ChannelNormFusion", "ReduceMean", "LayerNormalization"),
    LaterPass(f"{__name__}.layer_norm", "SimplifiedLayerNormFusion", "ReduceMean"),
    LaterPass(f"{__name__}.layer_norm", "UnscaledNormFusion", "ReduceMean"),
    *norm_scale.PASSES,
    LaterPass(f"{__name__}.matrix_transpose", "MatrixTransposeFusion", "Transpose"),
    *einsum.PASSES,
    *attention.PASSES,
    later_function(f"{__name__}.split", "GatherSliceToSplitFusion", "Gather", "Slice"),
    LaterPass(f"{__name__}.split", "GatherToSliceFusion", "Gather"),
    *fuse_matmul.PASSES,
    LaterPass(f"{__name__}.split_transpose", "TransposeSplit", "Transpose"),
    *affine.PASSES,
    *sharing.PASSES,
)

# SkipLayerNormalization takes two to six times as long as Add and LayerNormalization in ONNX Runtime 1.31.
OPT_IN: tuple[FunctionPass | RulePass, ...] = (
    *qdq.OPT_IN,
    *norm_scale.OPT_IN,
    later_function(f"{__name__}.skip_layer_norm", "SkipLayerNormFusion", "LayerNormalization"),
    LaterPass(f"{__name__}.approximate", "GeluApproximation", "Gelu", "BiasGelu", domains=("", MICROSOFT)),
    LaterPass(f"{__name__}.approximate", "MatMulNBitsAccuracyLevel4", "MatMulNBits", domains=(MICROSOFT,)),
)
"""Passes that run only on request: they make the graph smaller but not faster, or they change the numbers."""

INEXACT = frozenset(p.name for p in OPT_IN) - {"SkipLayerNormFusion"}
"""Names of the passes that change the numbers by more than rounding."""
