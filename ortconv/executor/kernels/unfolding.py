"""Convolutions as products with unfolded windows, a stripe of the image at a time. Results are channels last."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ortconv.executor.kernels.stripes import STRIPE_BYTES, Stripe, rows_per_stripe
from ortconv.executor.kernels.windows import Window, channels_first, channels_last, pad_channels_last, reached, sliding
from ortconv.ir.tensor import Array

FEW_CHANNELS = 4
"""Up to this many, channels first are unfolded as they lie."""

_MANY_CHANNELS = 64


def unfold_and_multiply(x: Array, matrix: Array, w: Window, out: Array) -> None:
    """out (N, output..., M) = windows of x (N, C, spatial...) @ matrix (kernel elements * C, M)."""
    if all(w.output) and _overlaps_vertically(w, x.shape[1]):
        return _unfold_width(x, matrix, w, out)
    windows = sliding(pad_channels_last(x, w), w)
    n, k = x.shape[0], matrix.shape[0]
    block = max(1, STRIPE_BYTES // max(1, prod(w.output[1:]) * k * x.itemsize))
    if n * w.output[0] <= block:
        return _multiply_into(windows.reshape(-1, k), matrix, out)
    for image, target in zip(windows, out, strict=True):
        for start in range(0, w.output[0], block):
            part = slice(start, start + block)
            _multiply_into(image[part].reshape(-1, k), matrix, target[part])
    return None


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


def _unfold_width(x: Array, matrix: Array, w: Window, out: Array) -> None:
    """Unfold only along the width; the rows of vertically overlapping windows are then strided views of that copy."""
    (kh, kw), sh, (oh, ow), c = w.kernel, w.strides[0], w.output, x.shape[1]
    count = rows_per_stripe(oh, (sh * kw * c + matrix.shape[1]) * ow * x.itemsize)
    rows = (count - 1) * sh + kh
    # Memory order such that the elements of a window are one evenly spaced run, whichever axis of x is contiguous.
    if c <= FEW_CHANNELS and x.flags.c_contiguous:
        copies = np.empty((rows, kw, c, ow), x.dtype).transpose(1, 0, 3, 2)
    else:
        x = channels_first(channels_last(x))
        copies = np.empty((ow, rows, kw, c), x.dtype).transpose(2, 1, 0, 3)
    stripe = Stripe(copies, reached(w, 1))
    _, by_row, by_column, by_element = copies.strides
    windows = as_strided(copies, (count, ow, kh * kw * c), (sh * by_row, by_column, by_element), writeable=False)
    for image, target in zip(np.moveaxis(x, 1, -1), out, strict=True):
        for start in range(0, oh, count):
            part = target[start : start + count]
            stripe.load(image, start * sh - w.begin[0])
            np.matmul(windows[: len(part)], matrix, out=part)
