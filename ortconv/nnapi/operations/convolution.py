"""Convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import activate, requantize
from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.shapes import Pads, paddings, windows
from ortconv.nnapi.operations.table import Call, Dims, operation

EXPLICIT = (
    "x:T filter:W bias:bias pad_left:i pad_right:i pad_top:i pad_bottom:i stride_w:i stride_h:i activation:i "
    "[nchw:b=0 @3] [dilation_w:i=1 dilation_h:i=1 @3]"
)
IMPLICIT = "x:T filter:W bias:bias padding:i stride_w:i stride_h:i activation:i [nchw:b=0 @3] [dilation_w:i=1 dilation_h:i=1 @3]"


def conv_pads(c: Call) -> Pads:
    return paddings(c, c.x.dims[1:3], c.filter.dims[1:3], (c.dilation_h, c.dilation_w))


def conv_2d_dims(c: Call) -> Dims:
    (batch, height, width, depth), (out_depth, window_h, window_w, in_depth) = c.x.dims, c.filter.dims
    if depth != in_depth:
        raise op_failed(f"the input has {depth} channels, the filter {in_depth}")
    rows, columns = conv_pads(c)
    return (
        batch,
        windows(height, window_h, c.stride_h, rows, c.dilation_h),
        windows(width, window_w, c.stride_w, columns, c.dilation_w),
        out_depth,
    )


def patches(x: Array, c: Call) -> Array:
    """The windows of an NHWC image, [batch, rows, columns, depth, window rows, window columns], as a view; padding is
    0.
    """
    rows, columns = conv_pads(c)
    padded = np.pad(x, ((0, 0), rows, columns, (0, 0)))
    _, window_h, window_w, _ = c.filter.dims
    span = ((window_h - 1) * c.dilation_h + 1, (window_w - 1) * c.dilation_w + 1)
    view = sliding_window_view(padded, span, axis=(1, 2))
    return view[:, :: c.stride_h, :: c.stride_w, :, :: c.dilation_h, :: c.dilation_w]


def filter_scales(filter: Tensor) -> Array | float:
    """The scale of the filter, or one for each output channel."""
    return filter.scale if filter.channel_quant is None else np.array(filter.channel_quant.scales)


def bias_scale(c: Call) -> Iterator[str | FeatureLevel]:
    """The scale of a quantized operation's bias is the product of those of input and filter; 0 for a filter per
    channel.
    """
    if c.main in (Operand.TENSOR_QUANT8_ASYMM, Operand.TENSOR_QUANT8_ASYMM_SIGNED):
        product = np.float32(c.x.scale) * np.float32(c.filter.scale)
        if c.bias.zero_point or abs(c.bias.scale - product) > 1e-6 * min(c.bias.scale, product):
            yield f"bias has scale {c.bias.scale:g} and zero point {c.bias.zero_point}, not {product:g} and 0"
        if c.out.scale <= product and c.filter.type is not Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            yield FeatureLevel.LEVEL_3


@operation(
    "CONV_2D", EXPLICIT, IMPLICIT, types="F Q H@3 S@4", infer=conv_2d_dims,
    checks=(rank("x", 4), rank("filter", 4), rank("bias", 1), bias_scale), nchw=("x", "out"), zero_sized=True,
)  # fmt: skip
def conv_2d(c: Call) -> Array:
    if c.out.is_quantized:
        acc = np.einsum(
            "nhwcij,oijc->nhwo", patches(c.x.centred.astype(float), c), c.filter.centred.astype(float), optimize=True
        )
        acc = acc.astype(np.int64) + c.bias.array
        return requantize(acc, c.x.scale * filter_scales(c.filter) / c.out.scale, c.out, c.activation)
    y = np.einsum("nhwcij,oijc->nhwo", patches(c.x.array, c), c.filter.array, optimize=True)
    return activate(y + c.bias.array, c.activation)
