"""Depthwise convolution of planes, channels last: one multiply-add over all of a stripe of rows for all kernel elements."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ortconv.executor.kernels.windows import Window, reached
from ortconv.ir.tensor import Array

_STRIPE_BYTES = 1 << 21
"""What a stripe may read and write."""


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
    copies, width = (kw, ow) if sw > 1 else (1, w.padded[1])
    per_row = (sh * copies * width + ow) * c * x.itemsize
    count = min(oh, max(1, _STRIPE_BYTES // per_row))
    scratch = np.empty((copies, (count - 1) * sh + (kh - 1) * dh + 1, width, c), x.dtype)
    by_copy, by_row, by_column, item = scratch.strides
    taps = as_strided(
        scratch,
        (kh, kw, count, ow * c),
        (dh * by_row, by_copy if sw > 1 else dw * by_column, sh * by_row, item),
        writeable=False,
    )
    places = reached(w, 1) if sw > 1 else [_all_columns(w)]
    for copy, (target, _) in zip(scratch, places, strict=True):
        copy[:, : target.start] = 0
        copy[:, target.stop :] = 0
    for image, results in zip(images, out, strict=True):
        for start in range(0, oh, count):
            part = results[start : start + count]
            _copy_rows(image, start * sh - w.begin[0], scratch, places)
            np.einsum("ijhx,ijx->hx", taps[:, :, : len(part)], weights, out=part)
    return out.reshape(*out.shape[:2], ow, c)


def _all_columns(w: Window) -> tuple[slice, slice]:
    left, width = w.begin[1], w.size[1]
    start = min(max(left, 0), w.padded[1])
    stop = max(min(left + width, w.padded[1]), start)
    return slice(start, stop), slice(start - left, stop - left)


def _copy_rows(image: Array, first: int, scratch: Array, places: list[tuple[slice, slice]]) -> None:
    """Rows of the image from `first`, which may lie outside, zero where there are none."""
    begin = min(max(-first, 0), scratch.shape[1])
    end = max(min(len(image) - first, scratch.shape[1]), begin)
    scratch[:, :begin] = 0
    scratch[:, end:] = 0
    rows = image[begin + first : end + first]
    for copy, (target, source) in zip(scratch, places, strict=True):
        copy[begin:end, target] = rows[:, source]
