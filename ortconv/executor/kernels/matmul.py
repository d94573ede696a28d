"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms import gemm
from ortconv.executor.algorithms.gemm_exact import exact_sums, prepared_integers
from ortconv.executor.algorithms.half_precision import in_float32
from ortconv.executor.kernels.activation import named_activation
from ortconv.executor.kernels.registry import float_kernel, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


@float_kernel("MatMul", prepare=gemm.prepared_matmul)
def matmul(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a, b))


@float_kernel("Gemm", since=7, prepare=gemm.prepared_gemm)
def general_product(
    a: Array, b: Array, c: Array | None = None, *, alpha: float = 1, beta: float = 1, transA: int = 0, transB: int = 0
) -> Array:
    y = _scaled(np.matmul(a.T if transA else a, b.T if transB else b), alpha)
    return y if c is None or beta == 0 else y + np.broadcast_to(_scaled(c, beta), y.shape)


def _scaled(x: Array, factor: float) -> Array:
    if factor == 1:
        return x
    return (x * factor).astype(x.dtype) if x.dtype.kind in "iu" else x * x.dtype.type(factor)


@float_kernel("FusedGemm", domain=MICROSOFT)
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
    return named_activation(activation, parameters)(general_product(a, b, c, **attributes))


@float_kernel("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
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


kernel("MatMulInteger", prepare=prepared_integers)(exact_sums)


@float_kernel("Einsum")
def einsum(*operands: Array, equation: str) -> Array:
    y = np.asarray(np.einsum(equation.replace(" ", ""), *operands, optimize=len(operands) > 1))
    return y.astype(operands[0].dtype, copy=False)


table({"Det": in_float32(lambda x: np.asarray(np.linalg.det(x), x.dtype))})
table({
    "Inverse": in_float32(lambda x: np.linalg.inv(x)),
    "MatMulInteger16": lambda a, b: np.matmul(a.astype(np.int32), b.astype(np.int32)),
}, domain=MICROSOFT)  # fmt: skip
