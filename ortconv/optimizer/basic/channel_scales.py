"""Moves scales of channels into quantized weights: those of activations before and behind a convolution, and constant factors."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.basic.fold_conv import PARAMETERS, arithmetic, batch_norm
from ortconv.optimizer.basic.qdq import PER_AXIS
from ortconv.optimizer.conditions import array_of, rounded
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import C, Match, P, with_factor
from ortconv.optimizer.quantizers import (
    BYTES,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Quantized,
    constant_reals,
    dequantized,
    dequantizer_like,
    elements,
    is_implied,
    is_scaled_along,
    quantizer,
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
    if x is None or scales is None or conv.attr("group", 1) != scales.size:
        return None
    filters, scale = m.w.dim(0), common_scale(scales)
    if not isinstance(filters, int) or not filters or filters % scales.size:
        return None
    w = _rescaled(m.w, np.repeat(scales / scale, filters // scales.size), conv)
    if w is None:
        return None
    before, inputs = m.node("dq"), [x.value, *single_parameters(x, scale)]
    dq = New("DequantizeLinear", inputs, {}, like=before, types=(before.out.type,))
    return New("Conv", [dq, w, *conv.inputs[2:]], like=conv)


_CONV = P("Conv", "x", "w", "b?", name="conv")
_CLAMPED = P(("Clip", "Relu"), _CONV, ..., name="clamp")


@rule("ChannelScaleFusion", P("QuantizeLinear", _CONV, ...), P("QuantizeLinear", _CLAMPED, ...))
def unscale_filters(m: Match) -> Replacement:
    """Q(Conv(x, w, b), scales of channels)  ->  Q(Conv(x, w / scales, b / scales), one scale), also through a redundant Relu"""
    conv, y = m.node("conv"), quantizer(m.root)
    scales = None if y is None else scales_of_channels(y)
    if y is None or scales is None or m.w.dim(0) != scales.size:
        return None
    if "clamp" in m.bound and not is_implied(m.root, m.node("clamp")):
        return None
    scale = common_scale(scales)
    parts = [_rescaled(part, scale / scales, conv) for part in m.values("w", "b")]
    if any(part is None for part in parts):
        return None
    result = New("Conv", [m.x, *parts], like=conv, types=(conv.out.type,))
    return New("QuantizeLinear", [result, *single_parameters(y, scale)], {}, like=m.root)


_STORED = P("Conv", "x", P("DequantizeLinear", C("codes"), ..., shared=True), "b?", name="conv")


@rule(
    "ChannelScaleFusion",
    *with_factor(_STORED, C("k")),
    P("Add", _STORED, C("k"), commutative=True),
    P("Sub", _STORED, C("k")),
    P("BatchNormalization", _STORED, *PARAMETERS),
)
def scale_results(m: Match) -> Replacement:
    """Conv(x, DQ(w), b) * k  ->  Conv(x, DQ(w) with other scales, b * k); also /, +, - and BatchNormalization

    PyTorch exports such networks after training for quantization.
    """
    conv, w = m.node("conv"), m.tensor("codes")
    known = m.optional("k")
    affine = batch_norm(m.root) if known is None else arithmetic(m.root, known, w.rank, w.shape[0] if w.rank else 0)
    bias = np.zeros(1) if m.b is None else constant_reals(m.b, conv)
    if affine is None or bias is None or w.rank < 3 or affine.scale.shape != w.shape[:1] or bias.ndim != 1:
        return None
    scaled = _rescaled(conv.present_inputs[1], affine.scale, conv)
    stored = None if m.b is None or affine.shift.any() else _rescaled(m.b, affine.scale, conv)
    shifted: NewInput = rounded(bias * affine.scale + affine.shift, DType.FLOAT) if stored is None else stored
    if scaled is None or shifted is None:
        return None
    return New("Conv", [m.x, scaled, shifted], like=conv, types=(m.root.out.type,))


def scales_of_channels(q: Quantized) -> Array | None:
    """The scales of the channels of 8-bit activations that have one zero point; None for other tensors."""
    if q.is_per_tensor or q.dtype not in BYTES or q.value.constant is not None:
        return None
    scales, zeros = elements(q.scale), zero_points(q)
    if scales is None or zeros is None:
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
    if np.all(factors == 1):
        return value
    if q is not None:
        inputs = _with_scales(q, factors) if reader.opset >= PER_AXIS and is_scaled_along(q, 0) else None
        return None if inputs is None else dequantizer_like(value, inputs, "")
    if const is None or const.dtype is not DType.FLOAT or const.shape != factors.shape:
        return None
    return (const.numpy() * factors).astype(np.float32)


def _with_scales(q: Quantized, factors: Array) -> list[NewInput] | None:
    """Integers, scales and zero points of a constant whose slices along axis 0 get factors; None if it has none."""
    scale, zeros, codes = elements(q.scale), zero_points(q), _with_signs(q, factors)
    if scale is None or zeros is None or codes is None or q.value.constant is None or q.dtype is None:
        return None
    scales = scale * np.abs(factors)
    if not SMALLEST_SCALE < scales.min() <= scales.max() < LARGEST_SCALE:
        return None
    zero = [] if q.zero_point is None else [np.broadcast_to(zeros, factors.shape).astype(q.dtype.numpy)]
    return [codes, scales.astype(np.float32), *zero]


def _with_signs(q: Quantized, factors: Array) -> NewInput | None:
    """The integers with the signs of factors; None if these cannot express that."""
    negative, zeros = factors < 0, zero_points(q)
    if not negative.any() or q.value.constant is None:
        return q.value
    codes = array_of(q.value)
    if codes.dtype.kind != "i" or zeros is None or zeros.any() or codes.min() == np.iinfo(codes.dtype).min:
        return None
    signs = np.where(negative, -1, 1).astype(codes.dtype)
    flipped: Array = codes * signs.reshape(-1, *(1,) * (codes.ndim - 1))
    return flipped
