"""Rewrites into standard operators in forms that an accelerator supports, between the basic level and the partitioner.

All run only on request: by name, or if `ortconv.pipeline.maximize_offload` finds that they put more nodes on the
accelerator.
"""

from __future__ import annotations

from ortconv.optimizer.offload import (
    activation,
    arithmetic,
    convolution,
    matmul,
    movement,
    normalization,
    quantization,
    resize,
    unsigned,
)
from ortconv.optimizer.passes import FunctionPass, RulePass

OPT_IN: tuple[FunctionPass | RulePass, ...] = (
    *unsigned.PASSES,
    *activation.PASSES,
    *arithmetic.PASSES,
    *matmul.PASSES,
    *convolution.PASSES,
    *movement.PASSES,
    *resize.PASSES,
    *quantization.PASSES,
    *normalization.PASSES,
)

INEXACT = activation.INEXACT
"""Names of the passes that change the numbers by more than rounding."""
