"""Copies of arrays into memory that is there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ortconv.executor.direct import Call, with_direct
from ortconv.ir.tensor import Array


def _copy(x: Array, out: Array) -> Call:
    return np.copyto, (out, x)


def _copy_of_runs(x: Array, out: Array) -> Call:
    if not out.size:
        return _copy(x, out)
    run = _item(out.shape[-1] * out.itemsize)
    return _copy(x.view(run), out.view(run))


def _copy_of_pixels(x: Array, out: Array) -> Call:
    has_runs = x.strides[-1] == x.itemsize and not x.dtype.hasobject
    return _copy_of_runs(x, out) if has_runs else _copy(x, out)


@with_direct(_copy)
def copy_to(x: Array, out: Array) -> None:
    np.copyto(out, x)


@with_direct(_copy_of_runs)
def copy_runs(x: Array, out: Array) -> None:
    """For arrays whose last axis is contiguous in memory: each run is one item, which numpy copies faster."""
    function, args = _copy_of_runs(x, out)
    function(*args)


@with_direct(_copy_of_pixels)
def copy_pixels(x: Array, out: Array) -> None:
    """For memory whose last axis is contiguous, be that of x or not."""
    function, args = _copy_of_pixels(x, out)
    function(*args)


@cache
def _item(size: int) -> np.dtype[Any]:
    """The type of so many bytes."""
    return np.dtype((np.void, size))
