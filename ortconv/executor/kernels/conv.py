"""Convolution operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.conv import prepared_integers
from ortconv.executor.algorithms.sliding_window import channels_first, channels_last, convolution_window, windows
from ortconv.executor.kernels.activation import named_activation
from ortconv.executor.kernels.registry import float_kernel, kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

MOST_COLUMNS = 1 << 25
"""Number of elements of all windows up to which they are copied at once."""


@float_kernel("Conv")
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
    """The weights of each group, as a matrix, times the windows of its channels, each as a column."""
    (n, c), (m, each) = x.shape[:2], w.shape[:2]
    if group < 1 or m % group:
        raise GraphError(f"{m} output channels cannot be divided into {group} groups")
    if c != each * group:
        raise GraphError(f"the weights expect {each * group} channels, the input has {c}")
    if b is not None and b.shape != (m,):
        raise GraphError(f"the bias has shape {list(b.shape)}, it must be [{m}]")
    place = convolution_window(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
    depth = each * prod(place.kernel)
    y = _products(w.reshape(group, m // group, depth), windows(x, place, 0), place.output).reshape(n, m, *place.output)
    return np.asarray(y if b is None else y + b.reshape(-1, *(1,) * (x.ndim - 2)))


def _products(matrices: Array, columns: Array, shape: Sequence[int]) -> Array:
    """The matrix of each group, (groups, M, K), times the windows of its channels, a view (N, C, kernel..., shape...).

    The products are (N, groups, M, outputs...). Windows are copied all at once, or some rows of outputs at a time if they are many.
    """
    (groups, rows, depth), n = matrices.shape, len(columns)
    if columns.size <= MOST_COLUMNS:
        return np.asarray(np.matmul(matrices, columns.reshape(n, groups, depth, prod(shape))))
    y: Array = np.empty((n, groups, rows, shape[0], prod(shape[1:])), np.result_type(matrices, columns))
    step, by_row = max(1, MOST_COLUMNS * n * shape[0] // columns.size), np.moveaxis(columns, -len(shape), 1)
    for i, at in product(range(n), range(0, shape[0], step)):
        some = np.moveaxis(by_row[i, at : at + step], 0, -len(shape)).reshape(groups, depth, -1)
        y[i, :, :, at : at + step] = np.matmul(matrices, some).reshape(groups, rows, -1, prod(shape[1:]))
    return y


@float_kernel("FusedConv", domain=MICROSOFT)
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
    y, apply = conv(x, w, b, **geometry), named_activation(activation, activation_params)
    y = y if z is None else y + z
    return y if apply is None else apply(y)


@float_kernel("NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any) -> Array:
    y = fused_conv(channels_first(x), w, b, None if z is None else channels_first(z), **attributes)
    return channels_last(y)


@kernel("ConvInteger", prepare=prepared_integers)
def conv_integer(
    x: Array, w: Array, x_zero_point: Array | None = None, w_zero_point: Array | None = None, **geometry: Any
) -> Array:
    """float64 represents every sum of products of bytes exactly."""
    zero = 0 if x_zero_point is None else x_zero_point.astype(np.float64)
    zeros = 0 if w_zero_point is None else w_zero_point.astype(np.float64).reshape(-1, *(1,) * (w.ndim - 1))
    return conv(x.astype(np.float64) - zero, w.astype(np.float64) - zeros, **geometry).astype(np.int32)  # type: ignore
