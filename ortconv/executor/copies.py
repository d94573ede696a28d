"""Copies of arrays into memory that is there."""

from __future__ import annotations

from functools import cache

import numpy as np

from ortconv.ir.tensor import Array


def copy_to(x: Array, out: Array) -> None:
    np.copyto(out, x)


def copy_runs(x: Array, out: Array) -> None:
    """For arrays whose last axis is contiguous in memory: each run is one item, which numpy copies faster."""
    if out.size:
        run = _item(out.shape[-1] * out.itemsize)
        np.copyto(out.view(run), x.view(run))


def copy_pixels(x: Array, out: Array) -> None:
    """For memory whose last axis is contiguous, be that of x or not."""
    if x.strides[-1] == x.itemsize and not x.dtype.hasobject:
        copy_runs(x, out)
    else:
        np.copyto(out, x)


@cache
def _item(size: int) -> np.dtype[np.void]:
    """The type of so many bytes."""
    return np.dtype((np.void, size))
