"""Sums of two quantized tensors on centered values, by float32 arithmetic that gives the same results as the definition."""

from __future__ import annotations

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
