"""The basic level: rewrites into standard ONNX operators, valid for any execution provider."""

from __future__ import annotations

from ortconv.optimizer import propagation
from ortconv.optimizer.basic import (
    broadcast,
    conv_branches,
    cse,
    eliminate,
    fold_conv,
    fold_matmul,
    fold_product,
    pad,
    reshape,
    sharing,
    unused,
)
from ortconv.optimizer.basic.fold_constants import FOLD_CONSTANTS
from ortconv.optimizer.passes import FunctionPass, LaterPass, RulePass, later_function
from ortconv.optimizer.quantizers import DOMAINS, OPS

PASSES: tuple[FunctionPass | RulePass, ...] = (
    *unused.PASSES,
    *propagation.PASSES,
    RulePass(
        "Level1Rules",
        eliminate.RULES,
        broadcast.RULES,
        fold_conv.RULES,
        pad.RULES,
        fold_matmul.RULES,
        fold_product.RULES,
    ),
    LaterPass(f"{__name__}.qdq", "DoubleQDQPairsRemover", *OPS, domains=DOMAINS),
    *sharing.PASSES,
    *cse.PASSES,
    FOLD_CONSTANTS,
    *conv_branches.PASSES,
    *fold_matmul.PASSES,
    *reshape.PASSES,
    LaterPass(f"{__name__}.mask_index", "IndexedMaskFusion", "Gather", "GatherND", "ScatterND", "And"),
    LaterPass(f"{__name__}.space_to_depth", "SliceConcatToSpaceToDepthFusion", "Slice"),
    LaterPass(f"{__name__}.layer_norm", "GeluFusion", "Erf"),
    LaterPass(f"{__name__}.layer_norm", "LayerNormFusion", "ReduceMean", "LayerNormalization"),
    LaterPass(f"{__name__}.group_norm", "GroupNormFusion", "GroupNormalization"),
    later_function(f"{__name__}.qdq", "QDQPropagation", *OPS, domains=DOMAINS),
    later_function(f"{__name__}.qdq", "EnsureUniqueDQForNodeUnit", *OPS, domains=DOMAINS),
    LaterPass(f"{__name__}.qdq", "TransposedWeights", "DequantizeLinear", domains=DOMAINS),
    later_function(f"{__name__}.transpose", "TransposeOptimizer", "Transpose", once=True),
)

FOR_CPU = frozenset({"GroupNormFusion"})
"""Names of the passes that decompose operators which an accelerator may support as they are. They run after nodes are assigned."""

OPT_IN: tuple[FunctionPass | RulePass, ...] = (
    LaterPass(f"{__name__}.cast_chain", "LossyCastChainElimination", "Cast"),
    LaterPass(f"{__name__}.quantize_weights", "WeightBiasQuantization", "Conv", "ConvTranspose", "Gemm"),
)
"""Passes that run only on request, because they change the numbers."""

INEXACT = frozenset(p.name for p in OPT_IN)
"""Names of the passes that change the numbers by more than rounding."""
