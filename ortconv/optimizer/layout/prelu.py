"""Replaces PRelu with constant slopes by faster operators: ONNX Runtime's PRelu takes ten times as long as Mul and Max."""

from __future__ import annotations

import numpy as np

from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array
from ortconv.optimizer.basic.fold_conv import by_second_axis
from ortconv.optimizer.conditions import per_channel, rounded, wide
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.fuse_conv import is_float
from ortconv.optimizer.pattern import C, Match, P

STEEPEST = 1e6
"""Steeper slopes are not rewritten, because weights of a convolution would be multiplied by them."""


def _steep_slopes(m: Match) -> Array | None:
    """The slopes of the matched PRelu, one for each channel, if some are above 1, and their factors fit both convolutions."""
    w, w2, group = m.tensor("w").shape, m.tensor("w2").shape, m.root.attr("group", 1)
    slopes = per_channel(m.slope, len(w), w[0]) if 2 < len(w) == len(w2) and is_float(m.x) else None
    if slopes is None or w2[1] * group != w[0] or w2[0] % group:
        return None
    usable = np.all(slopes != 0) and 1 < slopes.max() <= STEEPEST and np.any(slopes != slopes[0])
    return slopes if usable else None


_CONV = P("Conv", "x", C("w"), C("b", optional=True), name="conv")


_PRELU = P("PRelu", _CONV, C("slope"), name="prelu")


@rule("PReluFusion", P("Conv", _PRELU, C("w2"), ...), P("FusedConv", _PRELU, C("w2"), ..., domain=MICROSOFT))
def flatten_slopes(m: Match) -> Replacement:
    """Conv(PRelu(Conv(x, w, b), slopes), w2)  ->  the same with slopes up to 1

    PRelu(y, s) is -s * PRelu(-y, 1 / s): the sign moves into the first convolution, the factor into the second.
    """
    before, prelu, after = m.node("conv"), m.node("prelu"), m.root
    w, w2 = wide(m.w), wide(m.w2)
    rank, group, slopes = w.ndim, after.attr("group", 1), _steep_slopes(m)
    if slopes is None:
        return None
    steep = slopes > 1
    sign, factor = np.where(steep, -1.0, 1.0), np.where(steep, -slopes, 1.0)
    first = rounded(w * sign.reshape(-1, *[1] * (rank - 1)), m.tensor("w").dtype)
    second = rounded(by_second_axis(w2, factor, group), m.tensor("w2").dtype)
    gentle = rounded(np.where(steep, 1 / slopes, slopes), m.tensor("slope").dtype)
    bias = None if m.b is None else rounded(wide(m.b) * sign, m.tensor("b").dtype)
    if first is None or second is None or gentle is None or (m.b is not None and bias is None):
        return None
    y = New("Conv", [m.x, first] if bias is None else [m.x, first, bias], like=before, types=(before.out.type,))
    shape = (-1, *[1] * (rank - 2))
    activated = New("PRelu", [y, gentle.reshape(shape)], {}, like=prelu, types=(prelu.out.type,))
    inputs = [activated, second, *after.inputs[2:]]
    return New(after.op, inputs, domain=after.domain, like=after)


@rule("PReluFusion", P("PRelu", "x", C("slope")))
def replace_prelu(m: Match) -> Replacement:
    """PRelu(x, slopes up to 1)  ->  Max(x, x * slopes)"""
    slopes, types = m.tensor("slope").numpy(), (m.root.out.type,)
    usable = np.isfinite(slopes).all() and np.all(slopes <= 1) and np.all(slopes != 0)  # 0 * inf is NaN
    if not is_float(m.x) or not usable:
        return None
    scaled = New("Mul", [m.x, m.slope], {}, types=types)
    return New("Max", [m.x, scaled], {}, like=m.root, types=types)
