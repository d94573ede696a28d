"""The extended level: fusions into operators of ONNX Runtime's CPU provider."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.optimizer.basic import SHARING
from ortconv.optimizer.extended import attention, qdq, recurrent
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.quantizers import DEQUANTIZE

RESIZES = Pass(
    "ChannelsLastResize",
    "extended.channels_last_resize:resize_channels_last",
    "Resize",
    "Upsample",
    also=(("", "Transpose"),),
    once=True,
)
SCALARS = Pass("ScalarRankRewrite", "extended.scalar_rank:raise_rank")
GELUS = ("Gelu", (MICROSOFT, "Gelu"))
PRODUCTS = ("MatMul", (MICROSOFT, "FusedMatMul"))
SKIP_NORMS = ((MICROSOFT, "SkipLayerNormalization"), (MICROSOFT, "SkipSimplifiedLayerNormalization"))

PASSES = (
    *qdq.PASSES,
    Pass("CubicOperatorSet", "extended.cubic_resize:raise_operator_set", "Resize"),
    Pass("CubicUpsampling", "extended.cubic_resize:upsample_with_antialias", "Resize"),
    RESIZES,
    *recurrent.PASSES,
    Pass("StackReduceFusion", "extended.stack:reduce_operands", "Concat"),
    Pass("FillElimination", "extended.fill:eliminate_filled_operand", "ConstantOfShape"),
    Pass("ZeroStateElimination", "extended.fill:eliminate_zero_states", "GRU", "LSTM", "RNN"),
    Pass("GemmActivationFusion", "extended.fuse_gemm:fuse_gemm_activation", "Gemm"),
    Pass("SoftmaxExpectationFusion", "extended.distribution:move_to_last_axis", "Softmax"),
    Pass("UnstackedAttention", "extended.attention.unstacked:unstack", "Softmax", also=(("", "MatMul"),)),
    Pass("GemmRowsFusion", "extended.gemm_rows:fuse_rows", "Gemm", also=(("", "Reshape"),)),
    Pass("HardSwishFusion", "extended.fuse_conv:fuse_hard_sigmoid"),
    Pass("PReluFusion", "extended.fuse_conv:replace_prelu"),
    Pass("ConvActivationFusion", "extended.fuse_conv:ACTIVATIONS"),
    Pass("GeluFusion", "extended.gelu:fuse_gelu", "Erf"),
    Pass("FastGeluFusion", "extended.gelu:fuse_fast_gelu", "Tanh"),
    Pass("QuickGeluFusion", "extended.gelu:fuse_quick_gelu", "Sigmoid"),
    Pass("BiasGeluFusion", "extended.gelu:fuse_bias_gelu", *GELUS, (MICROSOFT, "FastGelu")),
    Pass("PointwiseConvFusion", "extended.pointwise:RULES", "Transpose"),
    Pass("LayerNormFusion", "extended.layer_norm:LAYER_NORM", "ReduceMean", "GlobalAveragePool", "LayerNormalization"),
    Pass(
        "ChannelNormFusion", "extended.layer_norm:CHANNEL_NORM", "ReduceMean", "GlobalAveragePool", "LayerNormalization"
    ),
    Pass("SimplifiedLayerNormFusion", "extended.layer_norm:fuse_root_mean_square", "ReduceMean", "GlobalAveragePool"),
    Pass("UnscaledNormFusion", "extended.layer_norm:UNSCALED", "ReduceMean", "GlobalAveragePool"),
    # It runs once, since SkipLayerNormFusion undoes it.
    Pass("SkipLayerNormSplit", "extended.split_norm:split_norm", *SKIP_NORMS, once=True),
    Pass("NormScaleFusion", "extended.norm_scale:fuse_affine", "LayerNormalization", "SimplifiedLayerNormalization"),
    Pass("BatchFirstFusion", "extended.attention.batch_first:put_batch_first", "Softmax", also=(("", "MatMul"),)),
    Pass("PackedHeadsFusion", "extended.attention.packed_heads:fuse", "Transpose"),
    Pass("ReshapeFusion", "basic.reshape:merge_reshapes"),
    Pass("PatchMergingFusion", "basic.space_to_depth:merge_patches", "Slice"),
    Pass("EinsumFusion", "extended.einsum"),
    *attention.PASSES,
    Pass("ShapePartFusion", "extended.shape_parts:fuse_part", "Shape"),
    Pass("ShapeSelectFusion", "extended.shape_parts:fuse_select", "Where"),
    Pass("GatherSliceToSplitFusion", "extended.split:fuse", "Gather", "Slice"),
    Pass("GatherToSliceFusion", "extended.split:fuse_range", "Gather"),
    Pass("MatmulTransposeFusion", "extended.fuse_matmul:TRANSPOSED", *PRODUCTS, also=(("", "Transpose"),)),
    Pass("MatMulScaleFusion", "extended.fuse_matmul:SCALED", *PRODUCTS, also=(("", "Mul"), ("", "Div"))),
    Pass("StackedMatMulFusion", "extended.fuse_matmul:fuse_stack", *PRODUCTS, also=(("", "Reshape"),)),
    Pass("MatMulActivationFusion", "extended.fuse_gemm:fuse_matmul_activation", "MatMul"),
    Pass("TransposeOptimizer", "extended.cancel:cancel_transposes", "Transpose", once=True),
    Pass("TransposeSplit", "extended.transpose:split_transpose", "Transpose"),
    Pass("ScaleShiftFusion", "extended.affine:fuse_scale_shift", "Mul"),
    Pass("ConvBNFusion", "basic.fold_conv:BATCH_NORMS"),
    Pass("ReshapeFusion", "basic.reshape:CHAINS"),
    Pass("ConstantFolding", "extended.qdq.common:fold_bias", *DEQUANTIZE),
    Pass("CommonSubexpressionElimination", "extended.qdq.common:merge_dequantized", *DEQUANTIZE),
    SCALARS,
    SHARING,
)

# SkipLayerNormalization takes two to six times as long as Add and LayerNormalization in ONNX Runtime 1.31.
OPT_IN = (
    *qdq.OPT_IN,
    Pass("RoundedNormFusion", "extended.norm_scale:fuse_rounded_affine", inexact=True),
    Pass("SkipLayerNormFusion", "extended.skip_layer_norm:fuse", "LayerNormalization"),
    Pass("GeluApproximation", "extended.approximate:approximate_gelu", *GELUS, (MICROSOFT, "BiasGelu"), inexact=True),
    Pass("MatMulNBitsAccuracyLevel4", "extended.approximate:LOWER_ACCURACY", inexact=True),
)
"""Passes that run only on request: they make the graph smaller but not faster, or they change the numbers."""
