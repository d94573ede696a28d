"""Convolution operators with constant weights, laid out once, and what is fused into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.executor.algorithms.activations import activation as named_activation
from ortconv.executor.algorithms.conv import convolution, integer_filters
from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.sliding_window import convolution_window, to_last
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array


def prepared(
    operands: Sequence[Array | None],
    *,
    group: int = 1,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **geometry: Any,
) -> Function | None:
    """Conv and FusedConv of float32 or float64."""
    weights = operands[1]
    if weights is None or weights.dtype not in (np.float32, np.float64):
        return None
    multiply, apply = convolution(weights, group, geometry), named_activation(activation, activation_params)

    def run(work: Work, x: Array, w: Array, b: Array | None = None, z: Array | None = None) -> Array | None:
        if work is not AT_ONCE:
            return None
        y = _with_bias(multiply(x), b)
        if z is not None:
            y += z
        return y if apply is None else apply(y)

    return run


def _with_bias(y: Array, b: Array | None) -> Array:
    """Add the bias in place. Channels last, it is repeated over a row of the image: short inner loops are slow."""
    if b is None or not y.size:
        return y
    rows = to_last(y)
    if y.ndim > 2 and rows.flags.c_contiguous:
        flat = rows.reshape(-1, y.shape[-1] * b.size)
        flat += np.tile(b, y.shape[-1])
    else:
        y += b.reshape(-1, *(1,) * (y.ndim - 2))
    return y


def constant_sums(weights: int, zero_point: int) -> Callable[..., Function | None]:
    """What makes ConvInteger for the weights and zero point at two places of the operands, where both are constant."""

    def make(operands: Sequence[Array | None], *, group: int = 1, **_: Any) -> Function | None:
        w, w_zero_point = operands[weights], operands[zero_point]
        sums = None if w is None or w_zero_point is None else _integer_convolution(w, w_zero_point, group)
        return None if sums is None else lambda work, *given, **geometry: work.call(partial(sums, **geometry), *given)

    return make


def prepared_integer(operands: Sequence[Array | None], *, group: int = 1, **geometry: Any) -> Function | None:
    """ConvInteger with constant weights less their zero points."""
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
    """Sums in floating point, where that holds them exactly, as integers."""
    if not w.size or group < 1 or len(w) % group:
        return None
    weights = integer_filters(w, w_zero_point, group)

    def run(
        x: Array,
        _: Array,
        x_zero_point: Array | None = None,
        zero_point: Array | None = None,
        *,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        **geometry: Any,
    ) -> Array:
        place = convolution_window(x.shape[2:], weights.kernel, **geometry)
        return weights.convolve(centered(x, x_zero_point), place).astype(np.int32)

    return run
