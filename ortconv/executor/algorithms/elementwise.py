"""Fast forms of elementwise operators and of softmax, in memory of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import blockwise, gelu_block, gelu_tanh_block, ones
from ortconv.executor.algorithms.half_precision import is_native, narrow_block, widen_block
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def of_ufunc(function: Function) -> Function:
    """The elementwise operator of a ufunc whose result has the type of its operands."""

    def run(work: Work, *operands: Array) -> Array | None:
        if not is_native(*operands):
            return None
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        model = next((x for x in operands if x.shape == shape), None)
        out = work.empty(shape, operands[0].dtype) if model is None else work.like(model)
        work.do(function, *operands, out)
        return out

    return run


def choice(work: Work, mask: Array, x: Array, y: Array) -> Array:
    """Elements of x if the mask is true, else of y. Their type has at most 8 bytes.

    The bits are combined, since np.where has a branch for each element, which processors often predict wrongly.
    """
    bits = np.dtype(f"i{x.itemsize}")
    shape = np.broadcast_shapes(mask.shape, x.shape, y.shape)
    out = work.empty(shape, x.dtype)
    with work.scratch():
        chosen, mixed = work.empty(mask.shape, bits), out.view(bits)
        work.do(np.multiply, mask.view(np.int8), bits.type(-1), chosen)
        work.do(np.bitwise_xor, x.view(bits), y.view(bits), mixed)
        work.do(np.bitwise_and, mixed, chosen, mixed)
        work.do(np.bitwise_xor, mixed, y.view(bits), mixed)
    return out


_GELU = {"none": blockwise(gelu_block), "tanh": blockwise(gelu_tanh_block)}


def gelu(work: Work, x: Array, *, approximate: str = "none") -> Any:
    return work.call(_GELU[approximate], x) if x.dtype == np.float32 else None


def fast_gelu(work: Work, x: Array, bias: Array | None = None) -> Any:
    return gelu(work, x, approximate="tanh") if bias is None else None


_CASTS = {
    (np.dtype(np.float16), DType.FLOAT): blockwise(recordable(widen_block), np.dtype(np.float32)),
    (np.dtype(np.float32), DType.FLOAT16): blockwise(recordable(narrow_block), np.dtype(np.float16)),
}
_FEWEST_CAST = 1 << 12
"""numpy casts fewer elements about as fast."""


def cast(work: Work, x: Array, *, to: int, **_: Any) -> Any:
    """Between float16 and float32."""
    function = _CASTS.get((x.dtype, DType(to)))
    return None if function is None or x.size < _FEWEST_CAST else work.call(function, x)


_SHORT_ROW, _MANY = 32, 1 << 12
"""Rows up to this length, of this many elements in all, are reduced faster as columns."""


def softmax(work: Work, x: Array, *, axis: int = -1) -> Array | None:
    if x.dtype not in (np.float32, np.float64):
        return None
    axis %= x.ndim
    if x.strides[axis] == x.itemsize and x.shape[axis] <= _SHORT_ROW and x.size >= _MANY:
        x = work.contiguous(x.swapaxes(0, axis)).swapaxes(0, axis)
    out, one_each = work.like(x), [1 if i == axis else n for i, n in enumerate(x.shape)]
    if not x.size:
        return out
    with work.scratch():
        peak, total = work.empty(one_each, x.dtype), work.empty(one_each, x.dtype)
        work.do(np.maximum.reduce, x, axis, None, peak, True)
        work.do(np.subtract, x, peak, out)
        work.do(np.exp, out, out)
        size = x.shape[axis]
        if axis == x.ndim - 1 and out.flags.c_contiguous:
            work.do(np.dot, out.reshape(-1, size), ones(size, x.dtype), total.reshape(-1))
        else:
            work.do(np.add.reduce, out, axis, None, total, True)
        work.do(np.divide, out, total, out)
    return out


def softmax_of_matrix(work: Work, x: Array, *, axis: int = 1) -> Array | None:
    """Before opset 13: over all axes from `axis` on."""
    first = axis % x.ndim if x.ndim else 0
    rows = work.reshaped(x, (int(np.prod(x.shape[:first])), int(np.prod(x.shape[first:]))))
    y = softmax(work, rows, axis=1)
    return None if y is None else y.reshape(x.shape)
