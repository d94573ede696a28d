"""Sums of two quantized tensors on centered values, by float32 arithmetic that gives the same results as the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.fusion.elementwise_ops import Clip, Instruction, Literal, Temporary
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.fusion.int8_ops import Limits, Quantization
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.tensor import Array

Sum = Callable[[Array, Array], Array]
"""Function of the centered values of two arrays: their sum, rounded and not yet clamped."""


def dequantized_sum(first: Array, second: Array, divisor: Array, limits: Limits) -> Function:
    """Add between DequantizeLinear and QuantizeLinear: rint((a * first + b * second) / divisor) within limits."""
    a, b, scaled_a, scaled_b, total, ratio, rounded, made = (Temporary() for _ in range(8))
    program = BlockProgram(
        [
            Instruction(np.multiply, (a, Literal(first)), scaled_a),
            Instruction(np.multiply, (b, Literal(second)), scaled_b),
            Instruction(np.add, (scaled_a, scaled_b), total),
            Instruction(np.divide, (total, Literal(divisor)), ratio),
            Instruction(np.rint, (ratio,), rounded),
            Instruction(Clip(*limits), (rounded,), made),
        ],
        None,
        (a, b),
    )

    def run(work: Work, *operands: Array) -> Any:
        y = program.run(work, None, operands)
        return work.call(laid_out_alike, *operands) if y is None else y

    def laid_out_alike(*operands: Array) -> Any:
        alike = [np.ascontiguousarray(v) for v in np.broadcast_arrays(*operands)]
        return program.run(AT_ONCE, None, alike) if alike[0].size else alike[0]

    return recordable(run)


def qlinear_sum(p: Quantization, q: Quantization, y: Quantization) -> Function:
    """QLinearAdd of centered values, which broadcast. The exact sum is computed only near a half."""
    ratio_a, ratio_b = _ratios(p, q, y)
    near, limits, total = f32(_near_half(p, q, y)), y.limits, exact_sum(p, q, y)

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


def exact_sum(p: Quantization, q: Quantization, y: Quantization) -> Sum:
    """QLinearAdd by definition: two fused multiply-adds, that of the second operand first."""
    ratio_a, ratio_b = _ratios(p, q, y)
    zero_a, zero_b, zero_y = (f32(v.zero_point) for v in (p, q, y))
    offset = np.asarray(zero_y - (ratio_a * zero_a + ratio_b * zero_b), np.float64)
    # By centered value, where negative ones are found from the end.
    codes = np.concatenate([np.arange(256.0), np.arange(-256.0, 0)])
    of_a = (codes + zero_a) * ratio_a
    of_b = ((codes + zero_b) * ratio_b + offset).astype(np.float32)
    return lambda a, b: np.rint((of_a[a.astype(np.intp)] + of_b[b.astype(np.intp)]).astype(np.float32)) - zero_y


def _ratios(p: Quantization, q: Quantization, y: Quantization) -> tuple[Array, Array]:
    return f32(p.scale / y.scale), f32(q.scale / y.scale)


def _near_half(p: Quantization, q: Quantization, y: Quantization) -> float:
    """The distance from an integer up to which all ways to compute a sum round to the same integer: eight roundings of
    the largest number.
    """
    largest = 512 * sum(_ratios(p, q, y)) + abs(f32(y.zero_point)) + 1
    return float(0.5 - 2.0**-21 * largest)
