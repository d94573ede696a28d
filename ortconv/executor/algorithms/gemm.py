"""Products with constant matrices. Each matrix is laid out once; all functions that multiply by it share it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array, aligned


def prepared_matmul(operands: Sequence[Array | None], **_: Any) -> Function | None:
    """MatMul, or `affine`, with constant weights."""
    return _prepared(_matrix(operands))


def prepared_gemm(
    operands: Sequence[Array | None], *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Function | None:
    """Gemm with constant weights."""
    w = _matrix(operands)
    if w is None or transA:
        return None
    w = w.T if transB else w
    return _prepared(w if alpha == 1 else w * np.float32(alpha), beta)


def _prepared(w: Array | None, beta: float = 1.0) -> Function | None:
    """x @ w + beta * c as a function of x, w and perhaps c."""
    if w is None:
        return None
    weights = matrix(w)

    def run(work: Work, x: Array, _: Array, c: Array | None = None) -> Array | None:
        if x.dtype != np.float32:
            return None
        y = weights.multiply(work, x)
        if c is not None and beta != 0:
            work.do(np.add, y, c if beta == 1 else work.arranged(lambda c: c * c.dtype.type(beta), c), y)
        return y

    return run


def affine(x: Array, w: Array, bias: Array | None) -> Array:
    """x @ w + bias"""
    y = np.asarray(np.matmul(x, w))
    return y if bias is None else y + bias


def _matrix(operands: Sequence[Array | None]) -> Array | None:
    """Operand 1, if it is a constant float32 matrix and operand 0 is not constant; else None."""
    w = operands[1]
    is_matrix = operands[0] is None and w is not None and w.ndim == 2 and w.dtype == np.float32
    return w if is_matrix else None


def matrix(w: Array) -> Matrix:
    """The matrix with these elements, which all of their users share."""
    key = w.ctypes.data, w.shape, w.strides, w.dtype
    weights = _shared.get(key)
    if weights is None:
        weights = _shared[key] = Matrix(w)
    return weights


class Matrix:
    """A constant matrix (K, N), of float32 or float64, laid out at the first use."""

    def __init__(self, w: Array) -> None:
        self._w = w

    @cached_property
    def whole(self) -> Array:
        return aligned(contiguous(self._w))

    def multiply(self, work: Work, x: Array) -> Array:
        """x @ matrix for x (..., K)."""
        depth, columns = self._w.shape
        out = work.empty((*x.shape[:-1], columns), x.dtype)
        rows = work.contiguous(x).reshape(-1, depth) if x.ndim > 2 and x.size else x
        self.write(rows, out.reshape(*rows.shape[:-1], columns), work)
        return out

    def write(self, x: Array, out: Array, work: Work = AT_ONCE) -> None:
        """out (..., R, N) = x (..., R, K) @ matrix, all of one type. For one row, BLAS reads rows and columns equally fast."""
        is_one_row, layout = x.ndim < 2 or x.shape[-2] == 1, self._w.flags
        work.do(np.matmul, x, self._w if is_one_row and layout.f_contiguous and layout.aligned else self.whole, out)


def contiguous(x: Array) -> Array:
    """An array in row order. It is copied in blocks of columns: those of a transposed array are far apart in memory."""
    if x.flags.c_contiguous:
        return x
    out = np.empty(x.shape, x.dtype)
    for start in range(0, x.shape[-1], _COPIED_TOGETHER):
        part = slice(start, start + _COPIED_TOGETHER)
        out[..., part] = x[..., part]
    return out


def outputs_last(w: Array, group: int = 1) -> Array:
    """Weights (M, C, kernel...) as a contiguous (group, kernel..., C, M / group)."""
    m, c, *kernel = w.shape
    by_group = w.reshape(group, m // group, c, *kernel)
    return contiguous(by_group.transpose(0, *range(3, w.ndim + 1), 2, 1))


_COPIED_TOGETHER = 32

_shared: WeakValueDictionary[Any, Matrix] = WeakValueDictionary()
