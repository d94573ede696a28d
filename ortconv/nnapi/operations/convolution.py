"""Convolutions, grouped, depthwise and transposed ones too. Images are NHWC, filters [out, height, width, in]."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.executor.algorithms.conv import IntegerFilters, convolution, integer_filters
from ortconv.executor.algorithms.sliding_window import Window, channels_first, channels_last, same_padding, to_last
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, PaddingCode
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.arithmetic import activate, exact_float, product_scale, requantize, rows_together
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.shapes import Pads, dilations, image_only, paddings, windows_dims
from ortconv.nnapi.operations.table import Advice, Dims, Findings, OperationCall, OperationCheck, operation

PADS = "pad_left:i pad_right:i pad_top:i pad_bottom:i"
TAIL = "activation:i [nchw:b=0 @3] [dilation_w:i=1 dilation_h:i=1 @3]"
OUT_FIRST, OUT_LAST = (0, 3, 1, 2), (3, 0, 1, 2)
Sizes = tuple[int, ...]
RANKS = (rank("x", 4), rank("filter", 4), rank("bias", 1))


def per_channel(dim: int) -> OperationCheck:
    """The scales of a filter quantized per channel belong to the dimension of output channels."""

    def check(c: OperationCall) -> Findings:
        quant = c.filter.channel_quant
        if quant is not None and quant.dim != dim:
            yield f"the filter's channel dimension is {quant.dim}, not {dim}"

    return check


def fine_output(c: OperationCall) -> Findings:
    """A quantized output whose scale is not above the product of the other scales needs level 3."""
    if c.x.is_quantized and c.filter.channel_quant is None and c.out.scale <= product_scale(c.x, c.filter):
        yield FeatureLevel.LEVEL_3


def bias_scale(c: OperationCall) -> Findings:
    """A quantized bias must have the product of the scales of input and filter. For a filter per channel, its scale
    should be 0 and is ignored: see GetQuantizedConvolutionMultiplier in Android's common/OperationsExecutionUtils.cpp.
    """
    if not c.x.is_quantized:
        return
    product = product_scale(c.x, c.filter)
    if c.bias.zero_point or abs(c.bias.scale - product) > 1e-6 * min(c.bias.scale, product):
        text = f"bias has scale {c.bias.scale:g} and zero point {c.bias.zero_point}, not {product:g} and 0"
        yield text if c.filter.channel_quant is None else Advice(text)


def image(x: Tensor, work: Work = AT_ONCE) -> Array:
    """The elements of an image for multiplication: floats, or integers minus the zero point."""
    if not x.is_quantized:
        return x.array
    numbers = work.empty(x.dims)
    work.do(np.subtract, x.array, np.float32(x.zero_point), numbers)
    return numbers


def weights(filter: Tensor) -> Array:
    """The elements of a filter for multiplication."""
    return filter.centered.astype(np.float32) if filter.is_quantized else filter.array


def convolved(c: OperationCall, groups: int, order: tuple[int, ...]) -> Array:
    """The convolution in `groups`. `order` permutes the filter to [out, in, height, width]."""
    rows, columns = pads_of(c)
    strides, spacing = (c.stride_h, c.stride_w), dilations(c)
    x = channels_first(image(c.x, c.work))
    if not c.x.is_quantized:
        pads = (rows[0], columns[0], rows[1], columns[1])
        convolve = c.filter.derived(float_convolution, order, groups, strides, spacing, pads)
        return finished(c, channels_last(c.work.call(convolve, x), c.work))
    begin, end = zip(rows, columns)
    window = Window(c.x.dims[1:3], c.filter.dims[1:3], strides, spacing, begin, end, c.out.dims[1:3])
    return rescaled(c, to_last(c.filter.derived(exact_filters, order, groups).convolve(x, window, c.work)))


def float_convolution(
    filter: Tensor, order: tuple[int, ...], groups: int, strides: Sizes, dilations: Sizes, pads: Sizes
) -> Function:
    geometry = {"strides": strides, "dilations": dilations, "pads": pads}
    return convolution(filter.array.transpose(order), groups, geometry)


def exact_filters(filter: Tensor, order: tuple[int, ...], groups: int) -> IntegerFilters:
    return integer_filters(weights(filter).transpose(order), None, groups)


def finished(c: OperationCall, sums: Array) -> Array:
    """Float sums, channels last, to which the bias is added and the activation applied in place."""
    bias, work = c.bias.array, c.work
    width = bias.size * rows_together(sums.size // max(1, bias.size), bias.size)
    rows = work.reshaped(sums, (sums.size // max(1, width), width))
    work.do(np.add, rows, np.tile(bias, width // max(1, bias.size)), rows)
    activate(rows, c.activation, work)
    return sums


def rescaled(c: OperationCall, sums: Array) -> Array:
    """Exact sums plus bias, with activation, in the type of the output."""
    factor = c.filter.derived(output_factor, c.x.scale, c.out.scale)
    return requantize(sums, factor, c.out, c.activation, c.bias.array, c.work)


def output_factor(filter: Tensor, x_scale: float, out_scale: float) -> Array:
    """(input scale * filter scale) / output scale: a number, or one for each output channel."""
    quant = filter.channel_quant
    product: Array = np.float32(x_scale) * np.asarray(filter.scale if quant is None else quant.scales, np.float32)
    return product.astype(np.float64) / out_scale


def pads_of(c: OperationCall) -> Pads:
    return paddings(c, c.x.dims[1:3], c.filter.dims[1:3], dilations(c))


def image_dims(c: OperationCall, depth: int) -> Dims:
    """[batch, rows, columns, depth] of a convolution's output."""
    image_only(c.x)
    if c.bias.dims != (depth,):
        raise op_failed(f"the bias has dimensions {list(c.bias.dims)}, not [{depth}]")
    return windows_dims(c, c.filter.dims[1:3], dilations(c), depth)


