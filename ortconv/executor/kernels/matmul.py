"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.activations import activation as named_activation
from ortconv.executor.algorithms.gemm import by_weights
from ortconv.executor.algorithms.gemm_exact import centered, integer_product, integer_sums
from ortconv.executor.algorithms.half_precision import in_float32
from ortconv.executor.kernels.registry import kernel, prepare
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array

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
    parameters = [p for p in (activation_alpha, activation_beta, activation_gamma) if p is not None]
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


@kernel("MatMulInteger")
def matmul_integer(a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None) -> Array:
    if a_zero_point is not None and a_zero_point.ndim == 1 and a_zero_point.size > 1:
        a_zero_point = a_zero_point[:, None]
    return integer_product(centered(a, a_zero_point), centered(b, b_zero_point))


@prepare("MatMulInteger")
def prepare_matmul_integer(operands: Sequence[Any]) -> Function | None:
    """Center the weights once."""
    b, b_zero_point = (*operands, None, None)[1:4:2]
    if b is None or b.ndim != 2:
        return None
    sums = integer_sums(b, b_zero_point)

    def run(a: Array, b: Array, a_zero_point: Array | None = None, zero_point: Array | None = None) -> Array:
        if (zero_point is None) != (b_zero_point is None):
            return np.asarray(matmul_integer(a, b, a_zero_point, zero_point))
        return np.asarray(sums(a, a_zero_point).astype(np.int32))

    return run


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
