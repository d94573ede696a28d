"""Recurrent networks: unrolled steps become one node, and the products of all steps one product."""

from __future__ import annotations

from ortconv.optimizer.passes import Pass

_SLICES = (("", "Gather"), ("", "Squeeze"))

PASSES = (
    Pass("UnrolledLstmFusion", "extended.recurrent.lstm:fuse", "Tanh", also=(("", "Sigmoid"),)),
    Pass("StackedSlicesElimination", "extended.recurrent.slices:stack_slices", "Concat"),
    Pass("StepProductFusion", "extended.recurrent.step_products:fuse", "MatMul", "Gemm", also=_SLICES),
)
