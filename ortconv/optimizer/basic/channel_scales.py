"""Moves the scales of channels from quantized activations to the weights of the convolutions around them."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import clip_bounds
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.qdq import PER_AXIS
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import (
    BYTES,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Quantized,
    dequantized,
    dequantizer_like,
    elements,
    is_scaled_along,
    quantizer,
    saturates,
    zero_points,
)

CHANNELS = 1
"""The axis of the channels of an image."""


@rule("ChannelScaleFusion", P("Conv", P("DequantizeLinear", ..., name="dq"), "w", "b?"))
def scale_filters(m: Match) -> Replacement:
    """Conv(DQ(x, scales of channels), w, b)  ->  Conv(DQ(x, one scale), w * scales, b), for one filter or more per channel

    Integer kernels and accelerators support no scales of channels in activations, which NNCF uses before depthwise convolutions.
    """
    conv, x = m.root, dequantized(m.node("dq").out, m.root)
    scales = None if x is None else scales_of_channels(x)
    if x is None or scales is None or conv.attr("group", 1) != scales.size or m.w.dim(0) is None:
        return None
    filters, scale = m.w.dim(0), common_scale(scales)
    if not isinstance(filters, int) or not filters or filters % scales.size:
        return None
    w = _rescaled(m.w, np.repeat(scales / scale, filters // scales.size), conv)
    if w is None:
        return None
    dq = New(
        "DequantizeLinear",
        [x.value, *single_parameters(x, scale)],
        {},
        like=m.node("dq"),
        types=(m.node("dq").out.type,),
    )
    return New("Conv", [dq, w, *conv.inputs[2:]], like=conv)


_CONV = P("Conv", "x", "w", "b?", name="conv")


@rule(
    "ChannelScaleFusion", *(P("QuantizeLinear", p, ...) for p in (_CONV, P(("Clip", "Relu"), _CONV, ..., name="clamp")))
)
def unscale_filters(m: Match) -> Replacement:
    """Q(Conv(x, w, b), scales of channels)  ->  Q(Conv(x, w / scales, b / scales), one scale), also through a redundant Relu"""
    conv, y = m.node("conv"), quantizer(m.root)
    scales = None if y is None else scales_of_channels(y)
    if y is None or scales is None or m.w.dim(0) != scales.size:
        return None
    if "clamp" in m.bound:
        low, high = clip_bounds(m.node("clamp"))
        if not (saturates(m.root, low, low=True) and saturates(m.root, high, low=False)):
            return None
    scale = common_scale(scales)
    parts = [_rescaled(part, scale / scales, conv) for part in m.values("w", "b")]
    if any(part is None for part in parts):
        return None
    result = New("Conv", [m.x, *parts], like=conv, types=(conv.out.type,))
    return New("QuantizeLinear", [result, *single_parameters(y, scale)], {}, like=m.root)


def scales_of_channels(q: Quantized) -> Array | None:
    """The scales of the channels of 8-bit activations that have one zero point; None for other tensors."""
    scales, zeros = elements(q.scale), zero_points(q)
    if scales is None or zeros is None or q.is_per_tensor or q.dtype not in BYTES or q.value.constant is not None:
        return None
    return scales if is_scaled_along(q, CHANNELS) and np.all(zeros == zeros[0]) else None


def common_scale(scales: Array) -> float:
    """One scale in the place of many: a power of two, which rounds nothing."""
    return float(np.exp2(np.rint(np.log2(scales.max()))))


def single_parameters(q: Quantized, scale: float) -> list[NewInput]:
    """One scale, and the zero point of all channels."""
    zeros = zero_points(q)
    assert zeros is not None
    assert q.dtype is not None
    return [np.array(scale, np.float32), np.array(zeros[0], q.dtype.numpy)]


def _rescaled(value: Value, factors: Array, reader: Node) -> NewInput | None:
    """A dequantized constant, or a float one of rank 1, with the slices along axis 0 times factors; None for any other value."""
    const, q = value.constant, dequantized(value, reader)
    if q is None:
        is_vector = const is not None and const.dtype is DType.FLOAT and const.shape == factors.shape
        return (const.numpy() * factors).astype(np.float32) if const is not None and is_vector else None
    scale, zeros = elements(q.scale), zero_points(q)
    if (
        q.value.constant is None
        or scale is None
        or zeros is None
        or reader.opset < PER_AXIS
        or not is_scaled_along(q, 0)
    ):
        return None
    scales = scale * factors
    if not SMALLEST_SCALE < scales.min() <= scales.max() < LARGEST_SCALE or q.dtype is None:
        return None
    zero = [] if q.zero_point is None else [np.broadcast_to(zeros, factors.shape).astype(q.dtype.numpy)]
    return dequantizer_like(value, [q.value, scales.astype(np.float32), *zero], "")


RULES = scale_filters + unscale_filters
