"""Exact products of integers in float32. If float32 cannot represent every sum, the product is computed in parts.

Constant weights stay integers and are widened part by part. Widening a part just before its product costs less than reading four
times the bytes from memory. Small matrices, which stay in a cache, are widened once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from math import inf, prod
from typing import Any

import numpy as np

from ortconv.executor.algorithms.gemm import Matrix, contiguous
from ortconv.executor.algorithms.rounding import dynamic_centered
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.tensor import Array

EXACT_SUM = float(1 << 24)
"""Integers up to this magnitude are exact in float32."""

INPUT_REACH = 255
"""The largest distance of an 8-bit value from its zero point."""

_WIDENED_BYTES = 256 << 10
"""Bytes that are widened at once. They stay in the second cache level."""

_LARGEST_WIDE = 1 << 18
"""Number of elements up to which a matrix is kept as float32."""


def centered(x: Array, zero_point: Array | None) -> Array:
    """Integers minus their zero point, as float32. The zero point must broadcast."""
    x = x.astype(np.float32)
    if zero_point is not None and zero_point.any():
        x -= zero_point.astype(np.float32)
    return x


def less_zero_point(q: Array, zero_point: Array | None) -> Array:
    """8-bit integers minus their zero point, which must broadcast, in the smallest type that can represent them."""
    if zero_point is None or not zero_point.any():
        return q
    return np.subtract(q, zero_point, dtype=np.int16)


class IntegerWeights(Matrix):
    """A constant matrix (K, N) of 8- or 16-bit integers, for products with float32."""

    @cached_property
    def whole(self) -> Array:
        return contiguous(self._w.astype(np.float32) if self._w.size <= _LARGEST_WIDE else self._w)

    def write(self, x: Array, out: Array, work: Work = AT_ONCE) -> None:
        if self.whole.dtype == np.float32:
            work.do(np.matmul, x, self.whole, out)
            return
        depth, columns = self.whole.shape
        parts = spans(columns, _WIDENED_BYTES // (4 * depth))
        with work.scratch():
            memory = work.empty((depth, parts[0].stop - parts[0].start))
            for part in parts:
                held = memory[:, : part.stop - part.start]
                work.do(np.copyto, held, self.whole[:, part])
                work.do(np.matmul, x, held, out[..., part])


def integer_sums(b: Array, b_zero_point: Array | None) -> Function:
    """MatMulInteger with constant weights (K, N): integers, as float32 if it can represent every sum, else as int32.

    float32 operands are centered values.
    """
    weights = less_zero_point(b, b_zero_point)
    parts = [(k, IntegerWeights(weights[k])) for k in exact_parts(weights.T) or ()]

    def run(work: Work, a: Array, a_zero_point: Array | None) -> Array:
        zero = None if a_zero_point is None else per_row(a_zero_point, a)
        x = a if a.dtype == np.float32 else work.arranged(partial(centered, zero_point=zero), a)
        if len(parts) == 1:
            return parts[0][1].multiply(work, x)
        total = work.empty((*x.shape[:-1], weights.shape[1]), np.int32)
        work.do(total.fill, 0)
        for k, part in parts:
            work.do(partial(np.add, casting="unsafe"), total, part.multiply(work, x[..., k]), total)
        return total

    return recordable(run)


def exact_parts(weights: Array, most: float = inf) -> list[slice] | None:
    """Slices of the inputs of weights (outputs, inputs, ...), such that float32 can represent the sums of each part for any
    8-bit values and zero points. None if that needs more than `most` parts.
    """
    parts, count = [slice(None)], 1
    if weights.dtype.itemsize == 1 and INPUT_REACH**2 * prod(weights.shape[1:]) <= EXACT_SUM:
        return parts
    while count <= most:
        if all(INPUT_REACH * one_sided(weights[:, k]) <= EXACT_SUM for k in parts):
            return parts
        count *= 2
        parts = spans(weights.shape[1], -(-weights.shape[1] // count))
    return None


def one_sided(weights: Array) -> float:
    """The largest sum of weights of one sign, over the outputs of integer weights (outputs, ...). A sum of products is at most
    `INPUT_REACH` times as large. Where float32 rounds these sums, they are far beyond the limit.
    """
    weights, axes = weights.astype(np.float32, copy=False), tuple(range(1, weights.ndim))
    return float((np.abs(weights).sum(axis=axes) + np.abs(weights.sum(axis=axes))).max(initial=0)) / 2


def per_row(v: Array, a: Array) -> Array:
    """One number, or numbers per row of a, shaped to broadcast against a."""
    return v[:, None] if v.ndim == 1 < min(v.size, a.ndim) else v.reshape(()) if v.size == 1 else v


def per_column(v: Array, b: Array) -> Array:
    """Numbers per column, (N,), or per column of each matrix, (batch..., N), shaped to broadcast against b."""
    return v[..., None, :] if 1 < v.ndim == b.ndim - 1 else v.reshape(()) if v.size == 1 else v


def exact_sums(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    """MatMulInteger, zero points per row of a and per column of b. float64 holds every sum of products of bytes."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    if a_zero_point is not None:
        x -= per_row(a_zero_point, a)
    if b_zero_point is not None:
        y -= per_column(b_zero_point, b)
    return np.asarray(np.matmul(x, y)).astype(np.int64).astype(np.int32)


