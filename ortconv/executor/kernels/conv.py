"""Convolution operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.activations import activation as named_activation
from ortconv.executor.algorithms.conv import convolution, convolve, filters, integer_filters
from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.half_precision import in_float32
from ortconv.executor.algorithms.sliding_window import (
    channels_first,
    channels_last,
    convolution_window,
    to_last,
)
from ortconv.executor.kernels.registry import kernel, prepare
from ortconv.executor.replay.work import Function
from ortconv.ir.tensor import Array


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


@kernel("Conv")
@in_float32
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    place = convolution_window(
        x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    return _with_bias(convolve(x, filters(w, group), place), b)


@kernel("FusedConv", domain="com.microsoft")
@in_float32
def fused_conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **geometry: Any,
) -> Array:
    return _finish(conv(x, w, b, **geometry), z, activation, activation_params)


@kernel("NhwcFusedConv", domain="com.microsoft")
@in_float32
def nhwc_fused_conv(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any) -> Array:
    y = fused_conv(channels_first(x), w, b, None if z is None else channels_first(z), **attributes)
    return channels_last(y)


def _finish(y: Array, z: Array | None, activation: str, parameters: Sequence[float]) -> Array:
    if z is not None:
        y += z
    apply = named_activation(activation, parameters)
    return y if apply is None else apply(y)


@prepare("Conv")
def prepare_conv(operands: Sequence[Any], *, group: int = 1, **geometry: Any) -> Function | None:
    """Lay the weights out once."""
    return _prepared(operands, group, geometry, "", ())


@prepare("FusedConv", domain="com.microsoft")
def prepare_fused_conv(
    operands: Sequence[Any],
    *,
    group: int = 1,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **geometry: Any,
) -> Function | None:
    """Lay the weights out once."""
    return _prepared(operands, group, geometry, activation, activation_params)


def _prepared(
    operands: Sequence[Any], group: int, geometry: dict[str, Any], activation: str, parameters: Sequence[float]
) -> Function | None:
    weights = operands[1]
    if weights is None or weights.dtype not in (np.float32, np.float64):
        return None
    multiply = convolution(weights, group, geometry)

    def run(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **_: Any) -> Array:
        return _finish(_with_bias(multiply(x), b), z, activation, parameters)

    return run


@kernel("ConvInteger")
def conv_integer(
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    place = convolution_window(
        x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad
    )
    return integer_filters(w, w_zero_point, group).convolve(centered(x, x_zero_point), place).astype(np.int32)


@prepare("ConvInteger")
def prepare_conv_integer(operands: Sequence[Any], *, group: int = 1, **geometry: Any) -> Function | None:
    """Center the weights and lay them out once."""
    w, w_zero_point = (*operands, None, None)[1:4:2]
    if w is None or not w.size or group < 1 or len(w) % group:
        return None
    weights = integer_filters(w, w_zero_point, group)
    options = {k: v for k, v in geometry.items() if k != "kernel_shape"}

    def run(x: Array, w: Array, x_zero_point: Array | None = None, zero_point: Array | None = None) -> Array:
        if (zero_point is None) != (w_zero_point is None):
            return np.asarray(conv_integer(x, w, x_zero_point, zero_point, group=group, **geometry))
        place = convolution_window(x.shape[2:], weights.kernel, **options)
        return weights.convolve(centered(x, x_zero_point), place).astype(np.int32)

    return run
