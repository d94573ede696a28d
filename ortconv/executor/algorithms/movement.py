"""Fast forms of operators that move elements, in the memory order of what they read."""

from __future__ import annotations

import numpy as np

from ortconv.executor.replay.work import AT_ONCE, Work, copy_pixels, copy_to
from ortconv.ir.tensor import Array


def gather(work: Work, x: Array, indices: Array, *, axis: int = 0) -> Array | None:
    if work is AT_ONCE:
        return None
    axis %= x.ndim
    out = work.empty((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    work.do(np.take, x, indices, axis, out)
    return out


def concat(work: Work, *inputs: Array, axis: int = 1) -> Array | None:
    """In the memory order of the largest input; None for shapes that do not go together."""
    largest = max(inputs, key=lambda x: x.size)
    shape = list(largest.shape)
    before, after = tuple(shape[:axis]), tuple(shape[axis:][1:])
    if any(x.shape != (*before, *x.shape[axis:][:1], *after) for x in inputs):
        return None
    shape[axis] = sum(x.shape[axis] for x in inputs)
    if largest.ndim < 3 or largest.flags.c_contiguous:
        out = work.empty(shape, largest.dtype)
        work.do(np.concatenate, inputs, axis, out)
        return out
    out = work.like(np.empty_like(largest, shape=shape))
    last, end = (0, *range(2, out.ndim), 1), 0
    for x in inputs:
        start, end = end, end + x.shape[axis]
        part = out[(slice(None),) * (axis % out.ndim) + (slice(start, end),)].transpose(last)
        work.do(copy_pixels if part.strides[-1] == part.itemsize else copy_to, x.transpose(last), part)
    return out


def depth_to_space(work: Work, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = x.shape
    b = blocksize
    c //= b * b
    x = x.reshape(n, b, b, c, h, w) if mode == "DCR" else x.reshape(n, c, b, b, h, w).transpose(0, 2, 3, 1, 4, 5)
    last = x.size > 0 and x.strides[-1] > max(x.strides[1:4])
    out = work.empty((n, h, b, w, b, c) if last else (n, c, h, b, w, b), x.dtype)
    y = out.transpose(0, 2, 4, 5, 1, 3) if last else out.transpose(0, 3, 5, 1, 2, 4)
    for i, j in np.ndindex(b, b):
        work.do(np.copyto, y[:, i, j], x[:, i, j])
    return out.reshape(n, h * b, w * b, c).transpose(0, 3, 1, 2) if last else out.reshape(n, c, h * b, w * b)
