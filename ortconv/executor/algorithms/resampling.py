"""Weighted sums of selected elements along an axis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array


class Taps(NamedTuple):
    """For each element along an axis of the result, the indices of input elements and the weights for their sum: both
    (taps, output).

    Without weights, elements are copied.
    """

    indices: Array
    weights: Array | None


def resampled(work: Work, x: Array, axis: int, taps: Taps) -> Array:
    """Resample one axis of x. The result is contiguous memory."""
    indices, weights = taps
    out = work.empty((*x.shape[:axis], indices.shape[1], *x.shape[axis + 1 :]), x.dtype)
    work.do(_take, x, indices[0], axis, out)
    if weights is None or not out.size:
        return out
    factors = weights.astype(x.dtype).reshape(len(weights), -1, *(1,) * (x.ndim - axis - 1))
    work.do(np.multiply, out, factors[0], out)
    with work.scratch():
        part = work.empty(out.shape, x.dtype) if len(weights) > 1 else out
        for index, factor in zip(indices[1:], factors[1:], strict=True):
            work.do(_take, x, index, axis, part)
            work.do(np.multiply, part, factor, part)
            work.do(np.add, out, part, out)
    return out


def _take(x: Array, index: Array, axis: int, out: Array) -> None:
    x.take(index, axis, out, "clip")  # any other mode buffers the result
