"""Deformable convolution, and columns back to images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortconv.executor.algorithms.sliding_window import convolution_window, window
from ortconv.executor.kernels.grid_sample import weighted
from ortconv.executor.kernels.registry import float_kernel
from ortconv.ir.tensor import Array


@float_kernel("DeformConv")
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    n, c, *size = x.shape
    k = w.shape[2:]
    place = convolution_window(size, k, strides=strides, dilations=dilations, pads=pads)
    taps, rank, out = prod(k), len(size), place.output
    offsets = offset.reshape(n, offset_group, taps, rank, *out)
    masks = None if mask is None else mask.reshape(n, offset_group, 1, taps, *out)
    corner = np.indices(k).reshape(rank, taps)
    start = np.indices(out)
    columns = np.empty((n, offset_group, c // offset_group, taps, *out), x.dtype)
    for g in range(offset_group):
        per_axis = []
        for d in range(rank):
            base = start[d] * place.strides[d] - place.begin[d]
            position = base + (corner[d] * place.dilations[d]).reshape(-1, *(1,) * rank) + offsets[:, g, :, d]
            lower = np.floor(position)
            per_axis.append(((lower, 1 - (position - lower)), (lower + 1, position - lower)))
        part = x.reshape(n, offset_group, c // offset_group, *size)[:, g]
        columns[:, g] = weighted(part, per_axis)
        if masks is not None:
            columns[:, g] *= masks[:, g]
    rows = columns.reshape(n, group, c // group * taps, prod(out))
    y = np.matmul(w.reshape(group, w.shape[0] // group, -1), rows).reshape(n, w.shape[0], *out)
    return y if b is None else np.asarray(y + b.reshape(-1, *(1,) * rank))


@float_kernel("Col2Im")
def col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Overlapping blocks are summed; elements in the padding are dropped."""
    size, block = tuple(int(d) for d in image_shape), tuple(int(d) for d in block_shape)
    place = window(size, block, strides=strides, dilations=dilations, pads=pads)
    taps, channels = prod(block), x.shape[1] // prod(block)
    blocks = x.reshape(x.shape[0], channels, taps, *place.output)
    padded = [max(p, b + n) for p, b, n in zip(place.padded, place.begin, size)]
    y = np.zeros((x.shape[0], channels, *padded), x.dtype)
    for i, tap in enumerate(place.taps()):
        y[(slice(None), slice(None), *tap)] += blocks[:, :, i]
    inside = tuple(slice(b, b + n) for b, n in zip(place.begin, size))
    return np.ascontiguousarray(y[(slice(None), slice(None), *inside)])
