"""Convolution and pooling in float64 numpy, for training and for calibrating the sample models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from builder import Array
from numpy.lib.stride_tricks import sliding_window_view


def pad2d(x: Array, pads: Sequence[int], value: float = 0.0) -> Array:
    """[N, C, H, W] with pads (top, left, bottom, right)."""
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def patches(x: Array, kernel: int, stride: int = 1) -> Array:
    """[N, C, H, W] -> a view [N, C, H', W', kernel, kernel]."""
    windows: Array = sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    return windows[:, :, ::stride, ::stride]


def conv2d(x: Array, w: Array, *, stride: int = 1, pad: int = 0, depthwise: bool = False) -> Array:
    """Square kernel, no bias. `depthwise`: w is [C, 1, k, k], one filter per channel."""
    windows = patches(pad2d(x, [pad] * 4), w.shape[-1], stride)
    w = w.astype(np.float64)
    if depthwise:
        return np.asarray(np.einsum("nchwij,cij->nchw", windows, w[:, 0]))
    return np.asarray(np.tensordot(windows, w, axes=([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2))


def max_pool(x: Array, size: int) -> Array:
    """Kernel and stride `size`, no padding."""
    return np.asarray(patches(x, size, size).max(axis=(4, 5)))
