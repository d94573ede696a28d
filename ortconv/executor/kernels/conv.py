"""Convolutions, transposed ones, and columns back to images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, Unpack

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.conv import prepared_integers
from ortconv.executor.algorithms.sliding_window import channels_first, channels_last, window, windows
from ortconv.executor.kernels.activation import named_activation
from ortconv.executor.kernels.movement import padded
from ortconv.executor.kernels.registry import Geometry, float_kernel, kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

MOST_COLUMNS = 1 << 25
"""Number of elements of all windows up to which they are copied at once."""


@float_kernel("Conv")
def conv(
    x: Array, w: Array, b: Array | None = None, *, group: int = 1, kernel_shape: Any = None, **place: Unpack[Geometry]
) -> Array:
    """The weights of each group, as a matrix, times the windows of its channels, each as a column."""
    (n, c), (m, each) = x.shape[:2], w.shape[:2]
    if group < 1 or m % group:
        raise GraphError(f"{m} output channels cannot be divided into {group} groups")
    if c != each * group:
        raise GraphError(f"the weights expect {each * group} channels, the input has {c}")
    if b is not None and b.shape != (m,):
        raise GraphError(f"the bias has shape {list(b.shape)}, it must be [{m}]")
    slid = window(x.shape[2:], w.shape[2:], is_pool=False, **place)
    depth = each * prod(slid.kernel)
    y = _products(w.reshape(group, m // group, depth), windows(x, slid), slid.output).reshape(n, m, *slid.output)
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
    y = conv(x, w, b, **geometry)
    return named_activation(activation, activation_params)(y if z is None else y + z)


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


@float_kernel("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Any = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    **place: Unpack[Geometry],
) -> Array:
    """Each element of x times the kernel, summed at its position. `full` is the result before its ends are cut off."""
    (n, c, *spatial), k, rank = x.shape, w.shape[2:], x.ndim - 2
    if c != len(w) or group < 1 or c % group:
        raise GraphError(f"{c} input channels do not go with weights {list(w.shape)} in {group} groups")
    strides, dilations = place.get("strides") or (1,) * rank, place.get("dilations") or (1,) * rank
    full = tuple((i - 1) * s + (q - 1) * d + 1 for i, s, q, d in zip(spatial, strides, k, dilations))
    reach = [f + e for f, e in zip(full, output_padding or (0,) * rank)]
    begin, size = _transposed_padding(spatial, reach, output_shape[-rank:] if output_shape else None, place)
    m, taps = w.shape[1], prod(k)
    matrices = np.moveaxis(w.reshape(group, c // group, m, taps), -1, 2).reshape(group, c // group, taps * m)
    pixels = x.reshape(n, group, c // group, prod(spatial)).swapaxes(2, 3)
    products = np.matmul(pixels, matrices).reshape(n, group, *spatial, taps, m)
    y = np.zeros((n, *full, group, m), x.dtype)
    # The window that, slid over the result, would read x: its taps are where each product lands.
    for i, tap in enumerate(window(full, k, strides, dilations).taps()):
        y[:, *tap] += np.moveaxis(products[..., i, :], 1, -2)
    y = channels_first(y.reshape(n, *full, group * m))
    if any(begin) or size != full:
        after = [b + s - f for b, s, f in zip(begin, size, full)]
        y = padded(y, [*(-b for b in begin), *after], "constant", 0, range(2, x.ndim))
    return np.asarray(y if b is None else y + b.reshape(-1, *(1,) * rank))


@float_kernel("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def conv_transpose_with_dynamic_pads(
    x: Array, w: Array, pads: Array | None = None, b: Array | None = None, **geometry: Any
) -> Any:
    return conv_transpose(x, w, b, **geometry, pads=None if pads is None else pads.tolist())


def _transposed_padding(
    size: Sequence[int], full: Sequence[int], output_shape: Sequence[int] | None, place: Geometry
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The elements cut off at the beginning, and the size of the result."""
    rank, auto_pad = len(size), place.get("auto_pad", "NOTSET")
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [min(n * s, f) for n, s, f in zip(size, place.get("strides") or (1,) * rank, full)]
    if output_shape is not None:
        total = [max(0, f - o) for f, o in zip(full, output_shape)]
        upper = auto_pad == "SAME_UPPER"
        return tuple(t // 2 if upper else t - t // 2 for t in total), tuple(output_shape)
    pads = (place.get("pads") if auto_pad != "VALID" else None) or (0,) * (2 * rank)
    begin, end = tuple(pads[:rank]), pads[rank:]
    return begin, tuple(max(0, f - b - a) for f, b, a in zip(full, begin, end))


@float_kernel("Col2Im")
def col2im(x: Array, image_shape: Array, block_shape: Array, **attributes: Unpack[Geometry]) -> Array:
    """Overlapping blocks are summed; elements in the padding are dropped."""
    size, block = tuple(int(d) for d in image_shape), tuple(int(d) for d in block_shape)
    place = window(size, block, **attributes)
    taps, channels = prod(block), x.shape[1] // prod(block)
    blocks = x.reshape(len(x), channels, taps, *place.output)
    covered = [max(p, b + n) for p, b, n in zip(place.padded, place.begin, size)]
    y = np.zeros((len(x), channels, *covered), x.dtype)
    for i, tap in enumerate(place.taps()):
        y[:, :, *tap] += blocks[:, :, i]
    inside = tuple(slice(b, b + n) for b, n in zip(place.begin, size))
    return np.ascontiguousarray(y[:, :, *inside])
