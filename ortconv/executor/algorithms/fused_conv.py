"""Fast forms of convolution operators, with what is fused into them, for weights that are constant or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.activations import activation as named_activation
from ortconv.executor.algorithms.conv import convolution, convolve, filters, integer_filters
from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.sliding_window import channels_first, channels_last, convolution_window, to_last
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.nchwc import block_length, filters_from_blocks, from_blocks, to_blocks
from ortconv.ir.tensor import Array


def fused_conv(
    work: Work,
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **geometry: Any,
) -> Array | None:
    """Conv of float32 or float64, and FusedConv."""
    if work is not AT_ONCE or not all(v is None or v.dtype in (np.float32, np.float64) for v in (x, w, b, z)):
        return None
    place = convolution_window(x.shape[2:], w.shape[2:], **geometry)
    return finished(with_bias(convolve(x, filters(w, group), place), b), z, activation, activation_params)


def nhwc_fused_conv(
    work: Work, x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any
) -> Array | None:
    """Half precision, computed in float32."""
    if x.dtype != np.float16:
        return None
    wide = [None if v is None else v.astype(np.float32) for v in (x, w, b, z)]
    x, w, b, z = (channels_first(v) if v is not None and i in (0, 3) else v for i, v in enumerate(wide))  # type: ignore
    y = fused_conv(work, x, w, b, z, **attributes)
    return None if y is None else channels_last(y).astype(np.float16)


def blocked_conv(
    work: Work,
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    group: int = 1,
    **attributes: Any,
) -> Array | None:
    """ONNX Runtime's Conv on channels in blocks."""
    block = block_length()
    few = w.shape[1] < block
    images = x if few and group == 1 else from_blocks(x, block)
    sums = None if z is None else from_blocks(z, block)
    weights = filters_from_blocks(w, block, inputs=not few)
    y = fused_conv(work, images, weights, b, sums, group=group, **attributes)
    return None if y is None else to_blocks(y, block)


def prepared(
    weights: Array | None,
    group: int = 1,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **geometry: Any,
) -> Function | None:
    """`fused_conv` with constant weights, laid out once; None for weights of other types than float32 and float64."""
    if weights is None or weights.dtype not in (np.float32, np.float64):
        return None
    multiply = convolution(weights, group, geometry)

    def run(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **_: Any) -> Array:
        return finished(with_bias(multiply(x), b), z, activation, activation_params)

    return run


def with_bias(y: Array, b: Array | None) -> Array:
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


def finished(y: Array, z: Array | None, activation: str, parameters: Sequence[float]) -> Array:
    """y, which may be overwritten, plus z, then the activation."""
    if z is not None:
        y += z
    apply = named_activation(activation, parameters)
    return y if apply is None else apply(y)


def conv_integer(
    work: Work,
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **geometry: Any,
) -> Array | None:
    """Sums in floating point, where that holds them exactly."""
    if work is not AT_ONCE:
        return None
    place = convolution_window(x.shape[2:], w.shape[2:], **geometry)
    return integer_filters(w, w_zero_point, group).convolve(centered(x, x_zero_point), place).astype(np.int32)


def prepared_integer(reference: Function, operands: Sequence[Any], group: int = 1, **geometry: Any) -> Function | None:
    """ConvInteger with constant weights less their zero points, laid out once; `reference` where zero points appear."""
    w, w_zero_point = (*operands, None, None)[1:4:2]
    if w is None or not w.size or group < 1 or len(w) % group:
        return None
    weights = integer_filters(w, w_zero_point, group)
    options = {k: v for k, v in geometry.items() if k != "kernel_shape"}

    def run(x: Array, w: Array, x_zero_point: Array | None = None, zero_point: Array | None = None) -> Array:
        if (zero_point is None) != (w_zero_point is None):
            return np.asarray(reference(x, w, x_zero_point, zero_point))
        place = convolution_window(x.shape[2:], weights.kernel, **options)
        return weights.convolve(centered(x, x_zero_point), place).astype(np.int32)

    return run
