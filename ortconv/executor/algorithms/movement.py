"""Reshape and Concat in the memory order of their input."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.sliding_window import channels_first
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array

_SHORT_RUN = 8
"""Length of the last axis up to which one call for each of its elements is faster than one call for all."""


def reshape(work: Work, x: Array, shape: Array, *, allowzero: int = 0) -> Array | None:
    """None for views. If axes are joined to the channels of an image with channels last in memory, the channels stay last."""
    if x.flags.c_contiguous or 0 in shape:
        return None
    y = x.reshape(shape.tolist())
    if np.may_share_memory(x, y):
        return None
    if _joins_channels(x, y):
        return _with_channels_last(work, x, y)
    out = work.empty(y.shape, y.dtype)
    work.do(np.copyto, out.reshape(x.shape), x)
    return out


def _joins_channels(x: Array, y: Array) -> bool:
    """True if x and y have the same batch and image, and the channels of x are last in memory."""
    spatial = y.ndim - 2
    if x.ndim <= y.ndim or spatial < 1 or (x.shape[0], *x.shape[-spatial:]) != (y.shape[0], *y.shape[2:]):
        return False
    return min(x.strides[-spatial:]) >= max(x.strides[1:-spatial])


def _with_channels_last(work: Work, x: Array, y: Array) -> Array:
    spatial = y.ndim - 2
    out = work.empty((y.shape[0], *y.shape[2:], y.shape[1]), x.dtype)
    source = x.transpose(0, *range(x.ndim - spatial, x.ndim), *range(1, x.ndim - spatial))
    target = out.reshape(source.shape)
    if source.shape[-1] > _SHORT_RUN:
        work.do(np.copyto, target, source)
    else:
        for i in range(source.shape[-1]):
            work.do(np.copyto, target[..., i], source[..., i])
    return channels_first(out)


def concat(work: Work, *inputs: Array, axis: int = 1) -> Array:
    y = np.concatenate(inputs, axis)
    out = work.like(y)
    work.do(np.concatenate, inputs, axis, out)
    return out