on_filters = partial(
    operation, types="F Q H@3 S@4", checks=(*RANKS, per_channel(0), fine_output), quantization=(bias_scale,), nchw=("x", "out")
)  # fmt: skip
"""Decorator of convolutions."""


def forms(tail: str, padding: str = "padding:i") -> tuple[str, ...]:
    """The forms of a convolution, with explicit padding and with a padding code."""
    return tuple(f"x:T filter:W bias:bias {pads} stride_w:i stride_h:i {tail}" for pads in (PADS, padding))


def conv_2d_dims(c: OperationCall) -> Dims:
    if c.x.dims[3] != c.filter.dims[3]:
        raise op_failed(f"the input has {c.x.dims[3]} channels, the filter {c.filter.dims[3]}")
    return image_dims(c, c.filter.dims[0])


@on_filters("CONV_2D", *forms(TAIL), infer=conv_2d_dims, zero_sized=True, recorded=("x",))
def conv_2d(c: OperationCall) -> Array:
    return convolved(c, 1, OUT_FIRST)


def grouped_dims(c: OperationCall) -> Dims:
    depth, out_depth, group_depth = c.x.dims[3], c.filter.dims[0], c.filter.dims[3]
    if c.groups <= 0 or depth != group_depth * c.groups or out_depth % c.groups:
        raise op_failed(f"{depth} channels to {out_depth} in {c.groups} groups do not fit a filter of {group_depth}")
    return image_dims(c, out_depth)


@on_filters("GROUPED_CONV_2D", *forms("groups:i activation:i nchw:b"), level=3, infer=grouped_dims, recorded=("x",))
def grouped_conv_2d(c: OperationCall) -> Array:
    return convolved(c, c.groups, OUT_FIRST)


def depthwise_dims(c: OperationCall) -> Dims:
    depth, out_depth = c.x.dims[3], c.filter.dims[3]
    if c.filter.dims[0] != 1 or out_depth != depth * c.multiplier:
        channels = f"{depth} channels, multiplied by {c.multiplier}"
        raise op_failed(f"a filter of {list(c.filter.dims)} does not fit {channels}")
    return image_dims(c, out_depth)


