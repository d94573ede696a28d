"""Convolutions: CONV_2D, GROUPED_CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV_2D. Images are NHWC, filters [out,
height, width, in].
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortconv.ir.tensor import Array
from ortconv.nnapi.arithmetic import activate, exact_float, requantize
from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.shapes import Pads, paddings, windows
from ortconv.nnapi.operations.table import Call, Check, Dims, operation

PADS = "pad_left:i pad_right:i pad_top:i pad_bottom:i"
TAIL = "activation:i [nchw:b=0 @3] [dilation_w:i=1 dilation_h:i=1 @3]"
TYPES = "F Q H@3 S@4"
RANKS = (rank("x", 4), rank("filter", 4), rank("bias", 1))


def per_channel(dim: int) -> Check:
    """A filter quantized per channel has its scales along the dimension of output channels."""

    def check(c: Call) -> Iterator[str | FeatureLevel]:
        quant = c.filter.channel_quant
        if quant is not None and quant.dim != dim:
            yield f"the filter's channel dimension is {quant.dim}, not {dim}"

    return check


def bias_scale(c: Call) -> Iterator[str | FeatureLevel]:
    """A quantized bias has the product of the scales of input and filter, or 0 for a filter per channel."""
    if not c.x.is_quantized:
        return
    product = np.float32(c.x.scale) * np.float32(c.filter.scale)
    if c.bias.zero_point or abs(c.bias.scale - product) > 1e-6 * min(c.bias.scale, product):
        yield f"bias has scale {c.bias.scale:g} and zero point {c.bias.zero_point}, not {product:g} and 0"
    if c.out.scale <= product and c.filter.type is not Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        yield FeatureLevel.LEVEL_3


def filter_scales(filter: OperandType) -> Array | float:
    """The scale of the filter, or one for each output channel."""
    return filter.scale if filter.channel_quant is None else np.array(filter.channel_quant.scales)


def operands(c: Call) -> tuple[Array, Array]:
    """Input and filter as numbers to multiply: floats, which hold the sums of quantized elements exactly."""
    if not c.x.is_quantized:
        return c.x.array, c.filter.array
    depth = c.filter.size // max(1, c.filter.dims[0])
    return exact_float(c.x.centred, depth), exact_float(c.filter.centred, depth)


def finished(c: Call, acc: Array) -> Array:
    """Sums with bias and activation, in the type of the output."""
    if not c.out.is_quantized:
        return activate(acc + c.bias.array, c.activation)
    scale = float(c.x.scale) * filter_scales(c.filter) / float(c.out.scale)
    return requantize(acc.astype(np.int64) + c.bias.array, scale, c.out, c.activation)


def dilations(c: Call) -> tuple[int, int]:
    """(height, width); 1 where the operation has none."""
    return c.get("dilation_h") or 1, c.get("dilation_w") or 1


def pads_of(c: Call) -> Pads:
    return paddings(c, c.x.dims[1:3], c.filter.dims[1:3], dilations(c))


def image_dims(c: Call, depth: int) -> Dims:
    """[batch, rows, columns, depth] of a convolution's output."""
    batch, height, width, _ = c.x.dims
    if c.bias.dims != (depth,):
        raise op_failed(f"the bias has dimensions {list(c.bias.dims)}, not [{depth}]")
    rows, columns = pads_of(c)
    by_h, by_w = dilations(c)
    return (
        batch,
        windows(height, c.filter.dims[1], c.stride_h, rows, by_h),
        windows(width, c.filter.dims[2], c.stride_w, columns, by_w),
        depth,
    )


def patches(x: Array, c: Call) -> Array:
    """The windows of an image as a view, [batch, rows, columns, depth, window rows, window columns]; padding is 0."""
    rows, columns = pads_of(c)
    padded = np.pad(x, ((0, 0), rows, columns, (0, 0))) if any((*rows, *columns)) else x
    by_h, by_w = dilations(c)
    span = (c.filter.dims[1] - 1) * by_h + 1, (c.filter.dims[2] - 1) * by_w + 1
    view = sliding_window_view(padded, span, axis=(1, 2))
    return view[:, :: c.stride_h, :: c.stride_w, :, ::by_h, ::by_w]


def convolved(view: Array, filter: Array) -> Array:
    """Windows times filters, as one product of matrices."""
    batch, rows, columns = view.shape[:3]
    matrix = view.transpose(0, 1, 2, 4, 5, 3).reshape(batch * rows * columns, -1)
    return (matrix @ filter.reshape(filter.shape[0], -1).T).reshape(batch, rows, columns, -1)


def conv_2d_dims(c: Call) -> Dims:
    if c.x.dims[3] != c.filter.dims[3]:
        raise op_failed(f"the input has {c.x.dims[3]} channels, the filter {c.filter.dims[3]}")
    return image_dims(c, c.filter.dims[0])


@operation(
    "CONV_2D",
    f"x:T filter:W bias:bias {PADS} stride_w:i stride_h:i {TAIL}",
    f"x:T filter:W bias:bias padding:i stride_w:i stride_h:i {TAIL}",
    types=TYPES, infer=conv_2d_dims, checks=(*RANKS, per_channel(0), bias_scale), nchw=("x", "out"), zero_sized=True,
)  # fmt: skip
def conv_2d(c: Call) -> Array:
    x, filter = operands(c)
    return finished(c, convolved(patches(x, c), filter))


