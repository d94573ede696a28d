"""The basic level: rewrites into standard ONNX operators, valid for any execution provider."""

from __future__ import annotations

from ortconv.optimizer.basic import broadcast, eliminate, fold_conv, fold_matmul, fold_product, pad
from ortconv.optimizer.passes import Pass, rules_of
from ortconv.optimizer.quantizers import DEQUANTIZE, QUANTIZERS

_LEVEL1 = (eliminate, broadcast, fold_conv, pad, fold_matmul, fold_product)

SHARING = Pass("ConstantSharing", "basic.sharing:share_constants")
SHAPES = Pass("ShapePropagation", "propagation:propagate")
FOLDING = Pass("ConstantFolding", "basic.fold_constants:fold")
COMMON = Pass("CommonSubexpressionElimination", "basic.cse:merge_common")
NAN_GUARDS = Pass("NanGuardElimination", "basic.nan_guard:drop_guard", "IsNaN")
RESHAPES = Pass("ReshapeFusion", "basic.reshape:RULES")

PASSES = (
    Pass("UnusedNodeElimination", "basic.unused:remove_unused"),
    Pass("IdentityElimination", eliminate.eliminate_identity),  # shapes may depend on a constant behind an Identity
    SHAPES,
    Pass("Level1Rules", [r for module in _LEVEL1 for r in rules_of(module)]),
    Pass("DoubleQDQPairsRemover", "basic.qdq:DOUBLE_PAIRS", *QUANTIZERS),
    SHARING,
    COMMON,
    FOLDING,
    Pass("ClipBoundFolding", "basic.qdq:fold_bound", *DEQUANTIZE, also=(("", "Clip"),)),
    Pass("StackedStepsFusion", "basic.steps:fuse_steps", "Concat"),
    Pass("ConvBranchFusion", "basic.conv_branches", "Conv"),
    Pass("MatMulAddFusion", "basic.fold_matmul:fuse_matmul_add"),
    Pass("MatMulAddFusion", "basic.fold_matmul:fuse_stacked", "MatMul"),
    RESHAPES,
    Pass("SwappedAxes", "basic.swapped", "Transpose", "Reshape", "MatMul", "Gemm"),
    Pass("SqueezePropagation", "basic.squeeze:propagate_squeezes", "Squeeze"),
    Pass("ExpandPropagation", "basic.broadcast:propagate_expands", "Expand"),
    Pass("StoredPartElimination", "basic.stores:read_before_store", "ScatterND", "ScatterElements"),
    Pass("StoredRowsFusion", "basic.stores:join_stored_rows", "ScatterND", "ScatterElements"),
    Pass("TransposedStoreFusion", "basic.stores:fuse_transposed_stores", "ScatterND", "ScatterElements"),
    Pass("StoreFusion", "basic.stores:fuse_stores", "ScatterND", "ScatterElements"),
    Pass("IndexedMaskFusion", "basic.mask_index", "Attention", "Gather", "GatherND", "And", "Where"),
    NAN_GUARDS,
    Pass("SoftplusThresholdElimination", "basic.softplus:drop_threshold", "Softplus"),
    Pass("FloorDivisionFusion", "basic.floor_division:fuse_floor_division", "Where"),
    Pass("RowLookupFusion", "basic.lookup", "GatherElements", "GatherND"),
    Pass("SliceConcatToSpaceToDepthFusion", "basic.space_to_depth:fuse_space_to_depth", "Slice"),
    Pass("GeluFusion", "basic.layer_norm:fuse_gelu", "Erf"),
    Pass("VarianceFusion", "basic.layer_norm:fuse_variance", "ReduceMean"),
    Pass("LayerNormFusion", "basic.layer_norm:LAYER_NORM", "ReduceMean", "GlobalAveragePool", "LayerNormalization"),
    Pass("GroupNormFusion", "basic.group_norm:fuse_group_norm", "GroupNormalization", for_cpu=True),
    Pass("ChannelScaleFusion", "basic.channel_scales", "Conv", also=QUANTIZERS),
    Pass("QDQPropagation", "basic.qdq:propagate", *QUANTIZERS),
    Pass("EnsureUniqueDQForNodeUnit", "basic.qdq:give_each_reader_its_own", *QUANTIZERS),
    Pass("TransposedWeights", "basic.qdq:transpose_weight", *DEQUANTIZE),
    Pass("TransposeOptimizer", "basic.transpose:optimize_transposes", "Transpose", once=True),
)

OPT_IN = (
    Pass("LossyCastChainElimination", "basic.cast_chain:eliminate_lossy_cast_chain", "Cast", inexact=True),
    Pass("WeightBiasQuantization", "basic.quantize_weights:quantize_weights", inexact=True),
    Pass("EmptyScalesElimination", "basic.nnapi:state_scales", "Resize", for_nnapi=True),
    Pass("PadSeparation", "basic.nnapi:separate_pad", "Pad", for_nnapi=True),
    Pass("ScalarParameters", "basic.nnapi:make_scalar", *QUANTIZERS, for_nnapi=True),
    Pass("BiasQuantization", "basic.quantize_bias:quantize_bias", "Conv", "Gemm", for_nnapi=True),
    Pass("SignedGemmRewrite", "basic.nnapi:rewrite_signed_gemm", "Gemm", for_nnapi=True),
)
"""Passes that run only on request, because they change the numbers, or help only one provider."""