@on_filters(
    "DEPTHWISE_CONV_2D", *forms(f"multiplier:i {TAIL}"), infer=depthwise_dims, zero_sized=True, recorded=("x",),
    checks=(*RANKS, per_channel(3), fine_output),
)  # fmt: skip
def depthwise_conv_2d(c: OperationCall) -> Array:
    """The filter is [1, height, width, out]; output channel i reads input channel i // multiplier."""
    return convolved(c, c.x.dims[3], OUT_LAST)


def transpose_pads(c: OperationCall) -> Pads:
    """((top, bottom), (left, right)) to cut off the output, in either form. Bottom and right may be negative."""
    if c.get("padding") is None:
        if min(c.pad_top, c.pad_left) < 0:
            raise op_failed(f"padding {c.pad_top} above or {c.pad_left} to the left is negative")
        return (c.pad_top, c.pad_bottom), (c.pad_left, c.pad_right)
    if c.shape.dims != (4,):
        raise op_failed(f"the output shape has dimensions {list(c.shape.dims)}, not [4]")
    asked = c.shape.array[2:] if c.nchw else c.shape.array[1:3]
    pads = []
    for size, window, stride in zip(asked.tolist(), c.filter.dims[1:3], (c.stride_h, c.stride_w)):
        if c.padding == PaddingCode.VALID:
            pads.append((0, 0))
        elif c.padding == PaddingCode.SAME:
            head = same_padding(size, window, stride)[0]
            pads.append((head, (-(-size // stride) - 1) * stride + window - size - head))
        else:
            raise op_failed(f"{c.padding} is not a padding code")
    return pads[0], pads[1]


def transpose_dims(c: OperationCall) -> Dims:
    image_only(c.x)
    (batch, height, width, depth), (out_depth, window_h, window_w, in_depth) = c.x.dims, c.filter.dims
    if depth != in_depth or c.bias.dims != (out_depth,):
        raise op_failed(f"a filter of {list(c.filter.dims)} does not fit {list(c.x.dims)} and {c.bias.size} biases")
    if min(c.stride_h, c.stride_w, out_depth, window_h, window_w) <= 0:
        raise op_failed(f"strides {c.stride_h}, {c.stride_w} and filter {list(c.filter.dims)} must be positive")
    rows, columns = transpose_pads(c)
    out_h = (height - 1) * c.stride_h + window_h - sum(rows)
    out_w = (width - 1) * c.stride_w + window_w - sum(columns)
    if out_h <= 0 or out_w <= 0:
        raise op_failed(f"nothing of the output is left: {out_h} rows and {out_w} columns")
    return batch, out_h, out_w, out_depth


@on_filters(
    "TRANSPOSE_CONV_2D", *forms("activation:i nchw:b", "shape:I padding:i"), level=3, infer=transpose_dims, zero_sized=True
)  # fmt: skip
def transpose_conv_2d(c: OperationCall) -> Array:
    """Every input cell adds its multiple of the filter to the output; the results of neighbors are `stride` cells apart."""
    x, filter = image(c.x), weights(c.filter)
    if c.x.is_quantized:
        x, filter = (exact_float(one, c.filter.size // c.filter.dims[0]) for one in (x, filter))
    batch, height, width, depth = x.shape
    out_depth, window_h, window_w, _ = filter.shape
    _, rows, columns, _ = c.out.dims
    (top, _), (left, _) = transpose_pads(c)
    products = x.reshape(-1, depth) @ filter.reshape(-1, depth).T
    parts = products.reshape(batch, height, width, out_depth, window_h, window_w)
    full_h = max((height - 1) * c.stride_h + window_h, top + rows)
    full_w = max((width - 1) * c.stride_w + window_w, left + columns)
    full = np.zeros((batch, full_h, full_w, out_depth), x.dtype)
    for row in range(window_h):
        for column in range(window_w):
            down = slice(row, row + (height - 1) * c.stride_h + 1, c.stride_h)
            across = slice(column, column + (width - 1) * c.stride_w + 1, c.stride_w)
            full[:, down, across] += parts[..., row, column]
    y = full[:, top : top + rows, left : left + columns]
    return rescaled(c, y) if c.out.is_quantized else finished(c, c.work.contiguous(y))
