"""Recurrent networks: unrolled steps become one node, and the products of all steps one product."""

from __future__ import annotations

from ortconv.optimizer.passes import FunctionPass, LaterFunction, LaterPass

PASSES = (
    FunctionPass("UnrolledLstmFusion", LaterFunction(f"{__name__}.lstm"), operators=(("", "Tanh"),)),
    LaterPass(f"{__name__}.slices", "StackedSlicesElimination", "Concat"),
    FunctionPass(
        "StepProductFusion", LaterFunction(f"{__name__}.step_products"), operators=(("", "MatMul"), ("", "Gemm"))
    ),
)
