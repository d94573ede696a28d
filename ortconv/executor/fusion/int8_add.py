"""Sums of two quantized tensors on centered values, by float32 arithmetic that gives the same results as the definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK
from ortconv.executor.fusion.int8_ops import Quantization
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import Function, Work, recordable, spans
from ortconv.ir.tensor import Array

Sum = Callable[[Array, Array], Array]
"""Of the centered values of two arrays: their sum, rounded and not yet limited."""

_NEARBY = 4
"""So many float32 numbers to either side of a ratio are tried as factors."""


def qlinear_sum(p: Quantization, q: Quantization, y: Quantization) -> Sum:
    """QLinearAdd: two fused multiply-adds, of which the one of the second operand comes first."""
    ratio_a, ratio_b = _ratios(p, q, y)
    zero_a, zero_b, zero_y = (f32(v.zero_point) for v in (p, q, y))
    offset = np.asarray(zero_y - (ratio_a * zero_a + ratio_b * zero_b), np.float64)
    # By centered code, where negative ones are found from the end.
    codes = np.concatenate([np.arange(256.0), np.arange(-256.0, 0)])
    of_a = (codes + zero_a) * ratio_a
    of_b = ((codes + zero_b) * ratio_b + offset).astype(np.float32)
    return lambda a, b: np.rint((of_a[a.astype(np.intp)] + of_b[b.astype(np.intp)]).astype(np.float32)) - zero_y


def dequantized_sum(p: Quantization, q: Quantization, y: Quantization) -> Sum:
    """Add between DequantizeLinear and QuantizeLinear."""
    return lambda a, b: np.rint((a * p.scale + b * q.scale) / y.scale)


def factors(total: Sum, p: Quantization, q: Quantization, y: Quantization) -> tuple[Array, Array] | None:
    """Two numbers for which rint(a * first + b * second) in float32 is, within the limits of y, the total of all values a and b.

    They are the ratios of the scales or close to them. None where there are none.
    """
    near = _near_half(p, q, y, 2.0**-20)
    if not near > 0:
        return None
    first, second = _ratios(p, q, y)
    a, b = (v.limits[0] + np.arange(256, dtype=np.float32) for v in (p, q))
    sums = np.add.outer(a * first, b * second)
    rows, columns = (abs(sums - np.rint(sums)) > near).nonzero()
    a, b = a[rows], b[columns]
    expected = total(a, b).clip(*y.limits)
    steps = np.array(sorted(range(-_NEARBY, _NEARBY + 1), key=abs), np.float32)
    seconds = second + steps * np.spacing(second)
    for one in first + steps * np.spacing(first):
        found = np.rint(a * one + b * seconds[:, None]).clip(*y.limits)
        (right,) = (found == expected).all(axis=1).nonzero()
        if right.size:
            return f32(one), f32(seconds[right[0]])
    return None


def _ratios(p: Quantization, q: Quantization, y: Quantization) -> tuple[Array, Array]:
    return f32(p.scale / y.scale), f32(q.scale / y.scale)


def _near_half(p: Quantization, q: Quantization, y: Quantization, error: float) -> float:
    """How far from an integer sums are that all ways to compute them round to that. The error is relative to the largest number
    on the way: eight roundings, and twice that with factors nearby.
    """
    largest = 512 * sum(_ratios(p, q, y)) + abs(f32(y.zero_point)) + 1
    return float(0.5 - error * largest)


def exact_sum(total: Sum, p: Quantization, q: Quantization, y: Quantization) -> Function:
    """The function of centered values, which broadcast, that makes their total. It asks for that only near a half."""
    ratio_a, ratio_b = _ratios(p, q, y)
    near, limits = f32(_near_half(p, q, y, 2.0**-21)), y.limits

    def fall_back(is_near: Array, a: Array, b: Array, out: Array) -> None:
        (at,) = is_near.nonzero()
        if at.size:
            out[at] = total(a[at], b[at]).clip(*limits)

    def run(work: Work, a: Array, b: Array) -> Array:
        shape = np.broadcast_shapes(a.shape, b.shape)
        a, b = (
            v if v.shape == shape else work.arranged(lambda v: np.array(np.broadcast_to(v, shape)), v) for v in (a, b)
        )
        out = work.like(a)
        order = sorted(range(a.ndim), key=lambda axis: -out.strides[axis])
        flat = [work.contiguous(v.transpose(order)).reshape(-1) for v in (a, b)] + [out.transpose(order).reshape(-1)]
        is_near = work.empty((out.size,), np.bool_)
        if parts := spans(out.size, BLOCK):
            held = work.empty((parts[0].stop - parts[0].start,))
            for part in parts:
                c, d, made = (v[part] for v in flat)
                sums = held[: made.size]
                work.do(np.multiply, c, ratio_a, sums)
                work.do(np.multiply, d, ratio_b, made)
                work.do(np.add, sums, made, sums)
                work.do(np.rint, sums, made)
                work.do(np.subtract, sums, made, sums)
                work.do(np.abs, sums, sums)
                work.do(np.greater, sums, near, is_near[part])
                work.do(clip_to, made, *limits, made)
        work.do(fall_back, is_near, *flat)
        return out

    return recordable(run)
