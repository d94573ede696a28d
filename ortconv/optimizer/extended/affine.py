"""Fuses multiplication and addition per channel into a kernel that reads the tensor once."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.fold_conv import arithmetic
from ortconv.optimizer.conditions import channels_of, rounded
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P

_SCALED = P("Mul", "x", C("k"), commutative=True, name="scaling")


@rule("ScaleShiftFusion", P("Add", _SCALED, C("b"), commutative=True), P("Sub", _SCALED, C("b")))
def fuse_scale_shift(m: Match) -> Replacement:
    """x * k + b  ->  BatchNormalization(x, k, b) with mean 0 and variance 1, for constants per channel"""
    x = m.x
    rank, channels = x.rank or 0, channels_of(x)
    if x.dtype not in (DType.FLOAT, DType.DOUBLE) or not channels or m.graph.opset() < 7:
        return None
    if max(m.tensor("k").size, m.tensor("b").size) == 1:
        return None
    scaling, shifting = arithmetic(m.node("scaling"), m.k, rank, channels), arithmetic(m.root, m.b, rank, channels)
    if scaling is None or shifting is None:
        return None
    scale, shift = rounded(scaling.scale, x.dtype), rounded(shifting.shift, x.dtype)
    if scale is None or shift is None:
        return None
    # The kernel adds shift - mean * scale, so a shift of -0.0 stays -0.0.
    mean: Array = np.copysign(np.zeros_like(scale), scale)
    return New("BatchNormalization", [x, scale, shift, mean, np.ones_like(scale)], {"epsilon": 0.0})
