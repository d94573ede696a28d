"""Transposed convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.sliding_window import Window, channels_first, to_last
from ortconv.executor.kernels.movement import padded
from ortconv.executor.kernels.registry import float_kernel
from ortconv.ir.tensor import Array


@float_kernel("ConvTranspose")
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Each element of x times the kernel, summed at its position in the result. `full` is the result before its ends
    are cut off.
    """
    (n, c, *spatial), k, rank = x.shape, w.shape[2:], x.ndim - 2
    if c != len(w) or group < 1 or c % group:
        raise GraphError(f"{c} input channels do not go with weights {list(w.shape)} in {group} groups")
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    full = tuple((i - 1) * s + (q - 1) * d + 1 for i, s, q, d in zip(spatial, strides, k, dilations))
    reach = [f + e for f, e in zip(full, output_padding or (0,) * rank)]
    begin, size = _transposed_padding(
        spatial, reach, strides, pads, auto_pad, output_shape[-rank:] if output_shape else None
    )
    m, taps = w.shape[1], prod(k)
    matrices = np.moveaxis(w.reshape(group, c // group, m, taps), -1, 2).reshape(group, c // group, taps * m)
    pixels = to_last(x).reshape(n, prod(spatial), group, c // group)
    products = np.matmul(pixels.swapaxes(1, 2), matrices).reshape(n, group, *spatial, taps, m)
    # The window that, slid over the result, would read x: its taps are where each product lands.
    place = Window(full, k, strides, dilations, (0,) * rank, (0,) * rank, tuple(spatial))
    y = np.zeros((n, *full, group, m), x.dtype)
    for i, tap in enumerate(place.taps()):
        y[:, *tap] += np.moveaxis(products[..., i, :], 1, -2)
    y = channels_first(y.reshape(n, *full, group * m))
    if any(begin) or size != full:
        after = [b + s - f for b, s, f in zip(begin, size, full)]
        y = padded(y, [*(-b for b in begin), *after], "constant", 0, range(2, x.ndim))
    return np.asarray(y if b is None else y + b.reshape(-1, *(1,) * rank))


def _transposed_padding(
    size: Sequence[int],
    full: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
    output_shape: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The elements cut off at the beginning, and the size of the result."""
    rank = len(size)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if output_shape is None and same:
        output_shape = [n * s for n, s in zip(size, strides)]
    if output_shape is not None:
        total = [max(0, f - o) for f, o in zip(full, output_shape)]
        upper = auto_pad == "SAME_UPPER"
        return tuple(t // 2 if upper else t - t // 2 for t in total), tuple(output_shape)
    pads = pads if pads and auto_pad != "VALID" else (0,) * (2 * rank)
    begin, end = tuple(pads[:rank]), pads[rank:]
    return begin, tuple(max(0, f - b - a) for f, b, a in zip(full, begin, end))