def _prepared(run: Function, zero_point: int) -> Function:
    """A `prepare` function for products with constant weights, operand 1. `zero_point` is the operand that is their zero point.

    `run` gets a function (work, a, a_zero_point, b_zero_point) that computes `exact_sums`, or returns None if the zero point of
    the weights is not constant.
    """

    def prepare(operands: Sequence[Array | None]) -> Function | None:
        given = (*operands, *(None,) * 4)
        b, known = given[1], given[zero_point]
        if b is None or b.ndim != 2 or b.dtype not in (np.uint8, np.int8):
            return None
        product = integer_sums(b, None if known is None else per_column(known, b))

        def sums(work: Work, a: Array, a_zero: Array | None, b_zero: Array | None) -> Any:
            return None if (b_zero is None) != (known is None) else work.call(product, a, a_zero)

        return partial(run, sums)

    return prepare


def _integers(
    sums: Function, work: Work, a: Array, _: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array | None:
    y = sums(work, a, a_zero, b_zero)
    return None if y is None else work.arranged(lambda y: y.astype(np.int32, copy=False), y)


def _to_float(
    sums: Function, work: Work, a: Array, b: Array, a_scale: Array, b_scale: Array, *others: Array | None
) -> Array | None:
    a_zero_point, b_zero_point, bias = (*others, None, None, None)[:3]
    return _scaled(work, sums(work, a, a_zero_point, b_zero_point), a_scale, b_scale, bias)


def _dynamic(sums: Function, work: Work, a: Array, b: Array, b_scale: Array, *others: Array | None) -> Array | None:
    if a.dtype != np.float32:
        return None
    b_zero_point, bias = (*others, None, None)[:2]
    quantized, scale, _ = work.call(dynamic_centered, a)
    return _scaled(work, sums(work, quantized, None, b_zero_point), scale, b_scale, bias)


prepared_integers = _prepared(_integers, 3)
prepared_to_float = _prepared(_to_float, 5)
prepared_dynamic = _prepared(_dynamic, 3)
"""MatMulInteger, MatMulIntegerToFloat and DynamicQuantizeMatMul with constant weights."""


def _scaled(work: Work, total: Array | None, a_scale: Array, b_scale: Array, bias: Array | None) -> Array | None:
    """Sums times the scales, plus the bias. None without sums, and unless the types are float32, a has one scale, and b
    has one scale or one per column.
    """
    floats = [x for x in (a_scale, b_scale, bias) if x is not None]
    if total is None or a_scale.size != 1 or b_scale.ndim > 1 or any(x.dtype != np.float32 for x in floats):
        return None
    y, factor = work.empty(total.shape), work.empty(b_scale.shape)
    work.do(np.multiply, b_scale, a_scale.reshape(()), factor)
    work.do(np.multiply, total, factor, y)
    if bias is not None:
        work.do(np.add, y, bias, y)
    return y
