"""The extended level: fusions into operators of ONNX Runtime's CPU provider."""

from __future__ import annotations

from ortconv.optimizer.basic import sharing
from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.extended import (
    affine,
    approximate,
    attention,
    distribution,
    einsum,
    fill,
    fuse_conv,
    fuse_gemm,
    fuse_matmul,
    gelu,
    gemm_rows,
    layer_norm,
    matrix_transpose,
    norm_scale,
    qdq,
    recurrent,
    skip_layer_norm,
    split,
    split_transpose,
)

PASSES: tuple[FunctionPass | RulePass, ...] = (
    *qdq.PASSES,
    *recurrent.PASSES,
    *fill.PASSES,
    *fuse_gemm.PASSES,
    *distribution.PASSES,
    *gemm_rows.PASSES,
    *fuse_conv.PASSES,
    *gelu.PASSES,
    *layer_norm.PASSES,
    *norm_scale.PASSES,
    *matrix_transpose.PASSES,
    *einsum.PASSES,
    *attention.PASSES,
    *split.PASSES,
    *fuse_matmul.PASSES,
    *split_transpose.PASSES,
    *affine.PASSES,
    *sharing.PASSES,
)

# SkipLayerNormalization takes two to six times as long as Add and LayerNormalization in ONNX Runtime 1.31.
OPT_IN: tuple[FunctionPass | RulePass, ...] = (
    *qdq.OPT_IN,
    *norm_scale.OPT_IN,
    *skip_layer_norm.PASSES,
    *approximate.PASSES,
)
"""Passes that run only on request: they make the graph smaller but not faster, or they change the numbers."""

INEXACT = frozenset(p.name for p in (*qdq.OPT_IN, *norm_scale.OPT_IN, *approximate.PASSES))
"""Names of the passes that change the numbers by more than rounding."""
