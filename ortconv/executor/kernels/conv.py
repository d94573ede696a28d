"""Convolutions. Float results lie channels last in memory behind their channels-first shape wherever that is the fast order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels import products, winograd
from ortconv.executor.kernels.depthwise import depthwise
from ortconv.executor.kernels.fused_activation import activation as named_activation
from ortconv.executor.kernels.matmul import INPUT_REACH, centred, one_sided
from ortconv.executor.kernels.precision import in_float32
from ortconv.executor.kernels.products import writer
from ortconv.executor.kernels.unfolding import FEW_CHANNELS, unfolded
from ortconv.executor.kernels.windows import (
    Window,
    channels_first,
    channels_last,
    pad_channels_last,
    to_last,
    window,
)
from ortconv.executor.memory import once
from ortconv.executor.registry import Function, kernel, prepare
from ortconv.executor.work import AT_ONCE, Work, recordable
from ortconv.ir.tensor import Array

EXACT_SUM = float(1 << 24)
"""Integer sums up to this are exact in float32."""


class Filters(NamedTuple):
    """Weights (M, C/group, kernel...) laid out for rows of channels-last windows."""

    kernel: tuple[int, ...]
    group: int
    matrix: Array
    """(group, kernel elements * C/group, M/group); depthwise: (kernel elements, M)."""
    channels: int
    """Of the input."""
    outputs: int
    depthwise: bool


def filters(w: Array, group: int) -> Filters:
    """Lay out convolution weights. GraphError if `group` does not divide the output channels."""
    m, c, *k = w.shape
    if group < 1 or m % group:
        raise GraphError(f"{m} output channels cannot be divided into {group} groups")
    if c == 1 and group > 1:
        return Filters(tuple(k), group, np.ascontiguousarray(w.reshape(m, -1).T), group, m, True)
    if group == 1 and prod(k) == 1:
        return Filters(tuple(k), group, w.reshape(m, c).T[None], c, m, False)
    rows = np.moveaxis(w.reshape(group, m // group, c, *k), 2, -1).reshape(group, m // group, -1)
    return Filters(tuple(k), group, np.ascontiguousarray(rows.transpose(0, 2, 1)), c * group, m, False)


def convolve(x: Array, f: Filters, w: Window) -> Array:
    """(N, C, spatial...) with laid out weights to (N, M, output...), without bias."""
    result: Array = convolver(f, w, x.shape[1])(x)
    return result


def convolver(f: Filters, w: Window, channels: int) -> Function:
    """The function of x (N, channels, spatial...) that convolves with laid out weights to (N, M, output...), without bias.

    It can also be given contiguous memory (N, output..., M) for the result.
    """
    if channels != f.channels:
        raise GraphError(f"the weights expect {f.channels} channels, the input has {channels} (size {list(w.size)})")
    if f.depthwise:
        return _depthwise(f, w)
    return _pointwise(f.matrix, w) if w.is_pointwise else _windowed(f, w)


def _windowed(f: Filters, w: Window) -> Function:
    c, m = f.channels // f.group, f.outputs // f.group
    parts = [(slice(g * c, (g + 1) * c), slice(g * m, (g + 1) * m), unfolded(a, w)) for g, a in enumerate(f.matrix)]

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        x = work.contiguous(x) if c <= FEW_CHANNELS and f.group > 1 else x
        out = work.empty((x.shape[0], *w.output, f.outputs), x.dtype) if out is None else out
        for inputs, outputs, multiply in parts:
            multiply(work, x[:, inputs], out[..., outputs])
        return channels_first(out)

    return recordable(run)


def _pointwise(matrix: Array, w: Window) -> Function:
    group = len(matrix)
    steps: tuple[Any, ...] = (..., *(slice(None, None, s) for s in w.strides))
    run = _of_pixels(matrix[0], w.output) if group == 1 else _of_grouped_pixels(matrix, w.output)
    if not any(s > 1 for s in w.strides):
        return recordable(run)
    return recordable(lambda work, x, out=None: run(work, x[steps], out))


def _of_pixels(matrix: Array, output: tuple[int, ...]) -> Function:
    multiply, (c, m), size = writer(matrix), matrix.shape, prod(output)

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        n = len(x)
        if size == 1:
            rows = x.reshape(n, c)
        elif n == 1 and x.flags.c_contiguous:
            rows = x.reshape(c, size).T  # products read the transpose as it is
        else:
            rows = channels_last(x, work).reshape(n * size, c)
        out = work.empty((n, *output, m), x.dtype) if out is None else out
        multiply(rows, out.reshape(n * size, m), work)
        return channels_first(out)

    return run


def _of_grouped_pixels(matrix: Array, output: tuple[int, ...]) -> Function:
    group, c, m = matrix.shape

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        rows = channels_last(x, work).reshape(-1, group, c)
        out = work.empty((len(x), *output, group * m), x.dtype) if out is None else out
        target = out.reshape(len(rows), group, m).swapaxes(0, 1)
        work.do(np.matmul, rows.swapaxes(0, 1), matrix, target)
        return channels_first(out)

    return run


def _depthwise(f: Filters, w: Window) -> Function:
    by_rows = len(w.kernel) == 2 and all(w.output)
    one: Function = depthwise(f.matrix, w) if by_rows else partial(_tap_by_tap, f.matrix, w)
    multiplier = f.outputs // f.channels
    return one if multiplier == 1 else lambda x, out=None: one(np.repeat(x, multiplier, axis=1), out)


def _tap_by_tap(weights: Array, w: Window, x: Array, out: Array | None = None) -> Array:
    x = pad_channels_last(x, w)
    out = np.empty((x.shape[0], *w.output, x.shape[-1]), x.dtype) if out is None else out
    out[...] = 0
    for tap, factors in zip(w.taps(), weights):
        out += x[(slice(None), *tap)] * factors
    return channels_first(out)


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
    place = window(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
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


def convolution(weights: Array, group: int, geometry: dict[str, Any]) -> Function:
    """The function of x that convolves with constant weights, without bias. Its results are the caller's to overwrite."""
    laid_out = once(filters, weights, group)
    placement = {key: geometry[key] for key in ("strides", "dilations", "pads", "auto_pad") if key in geometry}
    steps = {*geometry.get("strides", ()), *geometry.get("dilations", ())}
    suits_winograd = winograd.suits(weights, group) and steps <= {1}
    tiled = once(winograd.transform_weights, weights) if suits_winograd else None
    _, channels, *size = weights.shape

    @lru_cache(maxsize=16)
    def bound(shape: tuple[int, ...]) -> Function:
        w = window(shape[2:], size, **placement)
        direct = cache(lambda: convolver(laid_out(), w, shape[1]))
        if tiled is None or shape[1] != channels or not winograd.suits_window(w):
            return direct()
        return winograd.convolver(tiled, w, direct)

    return by_shape(bound)


