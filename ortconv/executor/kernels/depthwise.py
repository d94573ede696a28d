"""Depthwise convolution of planes, channels last: one multiply-add over all of a stripe of rows for all kernel elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.executor.kernels.stripes import Stripe, rows_per_stripe
from ortconv.executor.kernels.windows import Window, all_columns, channels_first, reached, strided, to_last
from ortconv.executor.registry import Function
from ortconv.executor.work import Finish, Work, recordable
from ortconv.ir.tensor import Array

_LONG_RUN = 1 << 10
"""Elements from which the innermost loop is long enough. For more the weights only take more room in the cache."""


def depthwise(weights: Array, w: Window, finish: Finish | None = None) -> Function:
    """The function of x (N, C, H, W) that convolves with weights (kernel elements, C) to (N, C, output...), finished in parts."""
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = w.kernel, w.strides, w.dilations, w.output
    c, dtype = weights.shape[1], weights.dtype
    # For several columns at once, so that numpy's innermost loop is long.
    together = next((n for n in range(1, ow) if ow % n == 0 and n * c >= _LONG_RUN), ow)
    run_length = together * c
    repeated = np.tile(weights, (1, together)).reshape(kh, kw, run_length)
    # Strided windows read copies of the columns that each kernel column meets, others one copy of all columns.
    places, width = (reached(w, 1), ow) if sw > 1 else ((all_columns(w),), w.padded[1])
    most = rows_per_stripe(oh, (sh * len(places) * width + ow) * c * dtype.itemsize)

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        out = work.empty((len(x), oh, ow, c), dtype) if out is None else out
        for parts in work.shares(oh, most):
            count = parts[0].stop - parts[0].start
            rows = (count - 1) * sh + (kh - 1) * dh + 1
            stripe = Stripe(work.empty((len(places), rows, width, c), dtype), places, work)
            by_copy, by_row, by_column, item = stripe.copies.strides
            by_tap = by_copy if sw > 1 else dw * by_column
            taps = strided(
                stripe.copies,
                (kh, kw, count, ow // together, run_length),
                (dh * by_row, by_tap, sh * by_row, run_length * item, item),
            )
            for image, results in zip(to_last(x), out.reshape(len(x), oh, ow // together, run_length), strict=True):
                for rows_of_part in parts:
                    part = results[rows_of_part]
                    stripe.load(image, rows_of_part.start * sh - w.begin[0], work)
                    work.do(partial(_einsum, "ijhwx,ijx->hwx", taps[:, :, : len(part)], repeated, out=part))
                    if finish is not None:
                        finish(work, part)
        return channels_first(out)

    return recordable(run)


_einsum = getattr(getattr(getattr(np, "_core", None), "_multiarray_umath", None), "c_einsum", np.einsum)
"""What np.einsum comes down to."""
