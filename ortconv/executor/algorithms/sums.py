"""Sums of many elements whose rounding errors stay small."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array

_FEW = 1 << 10
"""Up to this number of elements, a sum in their order is precise enough."""


def precise_sum(x: Array, axes: tuple[int, ...], keepdims: bool = True) -> Any:
    """The sum over axes, in the type of x.

    numpy adds pairwise along the axis that is innermost in memory, and one by one along others: the error of the second way grows
    with the number of elements, so it runs in float64. Channels are innermost in the memory of many images.
    """
    is_long = x.dtype == np.float32 and prod(x.shape[a] for a in axes) > _FEW
    if not is_long or _innermost(x) in {a % x.ndim for a in axes}:
        return x.sum(axis=axes, keepdims=keepdims, dtype=x.dtype)
    return x.sum(axis=axes, keepdims=keepdims, dtype=np.float64).astype(x.dtype)


def _innermost(x: Array) -> int:
    """The axis with the smallest steps in memory; axes of one element do not count."""
    return min(range(x.ndim), key=lambda a: (x.shape[a] == 1, abs(x.strides[a])))
