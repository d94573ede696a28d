"""Convolutions as products with unfolded windows, a stripe of the image at a time.

Each function makes the function of x (N, C, spatial...) that writes windows of x @ matrix (kernel elements * C, M) to
out (N, output..., M).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ortconv.executor.kernels.stripes import Stripe, rows_per_stripe
from ortconv.executor.kernels.windows import (
    Window,
    channels_first,
    channels_last,
    pad_channels_last,
    reached,
    sliding,
    strided,
    to_last,
)
from ortconv.ir.tensor import Array

Unfolded = Callable[[Array, Array], None]

FEW_CHANNELS = 4
"""Up to this many are unfolded channels first."""

_MANY_CHANNELS = 64


def unfolded(matrix: Array, w: Window) -> Unfolded:
    k = len(matrix)
    if all(w.output) and _overlaps_vertically(w, k // prod(w.kernel)):
        return _along_width(matrix, w)
    row_bytes = prod(w.output[1:]) * k * matrix.itemsize

    def run(x: Array, out: Array) -> None:
        windows = sliding(pad_channels_last(x, w), w)
        rows = len(x) * w.output[0]
        block = rows_per_stripe(rows, row_bytes)
        if rows <= block:
            return _multiply_into(windows.reshape(-1, k), matrix, out)
        for image, target in zip(windows, out, strict=True):
            for start in range(0, w.output[0], block):
                part = slice(start, start + block)
                _multiply_into(image[part].reshape(-1, k), matrix, target[part])
        return None

    return run


def _multiply_into(rows: Array, matrix: Array, out: Array) -> None:
    if out.flags.c_contiguous:
        np.matmul(rows, matrix, out=out.reshape(-1, matrix.shape[1]))
    else:
        out[...] = (rows @ matrix).reshape(out.shape)


def _overlaps_vertically(w: Window, channels: int) -> bool:
    """True where unfolding along the width alone pays: long rows of few channels that several windows share."""
    if len(w.kernel) != 2 or w.dilations[0] != 1 or w.kernel[0] <= w.strides[0]:
        return False
    return w.output[1] >= (16 if channels <= FEW_CHANNELS else 32) and channels <= _MANY_CHANNELS


def _along_width(matrix: Array, w: Window) -> Unfolded:
    """Unfold only along the width; the rows of vertically overlapping windows are then strided views of that copy."""
    (kh, kw), sh, (oh, ow), m = w.kernel, w.strides[0], w.output, matrix.shape[1]
    c = len(matrix) // (kh * kw)
    count = rows_per_stripe(oh, (sh * kw * c + m) * ow * matrix.itemsize)
    rows, places = (count - 1) * sh + kh, reached(w, 1)

    def run(x: Array, out: Array) -> None:
        # Memory order such that the elements of a window are one evenly spaced run.
        if c <= FEW_CHANNELS:
            x = x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)
            held = np.empty((rows, kw, c, ow), x.dtype)
            copies = held.transpose(1, 0, 3, 2)
        else:
            x = channels_first(channels_last(x))
            held = np.empty((ow, rows, kw, c), x.dtype)
            copies = held.transpose(2, 1, 0, 3)
        stripe = Stripe(copies, places)
        _, by_row, by_column, by_element = copies.strides
        windows = strided(held, (count, ow, kh * kw * c), (sh * by_row, by_column, by_element))
        for image, target in zip(to_last(x), out, strict=True):
            for start in range(0, oh, count):
                part = target[start : start + count]
                stripe.load(image, start * sh - w.begin[0])
                np.matmul(windows[: len(part)], matrix, out=part)

    return run