def grouped_dims(c: Call) -> Dims:
    depth, out_depth, group_depth = c.x.dims[3], c.filter.dims[0], c.filter.dims[3]
    if c.groups <= 0 or depth != group_depth * c.groups or out_depth % c.groups:
        raise op_failed(f"{depth} channels to {out_depth} in {c.groups} groups do not fit a filter of {group_depth}")
    return image_dims(c, out_depth)


@operation(
    "GROUPED_CONV_2D",
    f"x:T filter:W bias:bias {PADS} stride_w:i stride_h:i groups:i activation:i nchw:b",
    "x:T filter:W bias:bias padding:i stride_w:i stride_h:i groups:i activation:i nchw:b",
    level=3, types=TYPES, infer=grouped_dims, checks=(*RANKS, per_channel(0), bias_scale), nchw=("x", "out"),
)  # fmt: skip
def grouped_conv_2d(c: Call) -> Array:
    x, filter = operands(c)
    views = np.split(patches(x, c), c.groups, axis=3)
    sums = [convolved(view, part) for view, part in zip(views, np.split(filter, c.groups))]
    return finished(c, np.concatenate(sums, axis=3))


def depthwise_dims(c: Call) -> Dims:
    depth, out_depth = c.x.dims[3], c.filter.dims[3]
    if c.filter.dims[0] != 1 or out_depth != depth * c.multiplier:
        raise op_failed(
            f"a filter of {list(c.filter.dims)} does not fit {depth} channels, multiplied by {c.multiplier}"
        )
    return image_dims(c, out_depth)


@operation(
    "DEPTHWISE_CONV_2D",
    f"x:T filter:W bias:bias {PADS} stride_w:i stride_h:i multiplier:i {TAIL}",
    f"x:T filter:W bias:bias padding:i stride_w:i stride_h:i multiplier:i {TAIL}",
    types=TYPES, infer=depthwise_dims, checks=(*RANKS, per_channel(3), bias_scale), nchw=("x", "out"), zero_sized=True,
)  # fmt: skip
def depthwise_conv_2d(c: Call) -> Array:
    """The filter is [1, height, width, out]; output channel i reads input channel i // multiplier."""
    x, filter = operands(c)
    view = patches(np.repeat(x, c.multiplier, axis=3) if c.multiplier > 1 else x, c)
    acc = np.zeros(view.shape[:4], x.dtype)
    for row in range(filter.shape[1]):
        for column in range(filter.shape[2]):
            acc += view[..., row, column] * filter[0, row, column]
    return finished(c, acc)


def transpose_dims(c: Call) -> Dims:
    (batch, height, width, depth), (out_depth, window_h, window_w, in_depth) = c.x.dims, c.filter.dims
    if depth != in_depth or c.bias.dims != (out_depth,) or min(c.stride_h, c.stride_w) <= 0:
        raise op_failed(f"a filter of {list(c.filter.dims)} does not fit an input of {list(c.x.dims)}")
    if c.get("padding") is None:
        rows = height * c.stride_h + window_h - c.stride_h - c.pad_top - c.pad_bottom
        columns = width * c.stride_w + window_w - c.stride_w - c.pad_left - c.pad_right
        return batch, rows, columns, out_depth
    asked = c.shape.array.reshape(-1).tolist()
    if len(asked) != 4:
        raise op_failed(f"the output shape has {len(asked)} dimensions, not 4")
    dims = tuple(asked[axis] for axis in ((0, 2, 3, 1) if c.nchw else range(4)))
    if dims[0] != batch or dims[3] != out_depth or min(dims) <= 0:
        raise op_failed(f"the output shape {asked} does not fit a batch of {batch} with {out_depth} channels")
    return dims


def transpose_heads(c: Call) -> tuple[int, int]:
    """How many rows and columns are cut off in front."""
    if c.get("padding") is None:
        return c.pad_top, c.pad_left
    same = paddings(c, c.out.dims[1:3], c.filter.dims[1:3])
    return same[0][0], same[1][0]


@operation(
    "TRANSPOSE_CONV_2D",
    f"x:T filter:W bias:bias {PADS} stride_w:i stride_h:i activation:i nchw:b",
    "x:T filter:W bias:bias shape:I padding:i stride_w:i stride_h:i activation:i nchw:b",
    level=3, types=TYPES, infer=transpose_dims, checks=(*RANKS, per_channel(0), bias_scale), nchw=("x", "out"),
    zero_sized=True,
)  # fmt: skip
def transpose_conv_2d(c: Call) -> Array:
    """Every input cell adds its multiple of the filter to the output, `stride` cells apart."""
    x, filter = operands(c)
    batch, height, width, depth = x.shape
    out_depth, window_h, window_w, _ = filter.shape
    _, rows, columns, _ = c.out.dims
    top, left = transpose_heads(c)
    parts = (x.reshape(-1, depth) @ filter.reshape(-1, depth).T).reshape(
        batch, height, width, out_depth, window_h, window_w
    )
    full_h = max((height - 1) * c.stride_h + window_h, top + rows)
    full_w = max((width - 1) * c.stride_w + window_w, left + columns)
    full = np.zeros((batch, full_h, full_w, out_depth), x.dtype)
    for row in range(window_h):
        for column in range(window_w):
            down = slice(row, row + (height - 1) * c.stride_h + 1, c.stride_h)
            across = slice(column, column + (width - 1) * c.stride_w + 1, c.stride_w)
            full[:, down, across] += parts[..., row, column]
    return finished(c, full[:, top : top + rows, left : left + columns])
