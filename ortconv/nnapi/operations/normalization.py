"""Normalizations and softmax."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.arithmetic import multiply, shift_right
from ortconv.nnapi.operations.checks import SMALL, other_rank_needs_level_3, output_quantization, rank
from ortconv.nnapi.operations.fixed_point import LONG, inverse_root, rescaled
from ortconv.nnapi.operations.shapes import axis_of, like_x
from ortconv.nnapi.operations.table import OperationCall, operation


def along(c: OperationCall) -> int:
    return axis_of(c.axis, c.x.rank)


@operation(
    "L2_NORMALIZATION", "x:T [axis:i=-1 @3]", types="F H@3 Q@3 S@4", infer=like_x,
    checks=(SMALL, other_rank_needs_level_3(4)), quantization=(output_quantization(1 / 128, 128, 0),),
)  # fmt: skip
def l2_normalization(c: OperationCall) -> Array:
    """Rows divided by the root of their sum of squares; zeros if that is zero."""
    x = c.x.centered.astype(np.int64) if c.x.is_quantized else c.x.array
    squares = np.sum(np.square(x), axis=along(c), keepdims=True)
    if not c.out.is_quantized:
        return x / np.maximum(np.sqrt(squares), np.float32(1e-6))
    return np.clip(multiply(128 * x, *inverse_root(squares)) + c.out.zero_point, *c.out.limits)


@operation(
    "LOCAL_RESPONSE_NORMALIZATION", "x:T radius:i bias:f alpha:f beta:f [axis:i=-1 @3]", types="F H@3", infer=like_x,
    checks=(SMALL, other_rank_needs_level_3(4)),
)  # fmt: skip
def local_response_normalization(c: OperationCall) -> Array:
    """x * (bias + alpha * sum of squares of the neighbors within the radius) ** -beta"""
    if c.radius < 0:
        raise op_failed(f"the radius {c.radius} is negative")
    axis = along(c)
    x = np.moveaxis(c.x.array, axis, -1)
    padded = np.pad(np.square(x), [(0, 0)] * (x.ndim - 1) + [(c.radius, c.radius)])
    sums = np.lib.stride_tricks.sliding_window_view(padded, 2 * c.radius + 1, axis=-1).sum(axis=-1)
    return np.moveaxis(x * np.power(c.bias + c.alpha * sums, -np.float32(c.beta)), -1, axis)


@operation(
    "INSTANCE_NORMALIZATION", "x:T gamma:f beta:f epsilon:f nchw:b", level=3, types="F H", infer=like_x,
    checks=(rank("x", 4),), nchw=("x", "out"), native_half=True,
)  # fmt: skip
def instance_normalization(c: OperationCall) -> Array:
    """Each image and channel normalized by its own mean and variance, in the type of the input."""
    x = c.x.array
    centered = x - x.mean(axis=(1, 2), keepdims=True)
    variance = np.square(centered).mean(axis=(1, 2), keepdims=True)
    return c.gamma * centered / np.sqrt(variance + x.dtype.type(c.epsilon)) + c.beta


@operation(
    "SOFTMAX", "x:T beta:f [axis:i=-1 @3]", types="F Q H@3 S@4", infer=like_x, zero_sized=True,
    checks=(SMALL, other_rank_needs_level_3(2, 4)), quantization=(output_quantization(1 / 256, 0, -128),), recorded=("x",),
)  # fmt: skip
def softmax(c: OperationCall) -> Array:
    if c.beta <= 0:
        raise op_failed(f"beta must be positive, not {c.beta:g}")
    axis, x = along(c), c.x.array
    if not x.size:
        return x
    if c.out.is_quantized:
        return c.anew(partial(_quantized_softmax, axis=axis))
    one_each = [1 if i == axis else dim for i, dim in enumerate(x.shape)]
    edge, y = c.work.empty(one_each, x.dtype), c.work.empty(x.shape, x.dtype)
    c.work.do(np.maximum.reduce, x, axis, None, edge, True)
    c.work.do(np.subtract, x, edge, y)
    c.work.do(np.multiply, y, c.beta, y)
    c.work.do(np.exp, y, y)
    c.work.do(np.add.reduce, y, axis, None, edge, True)
    c.work.do(np.divide, y, edge, y)
    return y


def _quantized_softmax(c: OperationCall, axis: int) -> Array:
    """Softmax in 32-bit fixed point. Differences from the largest element have 5 integer bits, the sum of their
    exponentials 12. The sum is normalized by a shift to a number from 1 to 2 for the reciprocal. Exponentials that do
    not fit are 0.
    """
    x = c.x.centered
    x = x - x.max(axis=axis, keepdims=True)
    table, radius = rescaled(-np.arange(256), min(float(c.beta) * c.x.scale, 32.0 - 2.0**-26), 5)
    powers = np.where(x < -radius, 0, LONG.exp_of_negative(table, 5)[-x])
    sums = np.sum(shift_right(powers, 12), axis=axis, keepdims=True) & 0xFFFFFFFF
    over = np.floor(np.log2(sums)).astype(np.int64) - 19
    inverse = LONG.reciprocal((sums << (12 - over)) - (1 << 31))
    y = shift_right(LONG.times(inverse, powers), over + 31 - 8)
    return np.clip(y + c.out.zero_point, *c.out.limits)


@operation("LOG_SOFTMAX", "x:T beta:f axis:i", level=3, types="F H", infer=like_x)
def log_softmax(c: OperationCall) -> Array:
    axis = along(c)
    x = (c.x.array - c.x.array.max(axis=axis, keepdims=True)) * c.beta
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))
