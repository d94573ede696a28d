"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ortconv.executor.kernels.fused_activation import activation as named_activation
from ortconv.executor.kernels.integer_products import IntegerWeights, codes_less, leave
from ortconv.executor.kernels.precision import in_float32
from ortconv.executor.kernels.products import by_weights
from ortconv.executor.registry import Function, kernel, prepare
from ortconv.executor.work import Work, recordable
from ortconv.ir.tensor import Array

_EXACT = float(1 << 24)
"""Integers up to this magnitude are exact in float32."""

INPUT_REACH = 255
"""How far apart 8-bit codes can be, and so how far from their zero point."""

_INTEGER_GEMM = 4096
"""Multiplications from which integers go through the floating-point GEMM."""


def _multiply(a: Array, b: Array) -> Array:
    """a @ b modulo 2**bits for integers, which numpy multiplies without BLAS."""
    if a.dtype.kind in "iu" and a.dtype.itemsize <= 4 and a.size * b.shape[-1] > _INTEGER_GEMM:
        product = np.matmul(a.astype(np.float64), b.astype(np.float64))
        if abs(product).max(initial=0) < 2**52:
            return np.asarray(product.astype(np.int64).astype(a.dtype))
    return np.asarray(np.matmul(a, b))


@kernel("MatMul")
@in_float32
def matmul(a: Array, b: Array) -> Array:
    return _multiply(a, b)


@prepare("MatMul")
def prepare_matmul(operands: Sequence[Array | None]) -> Function | None:
    """Lay constant weights out once."""
    w = operands[1]
    if w is None or w.ndim != 2 or w.dtype != np.float32 or operands[0] is not None:
        return None
    multiply = by_weights(w)
    return recordable(lambda work, x, _: work.call(multiply, x))


@kernel("Gemm", since=7)
@in_float32
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Array:
    y = _multiply(a.T if transA else a, b.T if transB else b)
    if alpha != 1:
        y = (y * alpha).astype(y.dtype) if y.dtype.kind in "iu" else y * y.dtype.type(alpha)
    if c is None or beta == 0:
        return y
    if beta != 1:
        c = (c * beta).astype(c.dtype) if c.dtype.kind in "iu" else c * c.dtype.type(beta)
    y += c
    return y


@prepare("Gemm")
def prepare_gemm(
    operands: Sequence[Array | None],
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    **legacy: int,
) -> Function | None:
    """Lay constant weights out once."""
    w = operands[1]
    if w is None or w.ndim != 2 or w.dtype != np.float32 or transA or legacy or operands[0] is not None:
        return None
    w = w.T if transB else w
    multiply = by_weights(w if alpha == 1 else w * np.float32(alpha))

    def run(work: Work, x: Array, _: Array, c: Array | None = None) -> Array:
        y: Array = work.call(multiply, x)
        if c is not None and beta != 0:
            work.do(np.add, y, c if beta == 1 else work.arranged(lambda c: c * c.dtype.type(beta), c), y)
        return y

    return recordable(run)


@kernel("FusedGemm", domain="com.microsoft")
@in_float32
def fused_gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attributes: Any,
) -> Array:
    parameters = [p for p in (activation_alpha, activation_beta) if p is not None]
    apply = named_activation(activation, parameters)
    y = gemm(a, b, c, **attributes)
    return y if apply is None else apply(y)