def by_shape(bound: Callable[[tuple[int, ...]], Function]) -> Function:
    """The function of x that another function makes for the shape of x."""
    return recordable(lambda work, x: work.call(bound(x.shape), x))


class IntegerFilters(NamedTuple):
    """Integer weights less their zero points, in parts whose sums the floating-point type holds exactly."""

    parts: tuple[tuple[slice, Filters], ...]
    """Input channels, and the weights for them."""
    kernel: tuple[int, ...]
    reach: float
    """No sum is further from zero than this."""

    def convolve(self, x: Array, w: Window) -> Array:
        """Centred integer-valued float32 input to exact sums, as float32 where that holds them and as int32 where not."""
        sums = [
            convolve(x[:, channels].astype(part.matrix.dtype, copy=False), part, w) for channels, part in self.parts
        ]
        if len(sums) == 1 and sums[0].dtype == np.float32:
            return sums[0]
        return np.asarray(sum(y.astype(np.int32) for y in sums))


def integer_filters(w: Array, zero_point: Array | None, group: int) -> IntegerFilters:
    """Lay out 8-bit weights for inputs that are at most 255 from their zero point."""
    if zero_point is not None and zero_point.size > 1:
        zero_point = zero_point.reshape(-1, *(1,) * (w.ndim - 1))
    wide = centred(w, zero_point)
    reach = INPUT_REACH * _largest_sum(wide)
    for count in (1, 2, 4, 8, 16) if group == 1 else (1,):
        edges = [w.shape[1] * i // count for i in range(count + 1)]
        slices = [slice(a, b) for a, b in pairwise(edges)]
        if all(INPUT_REACH * _largest_sum(wide[:, s]) <= EXACT_SUM for s in slices):
            inputs = slices if count > 1 else [slice(None)]
            parts = tuple((i, filters(wide[:, s], group)) for i, s in zip(inputs, slices))
            return IntegerFilters(parts, w.shape[2:], reach)
    return IntegerFilters(((slice(None), filters(wide.astype(np.float64), group)),), w.shape[2:], reach)


def _largest_sum(w: Array) -> float:
    return one_sided(w, tuple(range(1, w.ndim)))


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
    place = window(x.shape[2:], w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    return integer_filters(w, w_zero_point, group).convolve(centred(x, x_zero_point), place).astype(np.int32)


@prepare("ConvInteger")
def prepare_conv_integer(operands: Sequence[Any], *, group: int = 1, **geometry: Any) -> Function | None:
    """Centre the weights and lay them out once."""
    w, w_zero_point = (*operands, None, None)[1:4:2]
    if w is None or not w.size or group < 1 or len(w) % group:
        return None
    weights = integer_filters(w, w_zero_point, group)
    options = {k: v for k, v in geometry.items() if k != "kernel_shape"}

    def run(x: Array, w: Array, x_zero_point: Array | None = None, zero_point: Array | None = None) -> Array:
        if (zero_point is None) != (w_zero_point is None):
            return np.asarray(conv_integer(x, w, x_zero_point, zero_point, group=group, **geometry))
        place = window(x.shape[2:], weights.kernel, **options)
        return weights.convolve(centred(x, x_zero_point), place).astype(np.int32)

    return run


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
        if products.largest_piece():
            products.product(x, matrix, out[:, :, i], work)
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
