"""Quantized operators on centered values: 8-bit values minus their zero point, stored as float32.

The functions of this module accept centered values and return them in a new array. Float32 sums of such products are
exact up to `EXACT_SUM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms import conv
from ortconv.executor.algorithms.blockwise import BLOCK, SHORTEST_ROW, blockwise
from ortconv.executor.algorithms.gemm_int8 import IntegerWeights
from ortconv.executor.algorithms.rounding import quantize_centered
from ortconv.executor.algorithms.sliding_window import channels_first, channels_last
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.algorithms.winograd import Check, are_finite
from ortconv.executor.algorithms.winograd_int8 import ExactSums
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import Finish, Function, Work, recordable
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
        return has_types and bool(np.isfinite(self.scale) and self.scale > 0)

    @property
    def limits(self) -> Limits:
        info = np.iinfo(self.zero_point.dtype)
        return f32(info.min - int(self.zero_point)), f32(info.max - int(self.zero_point))

    @property
    def to_bytes(self) -> Function:
        """The quantized values of centered values."""
        zero = f32(self.zero_point)

        def run(work: Work, part: Array, out: Array) -> None:
            codes = work.like(part)
            work.do(np.add, part, zero, codes)
            work.do(np.copyto, out, codes, "unsafe")

        return blockwise(recordable(run), self.zero_point.dtype)

    @property
    def quantize(self) -> Function:
        """Function from float32 to centered values, as QuantizeLinear computes them. NaN becomes the lowest."""
        (low, high), scale = self.limits, self.scale

        def run(work: Work, part: Array, out: Array) -> None:
            work.do(quantize_centered, part, scale, low, high, out)

        return blockwise(recordable(run))

    @property
    def dequantize(self) -> Function:
        """The float32 numbers of centered values."""
        scale = self.scale

        def run(work: Work, part: Array, out: Array) -> None:
            work.do(np.multiply, part, scale, out)
            work.do(np.add, out, _ZERO, out)  # quantized values have no negative zero

        return blockwise(recordable(run))


_ZERO = f32(0)


class Rounding:
    """rint((sums + bias) * factor) within limits, in place. Bias and factor have one number, or one per channel."""

    def __init__(self, bias: Array | None, factor: Array, limits: Limits, channels: int) -> None:
        repeats = max(1, SHORTEST_ROW // max(1, channels))
        self._width = max(1, repeats * channels)
        self._bias = None if bias is None or not bias.any() else np.tile(f32(bias).reshape(-1), repeats)
        self._factor = f32(factor).reshape(()) if factor.size == 1 else np.tile(f32(factor).reshape(-1), repeats)
        self._limits = limits

    def __call__(self, work: Work, sums: Array) -> None:
        flat, width = sums.reshape(-1), self._width
        if parts := spans(-(-flat.size // width), max(1, BLOCK // width)):
            for part in parts:
                y = flat[part.start * width : part.stop * width]
                even = y.size // width * width
                if even:
                    self._by_channel(work, y[:even].reshape(-1, width), width)
                if even < y.size:
                    self._by_channel(work, y[even:], y.size - even)
                if not self._factor.ndim:
                    work.do(np.multiply, y, self._factor, y)
                work.do(np.rint, y, y)
                work.do(clip_to, y, *self._limits, y)

    def _by_channel(self, work: Work, y: Array, width: int) -> None:
        if self._bias is not None:
            work.do(np.add, y, self._bias[:width], y)
        if self._factor.ndim:
            work.do(np.multiply, y, self._factor[:width], y)


def convolution(w: Array, group: int, geometry: Mapping[str, Any], finish: Finish, is_exact: bool) -> Function:
    """A function of a centered image that convolves with integer weights (M, C / group, kernel...) and finishes the sums.

    `is_exact` demands that every sum is exact.
    """
    sums = cache(lambda: ExactSums(w))
    check: Check = (lambda work, x: sums()(work, x)) if is_exact else are_finite
    convolve = conv.convolution(w, group, geometry, check)

    def run(work: Work, x: Array) -> Array:
        y = channels_last(work.call(convolve, x), work)
        finish(work, y)
        return channels_first(y)

    return recordable(run)


def channels_last_form(function: Function) -> Function:
    """A function of a channels-first image as a function of a channels-last image, whose result is also channels-last."""
    return recordable(lambda work, x: np.moveaxis(work.call(function, np.moveaxis(x, -1, 1)), 1, -1))


def matrix_product(w: Array, finish: Finish) -> Function:
    """A function of centered values (..., K) that multiplies by integer weights (K, N) and then calls `finish`."""
    weights = cache(lambda: IntegerWeights(w))
    depth, columns = w.shape

    def run(work: Work, x: Array) -> Array:
        if x.shape[-1] != depth:
            raise GraphError(f"the weights have {depth} rows, the input is {list(x.shape)}")
        out = work.empty((*x.shape[:-1], columns))
        rows, size = work.contiguous(x), prod(x.shape[:-1])
        weights().multiply(rows.reshape(size, depth), out.reshape(size, columns), finish, work)
        return out

    return recordable(run)


def qlinear_sum(p: Quantization, q: Quantization, y: Quantization) -> Function:
    """QLinearAdd of centered values, which broadcast: two fused multiply-adds, that of the second operand first. float64
    represents their products exactly.
    """
    zero_a, zero_b, zero_y = (f32(v.zero_point) for v in (p, q, y))
    ratio_a, ratio_b = (f32(v.scale / y.scale) for v in (p, q))
    offset = np.asarray(zero_y - (ratio_a * zero_a + ratio_b * zero_b), np.float64)
    wide_a, wide_b, limits = ratio_a.astype(np.float64), ratio_b.astype(np.float64), y.limits

    def run(work: Work, a: Array, b: Array) -> Array:
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = (
            v if v.shape == shape else work.arranged(lambda v: np.array(np.broadcast_to(v, shape)), v) for v in (a, b)
        )
        out = work.like(a)
        order = sorted(range(a.ndim), key=lambda axis: -out.strides[axis])
        flat = [work.contiguous(v.transpose(order)).reshape(-1) for v in (a, b)] + [out.transpose(order).reshape(-1)]
        if parts := spans(out.size, BLOCK):
            longest = parts[0].stop - parts[0].start
            held, addends = work.empty((longest,), np.float64), work.empty((longest,))
            for part in parts:
                c, d, made = (v[part] for v in flat)
                wide, addend = held[: made.size], addends[: made.size]
                work.do(np.add, d, zero_b, wide)
                work.do(np.multiply, wide, wide_b, wide)
                work.do(np.add, wide, offset, wide)
                work.do(np.copyto, addend, wide, "same_kind")
                work.do(np.add, c, zero_a, wide)
                work.do(np.multiply, wide, wide_a, wide)
                work.do(np.add, wide, addend, wide)
                work.do(np.copyto, made, wide, "same_kind")
                work.do(np.rint, made, made)
                work.do(np.subtract, made, zero_y, made)
                work.do(clip_to, made, *limits, made)
        return out

    return recordable(run)
