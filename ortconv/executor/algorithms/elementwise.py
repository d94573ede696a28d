"""Fast forms of elementwise operators and of softmax, in memory of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import blockwise, gelu_block, gelu_tanh_block, ones
from ortconv.executor.algorithms.half_precision import is_native
from ortconv.executor.replay.numerics import clip_to
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


def _bounds(low: float, high: float) -> dict[np.dtype[Any], tuple[Array, Array]]:
    return {np.dtype(t): (np.asarray(low, t), np.asarray(high, t)) for t in (np.float32, np.float64)}


_POSITIVE, _UNIT = _bounds(0, np.inf), _bounds(0, 1)


def of_ufunc(function: Function) -> Function:
    """The elementwise operator of a ufunc whose result has the type of its operands."""

    def run(work: Work, *operands: Array) -> Array | None:
        if work is AT_ONCE or not is_native(*operands):
            return None
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        model = next((x for x in operands if x.shape == shape), None)
        out = work.empty(shape, operands[0].dtype) if model is None else work.like(model)
        work.do(function, *operands, out)
        return out

    return run


def relu(work: Work, x: Array) -> Array | None:
    if x.dtype not in _POSITIVE:
        return None
    out = work.like(x)
    work.do(clip_to, x, *_POSITIVE[x.dtype], out)
    return out


def sigmoid(work: Work, x: Array) -> Array | None:
    if x.dtype not in _UNIT:
        return None
    out = work.like(x)
    work.do(np.negative, x, out)
    work.do(np.exp, out, out)
    work.do(np.add, out, np.asarray(1, x.dtype), out)
    work.do(np.reciprocal, out, out)
    return out


def hard_sigmoid(work: Work, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array | None:
    if x.dtype not in _UNIT:
        return None
    out = work.like(x)
    work.do(np.multiply, x, np.asarray(alpha, x.dtype), out)
    work.do(np.add, out, np.asarray(beta, x.dtype), out)
    work.do(clip_to, out, *_UNIT[x.dtype], out)
    return out


def hard_swish(work: Work, x: Array) -> Array | None:
    out = hard_sigmoid(work, x, alpha=1 / 6, beta=0.5)
    if out is not None:
        work.do(np.multiply, out, x, out)
    return out


def swish(work: Work, x: Array, *, alpha: float = 1.0) -> Array | None:
    if x.dtype not in _UNIT:
        return None
    out = work.like(x)
    work.do(np.multiply, x, np.asarray(-alpha, x.dtype), out)
    work.do(np.exp, out, out)
    work.do(np.add, out, np.asarray(1, x.dtype), out)
    work.do(np.divide, x, out, out)
    return out


def quick_gelu(work: Work, x: Array, *, alpha: float = 1.702) -> Array | None:
    return swish(work, x, alpha=alpha)


def leaky_relu(work: Work, x: Array, *, alpha: float = 0.01) -> Array | None:
    """The larger or the smaller of x and alpha x. Infinity times zero is NaN."""
    if x.dtype not in _UNIT or alpha == 0:
        return None
    out = work.like(x)
    work.do(np.multiply, x, np.asarray(alpha, x.dtype), out)
    work.do(partial(np.maximum if alpha <= 1 else np.minimum, out=out), out, x)
    return out


def prelu(work: Work, x: Array, slope: Array) -> Array | None:
    """Without branches, which random signs make slow. Infinity times zero is NaN."""
    if work is not AT_ONCE or x.dtype not in _UNIT or not slope.size or slope.max() > 1 or not slope.all():
        return None
    out = np.asarray(np.multiply(x, slope))
    return np.asarray(np.maximum(out, x, out=out))


_GELU = {"none": blockwise(gelu_block), "tanh": blockwise(gelu_tanh_block)}


def gelu(work: Work, x: Array, *, approximate: str = "none") -> Any:
    return work.call(_GELU[approximate], x) if x.dtype == np.float32 else None


def fast_gelu(work: Work, x: Array, bias: Array | None = None) -> Any:
    return gelu(work, x, approximate="tanh") if bias is None else None


def where(work: Work, condition: Array, x: Array, y: Array) -> Array:
    out = work.empty(np.broadcast(condition, x, y).shape, x.dtype)
    work.do(np.copyto, out, y)
    work.do(partial(np.copyto, where=condition), out, x)
    return out


def cast(work: Work, x: Array, *, to: int, **_: Any) -> Array | None:
    """Between numbers of numpy's own types."""
    dtype = DType(to).numpy
    if work is AT_ONCE or any(t.isbuiltin != 1 or t.kind not in "biuf" for t in (x.dtype, dtype)):
        return None
    out = work.like(x, dtype)
    work.do(np.copyto, out, x, "unsafe")
    return out


def power(work: Work, x: Array, y: Array) -> Array | None:
    """Squares and cubes by products."""
    if work is not AT_ONCE or x.dtype not in _UNIT or y.size != 1 or y.ndim > x.ndim or y.reshape(()) not in (2, 3):
        return None
    square = np.asarray(np.multiply(x, x))
    return square if y.reshape(()) == 2 else np.asarray(np.multiply(square, x))


_SHORT_ROW, _MANY = 32, 1 << 12
"""To reduce at least so many elements in so short rows costs more than to make columns of the rows."""


def softmax(work: Work, x: Array, *, axis: int = -1) -> Array | None:
    if x.dtype not in _UNIT:
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
