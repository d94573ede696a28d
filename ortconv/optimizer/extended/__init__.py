"""The extended level: fusions into operators that ONNX Runtime's CPU provider has."""

from __future__ import annotations

from ortconv.optimizer.engine import FunctionPass, RulePass
from ortconv.optimizer.extended import fuse_conv, fuse_gemm, fuse_matmul

PASSES: tuple[FunctionPass | RulePass, ...] = (
    RulePass("GemmActivationFusion", fuse_gemm.RULES),
    RulePass("ConvActivationFusion", fuse_conv.RULES),
    RulePass("MatmulTransposeFusion", fuse_matmul.TRANSPOSE_RULES),
    RulePass("MatMulScaleFusion", fuse_matmul.SCALE_RULES),
)
