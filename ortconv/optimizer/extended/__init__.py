"""The extended level: fusions into operators that ONNX Runtime's CPU provider has."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.extended import fuse_conv, fuse_gemm, fuse_matmul, gelu, layer_norm, skip_layer_norm

PASSES: tuple[FunctionPass | RulePass, ...] = (
    *fuse_gemm.PASSES,
    *fuse_conv.PASSES,
    *fuse_matmul.PASSES,
)
