"""Recurrent networks: unrolled steps become one node, and the products of all steps one product."""

from __future__ import annotations

from ortconv.optimizer.extended.recurrent import slices
from ortconv.optimizer.passes import FunctionPass, Later

PASSES = (
    FunctionPass("UnrolledLstmFusion", Later(f"{__name__}.lstm"), operators=(("", "Tanh"),)),
    *slices.PASSES,
    FunctionPass("StepProductFusion", Later(f"{__name__}.step_products"), operators=(("", "MatMul"), ("", "Gemm"))),
)
