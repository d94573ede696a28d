"""Products with constant matrices. Each matrix is laid out once; all functions that multiply by it share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ortconv.executor.replay.numerics import HAS_AVX512
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.tensor import Array, aligned


def by_weights(w: Array) -> Callable[[Array], Array]:
    """x @ w as a function of x (..., K), for a constant matrix w of float32.

    Functions of the same weights share the laid out matrix.
    """
    return recordable(_weights(w).multiply)


def writer(w: Array) -> Callable[..., None]:
    """The function of x (..., R, K) and out (..., R, M) that writes x @ w to out, for a constant matrix w of their
    type.

    Its third argument may be a Work.
    """
    return (_weights(w) if w.dtype == np.float32 else Matrix(w)).write


def prepared_matmul(operands: Sequence[Array | None]) -> Function | None:
    """MatMul with constant weights."""
    w = _matrix(operands)
    multiply = None if w is None else by_weights(w)
    return None if multiply is None else lambda work, x, _: work.call(multiply, x) if x.dtype == np.float32 else None


def prepared_gemm(
    operands: Sequence[Array | None],
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Function | None:
    """Gemm with constant weights."""
    w = _matrix(operands)
    if w is None or transA:
        return None
    w = w.T if transB else w
    multiply = by_weights(w if alpha == 1 else w * np.float32(alpha))

    def run(work: Work, x: Array, _: Array, c: Array | None = None) -> Array | None:
        if x.dtype != np.float32:
            return None
        y: Array = work.call(multiply, x)
        if c is not None and beta != 0:
            work.do(np.add, y, c if beta == 1 else work.arranged(lambda c: c * c.dtype.type(beta), c), y)
        return y

    return run


def prepared_projection(operands: Sequence[Array | None], **_: Any) -> Function | None:
    """The `inner` entry that computes `affine` with constant weights."""
    w = _matrix(operands)
    if w is None:
        return None
    multiply = by_weights(w)

    def run(work: Work, x: Array, _: Array, bias: Array | None) -> Array:
        y: Array = work.call(multiply, x)
        if bias is not None:
            work.do(np.add, y, bias, y)
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


def _weights(w: Array) -> Matrix:
    key = w.ctypes.data, w.shape, w.strides
    weights = _shared.get(key)
    if weights is None:
        weights = _shared[key] = Matrix(w)
    return weights


class Matrix:
    """A constant matrix (K, N), of float32 or float64, laid out at the first use."""

    def __init__(self, w: Array) -> None:
        self._w = w
        self._depth, self.columns = w.shape

    @cached_property
    def whole(self) -> Array:
        return aligned(contiguous(self._w))

    @cached_property
    def _given(self) -> Array:
        """For one row, for which BLAS takes either order."""
        return aligned(self._w)

    @cached_property
    def _panels(self) -> Array:
        """(columns / width, K, width)"""
        return np.ascontiguousarray(self._w.reshape(self._depth, -1, _PANEL).swapaxes(0, 1))

    def multiply(self, work: Work, x: Array) -> Array:
        """x @ matrix for x (..., K)."""
        out = work.empty((*x.shape[:-1], self.columns), x.dtype)
        if math.prod(x.shape[:-1]) == 1:
            work.do(np.matmul, x, self._given, out)
            return out
        rows = work.contiguous(x).reshape(-1, self._depth) if x.ndim > 2 and x.size else x
        self.write(rows, out.reshape(*rows.shape[:-1], self.columns), work)
        return out

    def write(self, x: Array, out: Array, work: Work = AT_ONCE) -> None:
        """out (..., R, N) = x (..., R, K) @ matrix."""
        if x.ndim == 2 and self._suit_panels(len(x)):
            work.do(np.matmul, x, self._panels, out.reshape(len(x), -1, _PANEL).swapaxes(0, 1))
        else:
            work.do(np.matmul, x, self.whole, out)

    def _suit_panels(self, rows: int) -> bool:
        """True if BLAS copies the operands of the whole product, but not those of a panel."""
        most = largest_without_copies() // max(self._depth * rows, 1)
        return bool(_PANEL <= most < self.columns) and self.columns % _PANEL == 0


_PANEL = 64
"""The width of panels of weights."""


@cache
def largest_without_copies() -> int:
    """The largest product, in multiplications, for which BLAS does not copy its operands; 0 unless BLAS is OpenBLAS
    with AVX-512.
    """
    config: Any = np.show_config(mode="dicts")
    name = str(config.get("Build Dependencies", {}).get("blas", {}).get("name", "")) if config else ""
    return 100**3 if HAS_AVX512 and "openblas" in name else 0


def contiguous(matrix: Array) -> Array:
    """The matrix in row order. A transposed matrix is copied in blocks, since elements of a whole column share few cache lines."""
    if not matrix.flags.f_contiguous or matrix.flags.c_contiguous:
        return np.ascontiguousarray(matrix)
    out = np.empty(matrix.shape, matrix.dtype)
    for start in range(0, matrix.shape[1], _TRANSPOSED_TOGETHER):
        part = slice(start, start + _TRANSPOSED_TOGETHER)
        out[:, part] = matrix[:, part]
    return out


_TRANSPOSED_TOGETHER = 16

_shared: WeakValueDictionary[Any, Matrix] = WeakValueDictionary()
