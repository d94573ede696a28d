"""Transposed convolutions, channels last: gemm with every kernel element, added up where each lands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, partial
from math import prod
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms import gemm
from ortconv.executor.algorithms.half_precision import in_float32
from ortconv.executor.algorithms.sliding_window import Window, channels_first, channels_last
from ortconv.executor.kernels.registry import kernel, prepare
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.tensor import Array


class TransposedFilters:
    """Weights (C, M/group, kernel...) and bias (M) of transposed convolutions, laid out when they are first used."""

    def __init__(self, w: Array, bias: Array | None, group: int) -> None:
        self.channels, self.outputs, self.kernel, self.group = w.shape[0], w.shape[1] * group, w.shape[2:], group
        self._w, self.bias = w, bias
        self.repeated_bias = cache(partial(np.tile, bias))

    @cached_property
    def tiles(self) -> Array:
        """Of each row of a two-dimensional kernel: (C, columns * M)."""
        c, m, kh, kw = self._w.shape
        return np.ascontiguousarray(self._w.transpose(2, 0, 3, 1)).reshape(kh, c, kw * m)

    @cached_property
    def matrices(self) -> list[Array]:
        """Of each group: (C/group, kernel elements * M/group)."""
        shape = self.channels // self.group, prod(self.kernel) * self._w.shape[1]
        return [np.moveaxis(part, 1, -1).reshape(shape) for part in np.split(self._w, self.group)]


@kernel("ConvTranspose")
@in_float32
def conv_transpose(x: Array, w: Array, b: Array | None = None, *, group: int = 1, **geometry: Any) -> Array:
    _check_groups(x, w, group)
    return _transposed(AT_ONCE, x, TransposedFilters(w, b, group), **geometry)


@prepare("ConvTranspose")
def prepare_conv_transpose(operands: Sequence[Any], *, group: int = 1, **geometry: Any) -> Function | None:
    """Lay the weights out once."""
    weights, bias = (*operands, None)[1:3]
    if weights is None or weights.dtype not in (np.float32, np.float64) or group < 1 or len(weights) % group:
        return None
    f = TransposedFilters(weights, bias, group)

    def run(work: Work, x: Array, w: Array, b: Array | None = None) -> Array:
        if (b is None) != (bias is None):
            result: Array = work.call(partial(conv_transpose, group=group, **geometry), x, w, b)
            return result
        _check_groups(x, w, group)
        return _transposed(work, x, f, **geometry)

    return recordable(run)


def _check_groups(x: Array, w: Array, group: int) -> None:
    if x.shape[1] != w.shape[0] or group < 1 or x.shape[1] % group:
        raise GraphError(f"{x.shape[1]} input channels do not go with weights {list(w.shape)} in {group} groups")


def _transposed(
    work: Work,
    x: Array,
    f: TransposedFilters,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    spatial, k = x.shape[2:], f.kernel
    rank = len(spatial)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    full = tuple((i - 1) * s + (q - 1) * d + 1 for i, s, q, d in zip(spatial, strides, k, dilations))
    wanted = output_shape[-rank:] if output_shape else None
    begin, out_shape = _transposed_padding(
        spatial, [f + e for f, e in zip(full, extra)], strides, pads, auto_pad, wanted
    )
    # The window that, slid over the result, would read x: its taps are where each product lands.
    place = Window(full, k, tuple(strides), tuple(dilations), (0,) * rank, (0,) * rank, tuple(spatial))
    tiled = f.group == 1 and rank == 2 and place.kernel == place.strides and {*place.dilations} == {1}
    pixels = channels_last(x, work)
    y = _crop(work, (_tile_products if tiled else _scatter_products)(work, pixels, f, place), begin, out_shape)
    if f.bias is not None and y.size:
        bias = f.repeated_bias(out_shape[-1] if y.flags.c_contiguous else 1)
        rows = y.reshape(-1, bias.size) if y.flags.c_contiguous else y
        work.do(np.add, rows, bias, rows)
    return channels_first(y)


def _tile_products(work: Work, x: Array, f: TransposedFilters, _: Window) -> Array:
    """(N, H, W, C) times kernels as large as the strides, side by side: (N, H * KH, W * KW, M)."""
    (n, height, width, _), (kh, kw) = x.shape, f.kernel
    out = work.empty((n, height, kh, width, kw * f.outputs), x.dtype)
    for i, matrix in enumerate(f.tiles):
        if gemm.largest_piece():
            gemm.product(x, matrix, out[:, :, i], work)
        else:
            with work.scratch():
                row = work.empty((n * height * width, matrix.shape[1]), x.dtype)
                work.do(np.matmul, x.reshape(len(row), f.channels), matrix, row)
                work.do(np.copyto, out[:, :, i], row.reshape(n, height, width, matrix.shape[1]))
    return out.reshape(n, height * kh, width * kw, f.outputs)


def _scatter_products(work: Work, x: Array, f: TransposedFilters, place: Window) -> Array:
    """(N, spatial..., C) times every kernel element, added up where each lands: (N, full..., M)."""
    n, each, m = x.shape[0], f.channels // f.group, f.outputs // f.group
    overlaps = any(e > s for e, s in zip(place.extent, place.strides))
    out = work.empty((n, *place.size, f.outputs), x.dtype)
    if overlaps or place.kernel != place.strides:
        work.do(out.fill, 0)
    rows = x.reshape(-1, f.channels)
    for g, matrix in enumerate(f.matrices):
        with work.scratch():
            landing = work.empty((len(rows), matrix.shape[1]), x.dtype)
            work.do(np.matmul, rows[:, g * each : (g + 1) * each], matrix, landing)
            by_tap = landing.reshape(n, *place.output, prod(place.kernel), m)
            target = out[..., g * m : (g + 1) * m]
            for i, tap in enumerate(place.taps()):
                landed = target[(slice(None), *tap)]
                if overlaps:
                    work.do(np.add, landed, by_tap[..., i, :], landed)
                else:
                    work.do(np.copyto, landed, by_tap[..., i, :])
    return out


def _transposed_padding(
    size: Sequence[int],
    full: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
    output_shape: Sequence[int] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What is cut off at the beginning, and the size of the result."""
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


def _crop(work: Work, x: Array, begin: Sequence[int], size: Sequence[int]) -> Array:
    """The part of a channels-last array from `begin` with `size`, zero where it reaches outside."""
    inside = x[(slice(None), *(slice(max(b, 0), max(b + n, 0)) for b, n in zip(begin, size)))]
    if inside.shape[1:-1] == tuple(size):
        return inside
    out = work.empty((x.shape[0], *size, x.shape[-1]), x.dtype)
    work.do(out.fill, 0)
    place = (slice(max(-b, 0), max(-b, 0) + n) for b, n in zip(begin, inside.shape[1:-1]))
    work.do(np.copyto, out[(slice(None), *place)], inside)
    return out