@kernel("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
@in_float32
def fused_matmul(
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
    transBatchA: int = 0,  # noqa: N803
    transBatchB: int = 0,  # noqa: N803
) -> Array:
    y = np.matmul(_operand(a, transA, transBatchA), _operand(b, transB, transBatchB))
    return y if alpha == 1 else np.asarray(y * y.dtype.type(alpha))


def _operand(x: Array, transposed: int, batch_moved: int) -> Array:
    """`batch_moved`: the first axis of x is its second to last, the batch axes follow it."""
    if batch_moved and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    if transposed and x.ndim > 1:
        x = np.swapaxes(x, -1, -2)
    return x


def exact_product(a: Array, b: Array) -> Array:
    """a @ b of integer-valued float32 arrays as int32 (modulo 2**32), exact: sums that float32 cannot hold are split."""
    reach = float(np.abs(a).max(initial=0)) * float(np.abs(b).sum(axis=-2).max(initial=0))
    if reach <= _EXACT or a.shape[-1] < 2:
        return np.asarray(np.matmul(a, b).astype(np.int32))
    half = a.shape[-1] // 2
    left = exact_product(a[..., :half], b[..., :half, :])
    return np.asarray(left + exact_product(a[..., half:], b[..., half:, :]))


def centred(x: Array, zero_point: Array | None) -> Array:
    """Integers less their zero point, as float32. The zero point must broadcast."""
    x = x.astype(np.float32)
    if zero_point is not None and zero_point.any():
        x -= zero_point.astype(np.float32)
    return x


@kernel("MatMulInteger")
def matmul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    if a_zero_point is not None and a_zero_point.ndim == 1 and a_zero_point.size > 1:
        a_zero_point = a_zero_point[:, None]
    return integer_product(centred(a, a_zero_point), centred(b, b_zero_point))


@prepare("MatMulInteger")
def prepare_matmul_integer(operands: Sequence[Any]) -> Function | None:
    """Centre the weights once."""
    b, b_zero_point = (*operands, None, None)[1:4:2]
    if b is None or b.ndim != 2:
        return None
    sums = integer_sums(b, b_zero_point)

    def run(a: Array, b: Array, a_zero_point: Array | None = None, zero_point: Array | None = None) -> Array:
        if (zero_point is None) != (b_zero_point is None):
            return np.asarray(matmul_integer(a, b, a_zero_point, zero_point))
        return np.asarray(sums(a, a_zero_point).astype(np.int32))

    return run


def integer_sums(b: Array, b_zero_point: Array | None) -> Function:
    """MatMulInteger with constant weights (K, N): integers in float32 where that holds every sum, else in int32.

    float32 operands are codes less their zero point.
    """
    weights = codes_less(b, b_zero_point)
    parts = [(k, IntegerWeights(weights[k])) for k in _exact_parts(weights)]

    def run(work: Work, a: Array, a_zero_point: Array | None) -> Array:
        if a_zero_point is not None and a_zero_point.ndim == 1 and a_zero_point.size > 1:
            a_zero_point = a_zero_point[:, None]
        x = a if a.dtype == np.float32 else work.arranged(partial(centred, zero_point=a_zero_point), a)
        rows = work.contiguous(x).reshape(prod(x.shape[:-1]), x.shape[-1])
        shape = (len(rows), weights.shape[1])
        sums = work.empty(shape)
        if len(parts) == 1:
            parts[0][1].multiply(rows, sums, leave, work)
            return sums.reshape(*x.shape[:-1], shape[1])
        total, some = work.empty(shape, np.int32), work.empty(shape, np.int32)
        for number, (k, part) in enumerate(parts):
            part.multiply(rows[:, k], sums, leave, work)
            work.do(np.copyto, some if number else total, sums, "unsafe")
            if number:
                work.do(np.add, total, some, total)
        return total.reshape(*x.shape[:-1], shape[1])

    return recordable(run)


def _exact_parts(weights: Array) -> list[slice]:
    """The rows of weights (K, N) in parts for which float32 holds the sums with 8-bit codes, whatever their zero point is."""
    count = 1
    while True:
        edges = [len(weights) * i // count for i in range(count + 1)]
        parts = [slice(a, b) for a, b in pairwise(edges)]
        if all(INPUT_REACH * one_sided(weights[k], axis=0) <= _EXACT for k in parts):
            return parts
        count *= 2


def one_sided(weights: Array, axis: int | tuple[int, ...]) -> float:
    """The largest sum along axes of integer weights of one sign: no sum of products gets further from zero than that times
    `INPUT_REACH`. Sums that are small enough to matter are exact in float32.
    """
    weights = weights.astype(np.float32, copy=False)
    return float((np.abs(weights).sum(axis=axis) + np.abs(weights.sum(axis=axis))).max(initial=0)) / 2


def integer_product(a: Array, b: Array) -> Array:
    """`exact_product` with MatMul's rules for vectors."""
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    y = exact_product(a[None, :] if vector_a else a, b[:, None] if vector_b else b)
    if vector_b:
        y = y[..., 0]
    return y[..., 0, :] if vector_a and not vector_b else y[..., 0] if vector_a else y


@kernel("Einsum")
@in_float32
def einsum(*operands: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation.replace(" ", ""), *operands, optimize=len(operands) > 1)).astype(
        operands[0].dtype, copy=False
    )


@kernel("Det")
@in_float32
def det(x: Array) -> Array:
    return np.asarray(np.linalg.det(x), x.dtype)
