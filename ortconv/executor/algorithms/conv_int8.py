"""Convolutions of integers with constant weights, laid out once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.conv import integer_filters
from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.sliding_window import convolution_window, placement
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array


def prepared(operands: Sequence[Array | None], *, group: int = 1, **geometry: Any) -> Function | None:
    """ConvInteger with constant weights minus their zero points: sums in floating point that are exact."""
    w, known = (*operands, None, None)[1:4:2]
    if w is None or not w.size or group < 1 or len(w) % group:
        return None
    weights, where = integer_filters(w, known, group), placement(geometry)

    def run(work: Work, x: Array, _: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array | None:
        if work is not AT_ONCE or (w_zero is None) != (known is None):
            return None
        place = convolution_window(x.shape[2:], weights.kernel, **where)
        return weights.convolve(centered(x, x_zero), place).astype(np.int32)

    return run
