"""Recurrent networks: unrolled steps become one node, and the products of all steps one product."""

from __future__ import annotations

from ortconv.optimizer.passes import LaterPass, later_function

PASSES = (
    later_function(f"{__name__}.lstm", "UnrolledLstmFusion", "Tanh"),
    LaterPass(f"{__name__}.slices", "StackedSlicesElimination", "Concat"),
    later_function(f"{__name__}.step_products", "StepProductFusion", "MatMul", "Gemm"),
)
