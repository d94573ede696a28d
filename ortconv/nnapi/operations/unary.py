"""Functions of one element: activations and elementary functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FuseCode
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.operations.arithmetic import activate, activation_limits, by_table, quantize, shift_right
from ortconv.nnapi.operations.checks import KEPT, SMALL, output_quantization
from ortconv.nnapi.operations.fixed_point import LONG, SHORT, multiplier_16, rescaled
from ortconv.nnapi.operations.shapes import elementwise, like_x
from ortconv.nnapi.operations.table import OperationCall, operation

INTEGER_BITS = 4  # of quantized inputs of LOGISTIC and TANH, as 32-bit fixed point

FUNCTIONS: tuple[tuple[str, int, str, Callable[[Array], Array]], ...] = (
    ("ABS", 3, "F H I@4", np.abs),
    ("EXP", 3, "F H", np.exp),
    ("FLOOR", 1, "F H@3", np.floor),
    ("LOG", 3, "F H", np.log),
    ("LOGICAL_NOT", 3, "B", np.logical_not),
    ("NEG", 3, "F H I", np.negative),
    ("SIN", 3, "F H", np.sin),
    ("SQRT", 3, "F H", np.sqrt),
)

for _name, _level, _types, _function in FUNCTIONS:
    _checks = (SMALL,) if _name == "FLOOR" else ()
    operation(_name, "x:T", level=_level, types=_types, infer=like_x, checks=_checks, recorded=("x",))(
        lambda c, f=_function: elementwise(c, f, c.x.array)  # type: ignore[misc]
    )


@operation("RSQRT", "x:T", level=3, types="F H Q@7 S@7", infer=like_x)
def rsqrt(c: OperationCall) -> Array:
    """If quantized, the result is the largest element for x that is not positive."""
    if not c.out.is_quantized:
        return 1 / np.sqrt(c.x.array)
    real = np.where(c.x.centered > 0, 1 / np.sqrt(np.maximum(c.x.real, np.float32(c.x.scale))), np.inf)
    return quantize(real, c.out)


activation = partial(operation, infer=like_x, checks=(SMALL,), zero_sized=True, recorded=("x",))


def _limited(c: OperationCall, code: FuseCode) -> Array:
    if not c.out.is_quantized:
        return activate(c.work.copied(c.x.array), code, c.work)
    low, high = map(c.out.type.dtype.type, activation_limits(code, c.out))
    return elementwise(c, np.clip, c.x.array, low, high)


for _code in (FuseCode.RELU, FuseCode.RELU1, FuseCode.RELU6):
    activation(_code.name, "x:T", types="F Q H@3 S@4", quantization=(KEPT,))(partial(_limited, code=_code))


def _in_fixed_point(x: Tensor, out: OperandType, function: Callable[[Array, int], Array], fraction_bits: int) -> Array:
    """A function in 32-bit fixed point with 4 integer bits. Beyond the last input that fits, the output is the smallest
    or largest element; for input scales of 8 and more, that is every input.
    """
    low, high = out.limits
    centered = x.centered
    fixed, radius = rescaled(centered, x.scale, INTEGER_BITS)
    y = out.zero_point + shift_right(function(fixed, INTEGER_BITS), LONG.bits - 1 - fraction_bits)
    limited = np.clip(np.where(centered <= -radius, low, np.where(centered >= radius, high, y)), low, high)
    return np.asarray(limited, out.type.dtype)


def sigmoid(x: Array, work: Work = AT_ONCE) -> Array:
    y = work.like(x)
    work.do(np.negative, x, y)
    work.do(np.exp, y, y)
    work.do(np.add, y, 1, y)
    work.do(np.divide, 1, y, y)
    return y


@activation("LOGISTIC", "x:T", types="F Q H@3 S@4", quantization=(output_quantization(1 / 256, 0, -128),))
def logistic(c: OperationCall) -> Array:
    if not c.out.is_quantized:
        return sigmoid(c.x.array, c.work)
    return tabulated(c, lambda x: _in_fixed_point(x, c.out, LONG.sigmoid, 8))


@activation("TANH", "x:T", types="F Q@3 H@3 S@4", quantization=(output_quantization(1 / 128, 128, 0),))
def tanh(c: OperationCall) -> Array:
    if not c.out.is_quantized:
        return elementwise(c, np.tanh, c.x.array)
    return tabulated(c, lambda x: _in_fixed_point(x, c.out, LONG.tanh, 7))


@operation("ELU", "x:T alpha:f", level=4, types="F H", infer=like_x, recorded=("x",))
def elu(c: OperationCall) -> Array:
    """max(0, x) + min(0, alpha * (exp(x) - 1)), for a negative alpha too."""
    return c.work.call(lambda x: np.fmax(x, 0) + np.fmin(c.alpha * np.expm1(x), 0), c.x.array)


@operation("HARD_SWISH", "x:T", level=4, types="F H Q S", infer=like_x, zero_sized=True, recorded=("x",))
def hard_swish(c: OperationCall) -> Array:
    """x * relu6(x + 3) / 6"""
    if c.out.is_quantized:
        return tabulated(c, lambda x: _quantized_hard_swish(x, c.out))
    y = elementwise(c, np.add, c.x.array, f32(3))
    c.work.do(clip_to, y, f32(0), f32(6), y)
    c.work.do(np.multiply, c.x.array, y, y)
    c.work.do(np.divide, y, f32(6), y)
    return y


def tabulated(c: OperationCall, function: Callable[[Tensor], Array]) -> Array:
    """An elementwise function of x. For 8-bit types it is computed once for each possible element."""
    return c.work.call(partial(by_table, c.x, function))


def _quantized_hard_swish(x: Tensor, out: OperandType) -> Array:
    """In 16-bit fixed point: elements with 7 more bits, times relu6(x + 3) / 6 rescaled to 15 bits."""
    fine_scale = np.float32(x.scale) / np.float32(128)
    fine = x.centered.astype(np.int64) << 7
    to_output, output_shift = multiplier_16(float(fine_scale / np.float32(out.scale)))
    to_reluish, reluish_shift = multiplier_16(float(fine_scale / np.float32(3 / 32768)))
    reluish = fine
    if reluish_shift > 0:
        reluish = SHORT.limited(reluish << (reluish_shift - 1))
    reluish = SHORT.times(reluish, to_reluish)
    if reluish_shift > 0:
        reluish = SHORT.limited(reluish << 1)
    elif reluish_shift < 0:
        reluish = shift_right(reluish, -reluish_shift)
    reluish = (reluish + (1 << 15)) >> 1
    y = (reluish * SHORT.times(fine, to_output)) // (1 << 15)
    y = shift_right(y, -output_shift) if output_shift <= 0 else y << output_shift
    return np.asarray(np.clip(y + out.zero_point, *out.limits), out.type.dtype)
