"""Quantized operators on centered values: 8-bit values minus their zero point, stored as float32.

The functions of this module accept centered values and return them in a new array. Float32 sums of such products are
exact up to `EXACT_SUM`.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.blockwise import blockwise
from ortconv.executor.algorithms.gemm_exact import IntegerWeights
from ortconv.executor.algorithms.rounding import quantize_centered
from ortconv.executor.fusion.elementwise_ops import Code, Temporary
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array

Limits = tuple[Array, Array]
"""The lowest and the highest centered value."""


class Quantization(NamedTuple):
    """The quantization of an 8-bit tensor; scale and zero point are scalars."""

    scale: Array
    zero_point: Array

    @property
    def is_sound(self) -> bool:
        """True for bytes with a finite, positive scale of float32."""
        has_types = self.scale.dtype == np.float32 and self.zero_point.dtype in (np.uint8, np.int8)
        return has_types and 0 < self.scale.item() < inf

    @property
    def limits(self) -> Limits:
        info = np.iinfo(self.zero_point.dtype)
        return f32(info.min - int(self.zero_point)), f32(info.max - int(self.zero_point))

    @property
    def to_bytes(self) -> Function:
        """The quantized values of centered values."""
        zero = f32(self.zero_point)
        return blockwise(lambda part, out: np.add(part, zero, out, casting="unsafe"), self.zero_point.dtype)

    @property
    def quantize(self) -> Function:
        """Function from float32 to centered values, as QuantizeLinear computes them. NaN becomes the lowest."""
        (low, high), scale = self.limits, self.scale
        return blockwise(lambda part, out: quantize_centered(part, scale, low, high, out))

    @property
    def dequantize(self) -> Function:
        """The float32 numbers of centered values."""
        scale, zero = self.scale, f32(0)  # quantized values have no negative zero
        return blockwise(lambda part, out: np.add(np.multiply(part, scale, out), zero, out))


def rounded(sums: Function, bias: Array | None, factor: Array, limits: Limits) -> Function:
    """rint((sums + bias) * factor) within limits, in the memory of the sums. Bias and factor broadcast to the sums."""
    given, code = Temporary(), Code()
    made = given if bias is None or not bias.any() else code.add(np.add, given, f32(bias))
    code.add(clip_to, code.add(np.rint, code.add(np.multiply, made, f32(factor))), *limits)
    program = BlockProgram(code.instructions, given, ())

    def run(work: Work, x: Array) -> Array | None:
        y: Array | None = work.call(sums, x)
        return program.run(work, y, ()) if y is not None and y.size else y

    return recordable(run)


def nhwc_form(function: Function) -> Function:
    """A function of a channels-first image as a function of a channels-last image, whose result is also channels-last."""
    return recordable(lambda work, x: np.moveaxis(work.call(function, np.moveaxis(x, -1, 1)), 1, -1))


def matrix_product(w: Array) -> Function:
    """A function of centered values (..., K) that multiplies by integer weights (K, N)."""
    weights = IntegerWeights(w)

    def run(work: Work, x: Array) -> Array:
        if x.shape[-1] != len(w):
            raise GraphError(f"the weights have {len(w)} rows, the input is {list(x.shape)}")
        return weights.multiply(work, x)

    return recordable(run)


def qlinear_sum(p: Quantization, q: Quantization, y: Quantization) -> Function:
    """QLinearAdd of centered values, which broadcast: two fused multiply-adds, that of the second operand first. float64
    represents their products exactly.
    """
    zero_a, zero_b, zero_y = (f32(v.zero_point) for v in (p, q, y))
    ratio_a, ratio_b = (f32(v.scale / y.scale) for v in (p, q))
    offset = np.asarray(zero_y - (ratio_a * zero_a + ratio_b * zero_b), np.float64)
    wide_a, wide_b, limits = ratio_a.astype(np.float64), ratio_b.astype(np.float64), y.limits

    def block(a: Array, b: Array, out: Array) -> None:
        addend = ((b + zero_b) * wide_b + offset).astype(np.float32)
        np.copyto(out, (a + zero_a) * wide_a + addend, "same_kind")
        clip_to(np.rint(out) - zero_y, *limits, out)

    add = blockwise(block)
    return recordable(lambda work, a, b: work.call(add, *np.broadcast_arrays(a, b)))
