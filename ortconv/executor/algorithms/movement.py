"""Reshape and Concat in the memory order of what they read."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.sliding_window import channels_first
from ortconv.executor.replay.work import Work, copy_pixels, copy_to
from ortconv.ir.tensor import Array

_SHORT_RUN = 8
"""Elements along the last axis that are better copied in as many calls."""


def reshape(work: Work, x: Array, shape: Array, *, allowzero: int = 0) -> Array | None:
    """Channels that are joined to one axis stay last in memory, behind those of the image. None for what is copied otherwise."""
    if x.flags.c_contiguous or x.ndim < 3 or shape.size < 3 or 0 in shape:
        return None
    y = x.reshape(shape.tolist())
    spatial = y.ndim - 2
    if np.may_share_memory(x, y) or (x.shape[0], *x.shape[-spatial:]) != (y.shape[0], *y.shape[2:]):
        return None
    if min(x.strides[-spatial:]) < max(x.strides[1:-spatial], default=0):
        return None
    out = work.empty((y.shape[0], *y.shape[2:], y.shape[1]), x.dtype)
    source = x.transpose(0, *range(x.ndim - spatial, x.ndim), *range(1, x.ndim - spatial))
    target = out.reshape(source.shape)
    if source.shape[-1] > _SHORT_RUN:
        work.do(copy_pixels, source, target)
    else:
        for i in range(source.shape[-1]):
            work.do(copy_to, source[..., i], target[..., i])
    return channels_first(out)


def concat(work: Work, *inputs: Array, axis: int = 1) -> Array:
    y = np.concatenate(inputs, axis)
    out = work.like(y)
    work.do(np.concatenate, inputs, axis, out)
    return out
