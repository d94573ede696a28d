"""Depthwise convolution of planes, channels last: one multiply-add over all of a stripe of rows for all kernel elements."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ortconv.executor.kernels.stripes import Place, Stripe, rows_per_stripe
from ortconv.executor.kernels.windows import Window, reached
from ortconv.ir.tensor import Array


def along_rows(weights: Array, columns: int) -> Array:
    """(kernel elements, C) repeated for every column of an output row: (kernel elements, columns * C)."""
    return np.tile(weights, (1, columns))


def depthwise(x: Array, rows: Array, w: Window) -> Array:
    """(N, C, H, W) with weights along rows of output to (N, output..., C)."""
    images = np.moveaxis(x, 1, -1)
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = w.kernel, w.strides, w.dilations, w.output
    c = images.shape[-1]
    out = np.empty((len(images), oh, ow * c), x.dtype)
    weights = rows.reshape(kh, kw, ow * c)
    # Strided windows read copies of the columns that each kernel column meets, others one copy of all columns.
    places, width = (reached(w, 1), ow) if sw > 1 else ([_all_columns(w)], w.padded[1])
    count = rows_per_stripe(oh, (sh * len(places) * width + ow) * c * x.itemsize)
    stripe = Stripe(np.empty((len(places), (count - 1) * sh + (kh - 1) * dh + 1, width, c), x.dtype), places)
    by_copy, by_row, by_column, item = stripe.copies.strides
    taps = as_strided(
        stripe.copies,
        (kh, kw, count, ow * c),
        (dh * by_row, by_copy if sw > 1 else dw * by_column, sh * by_row, item),
        writeable=False,
    )
    for image, results in zip(images, out, strict=True):
        for start in range(0, oh, count):
            part = results[start : start + count]
            stripe.load(image, start * sh - w.begin[0])
            np.einsum("ijhx,ijx->hx", taps[:, :, : len(part)], weights, out=part)
    return out.reshape(*out.shape[:2], ow, c)


def _all_columns(w: Window) -> Place:
    left, width = w.begin[1], w.padded[1]
    start = min(max(left, 0), width)
    stop = max(min(left + w.size[1], width), start)
    return slice(start, stop), slice(start - left, stop - left)
