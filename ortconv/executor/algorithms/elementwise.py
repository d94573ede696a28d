"""Fast forms of elementwise operators and of softmax, with their own memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import blockwise
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


_CASTS = {
    (np.dtype(np.float16), DType.FLOAT): blockwise(recordable(widen_block), np.dtype(np.float32)),
    (np.dtype(np.float32), DType.FLOAT16): blockwise(recordable(narrow_block), np.dtype(np.float16)),
}
_FEWEST_CAST = 1 << 12
"""numpy casts arrays with fewer elements about as fast."""


def cast(work: Work, x: Array, *, to: int, **_: Any) -> Any:
    """Between float16 and float32."""
    function = _CASTS.get((x.dtype, DType(to)))
    return None if function is None or x.size < _FEWEST_CAST else work.call(function, x)


_SHORT_ROW, _MANY = 32, 1 << 12
"""Rows up to this length are reduced faster as columns, if there are this many elements in all."""


def softmax(work: Work, x: Array, *, axis: int = -1) -> Array | None:
    if x.dtype not in (np.float32, np.float64) or not x.size:
        return None
    axis %= x.ndim
    if x.strides[axis] == x.itemsize and x.shape[axis] <= _SHORT_ROW and x.size >= _MANY:
        x = work.contiguous(x.swapaxes(0, axis)).swapaxes(0, axis)
    out, one_each = work.like(x), [1 if i == axis else n for i, n in enumerate(x.shape)]
    with work.scratch():
        row = work.empty(one_each, x.dtype)
        work.do(np.maximum.reduce, x, axis, None, row, True)
        work.do(np.subtract, x, row, out)
        work.do(np.exp, out, out)
        work.do(np.add.reduce, out, axis, None, row, True)
        work.do(np.divide, out, row, out)
    return out
