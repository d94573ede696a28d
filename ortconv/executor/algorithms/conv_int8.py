"""Convolutions of integers with constant weights, laid out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.executor.algorithms.conv import integer_filters
from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.sliding_window import convolution_window, placement
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array


def constant_sums(weights: int, zero_point: int) -> Callable[..., Function | None]:
    """Return the `inner` entry that computes ConvInteger if the operands at these two places are constant."""

    def make(operands: Sequence[Array | None], *, group: int = 1, **_: Any) -> Function | None:
        w, w_zero_point = operands[weights], operands[zero_point]
        sums = None if w is None or w_zero_point is None else _integer_convolution(w, w_zero_point, group)
        return None if sums is None else lambda work, *given, **geometry: work.call(partial(sums, **geometry), *given)

    return make


def prepared(operands: Sequence[Array | None], *, group: int = 1, **geometry: Any) -> Function | None:
    """ConvInteger with constant weights minus their zero points."""
    w, w_zero_point = (*operands, None, None)[1:4:2]
    sums = None if w is None else _integer_convolution(w, w_zero_point, group)
    if sums is None:
        return None

    def run(work: Work, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array | None:
        if work is not AT_ONCE or (w_zero is None) != (w_zero_point is None):
            return None
        return np.asarray(sums(x, w, x_zero, w_zero, **geometry))

    return run


def _integer_convolution(w: Array, w_zero_point: Array | None, group: int) -> Function | None:
    """Sums in floating point if it represents them exactly, returned as integers."""
    if not w.size or group < 1 or len(w) % group:
        return None
    weights = integer_filters(w, w_zero_point, group)

    def run(x: Array, w: Array, x_zero_point: Array | None = None, *_: Array | None, **geometry: Any) -> Array:
        place = convolution_window(x.shape[2:], weights.kernel, **placement(geometry))
        return weights.convolve(centered(x, x_zero_point), place).astype(np.int32)

    return run
