"""The extended level: fusions into operators that ONNX Runtime's CPU provider has."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.extended import (
    approximate,
    attention,
    fuse_conv,
    fuse_gemm,
    fuse_matmul,
    gelu,
    layer_norm,
    matrix_transpose,
    qdq_passes,
    skip_layer_norm,
    split,
)

PASSES: tuple[FunctionPass | RulePass, ...] = (
    *qdq_passes.PASSES,
    *fuse_gemm.PASSES,
    *fuse_conv.PASSES,
    *gelu.PASSES,
    *layer_norm.PASSES,
    *matrix_transpose.PASSES,
    *attention.PASSES,
    *split.PASSES,
    *fuse_matmul.PASSES,
)

# SkipLayerNormalization takes two to six times as long as Add and LayerNormalization in ONNX Runtime 1.31.
OPT_IN: tuple[FunctionPass | RulePass, ...] = (*skip_layer_norm.PASSES, *approximate.PASSES)
"""Passes that run only on request: they make the graph smaller, but not faster, or change the numbers."""

INEXACT = frozenset(p.name for p in approximate.PASSES)
"""Names of those that change the numbers by more than rounding does."""
