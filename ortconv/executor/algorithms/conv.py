"""Convolution with laid out weights. Results have channels-first shapes and channels-last memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms import winograd
from ortconv.executor.algorithms.depthwise import depthwise
from ortconv.executor.algorithms.gemm import matrix, outputs_last
from ortconv.executor.algorithms.gemm_exact import centered, exact_parts
from ortconv.executor.algorithms.im2col import FEW_CHANNELS, unfolded
from ortconv.executor.algorithms.sliding_window import (
    Window,
    channels_first,
    channels_last,
    convolution_window,
    pad_channels_last,
    placement,
)
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.tensor import Array


class Filters(NamedTuple):
    """Weights (M, C/group, kernel...) laid out for rows of channels-last windows."""

    matrix: Array
    """(group, kernel elements * C/group, M/group); depthwise: (kernel elements, M). Contiguous, unless group and kernel are 1."""
    channels: int
    """Channels of the input."""


def filters(w: Array, group: int) -> Filters:
    """Lay out convolution weights. GraphError if `group` does not divide the output channels."""
    m, c, *k = w.shape
    if group < 1 or m % group:
        raise GraphError(f"{m} output channels cannot be divided into {group} groups")
    if c == 1 and group > 1:
        return Filters(np.ascontiguousarray(w.reshape(m, -1).T), group)
    if prod(k) == group == 1:
        return Filters(w.reshape(1, m, c).swapaxes(1, 2), c)
    return Filters(outputs_last(w, group).reshape(group, c * prod(k), m // group), c * group)


def convolver(f: Filters, w: Window, channels: int) -> Function:
    """A function of x (N, channels, spatial...) that convolves with laid out weights to (N, M, output...), without bias.

    Its second argument may be contiguous memory (N, output..., M) for the result.
    """
    if channels != f.channels:
        raise GraphError(f"the weights expect {f.channels} channels, the input has {channels} (size {list(w.size)})")
    if f.matrix.ndim == 2:
        return _depthwise(f, w)
    return _pointwise(f.matrix, w) if w.is_pointwise else _windowed(f, w)


def _windowed(f: Filters, w: Window) -> Function:
    group, _, m = f.matrix.shape
    c = f.channels // group
    parts = [unfolded(a, w) for a in f.matrix]

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        x = work.contiguous(x) if c <= FEW_CHANNELS and group > 1 else x
        out = work.empty((len(x), *w.output, group * m), x.dtype) if out is None else out
        for g, multiply in enumerate(parts):
            multiply(work, x[:, g * c : (g + 1) * c], out[..., g * m : (g + 1) * m])
        return channels_first(out)

    return recordable(run)


def _pointwise(weights: Array, w: Window) -> Function:
    group, c, m = weights.shape
    multiply = matrix(weights[0]).write
    steps: tuple[Any, ...] = (..., *(slice(None, None, s) for s in w.strides))

    def run(work: Work, x: Array, out: Array | None = None) -> Array:
        count = len(x) * prod(w.output)
        rows = channels_last(x[steps], work).reshape(count, group * c)
        out = work.empty((len(x), *w.output, group * m), x.dtype) if out is None else out
        target = out.reshape(count, group * m)
        if group == 1:
            multiply(rows, target, work)
        else:
            by_group = rows.reshape(count, group, c).swapaxes(0, 1)
            work.do(np.matmul, by_group, weights, target.reshape(count, group, m).swapaxes(0, 1))
        return channels_first(out)

    return recordable(run)


def _depthwise(f: Filters, w: Window) -> Function:
    is_image = len(w.kernel) == 2 and all(w.output)
    one: Function = depthwise(f.matrix, w) if is_image else partial(_tap_by_tap, f.matrix, w)
    multiplier = f.matrix.shape[1] // f.channels
    return one if multiplier == 1 else lambda x, out=None: one(np.repeat(x, multiplier, axis=1), out)


def _tap_by_tap(weights: Array, w: Window, x: Array, out: Array | None = None) -> Array:
    x = pad_channels_last(x, w)
    out = np.empty((x.shape[0], *w.output, x.shape[-1]), x.dtype) if out is None else out
    out[...] = 0
    for tap, factors in zip(w.taps(), weights):
        out += x[(slice(None), *tap)] * factors
    return channels_first(out)


def convolution(weights: Array, group: int, geometry: Mapping[str, Any], is_exact: bool = False) -> Function:
    """A function of x, of float32, that convolves with constant weights, without bias. The caller may overwrite its results.

    Weights may be integers. `is_exact` demands exact sums of 8-bit weights and centered values.
    """

    def laid_out_by(arrange: Callable[..., Any], *args: Any) -> Any:
        return arrange(weights.astype(np.float32) if weights.dtype.kind in "iu" else weights, *args)

    laid_out = once(laid_out_by, filters, group)
    where = placement(geometry)
    steps = {*geometry.get("strides", ()), *geometry.get("dilations", ())}
    suits_winograd = winograd.suits(weights, group) and steps <= {1}
    tiled = once(laid_out_by, winograd.transform_weights) if suits_winograd else None
    check = winograd.ExactSums(tiled) if is_exact and tiled is not None else winograd.are_finite
    _, channels, *size = weights.shape

    @lru_cache(maxsize=16)
    def bound(shape: tuple[int, ...]) -> Function:
        w = convolution_window(shape[2:], size, **where)
        direct = cache(lambda: convolver(laid_out(), w, shape[1]))
        if tiled is None or shape[1] != channels or not winograd.suits_window(w, shape[0]):
            return direct()
        return winograd.convolver(tiled, w, direct, check)

    return recordable(lambda work, x: work.call(bound(x.shape), x))


def once(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """A function that makes this call when it is first called, and from then on holds only the result."""
    pending, made = [partial(function, *args)], list[Any]()

    def result() -> Any:
        for make in pending.copy():
            made.append(make())
        pending.clear()
        return made[0]

    return result


class IntegerFilters(NamedTuple):
    """Integer weights minus their zero points, in parts whose sums the floating-point type represents exactly."""

    parts: tuple[tuple[slice, Filters], ...]
    """Input channels, and the weights for them."""
    kernel: tuple[int, ...]

    def convolve(self, x: Array, w: Window, work: Work = AT_ONCE) -> Array:
        """Exact sums for a centered, integer-valued float32 input: as float32 if it can represent them, else as int32."""
        total: Array | None = None
        for channels, part in self.parts:
            given = x[:, channels]
            if part.matrix.dtype != x.dtype:
                given, narrow = work.like(given, part.matrix.dtype), given
                work.do(np.copyto, given, narrow)
            y: Array = work.call(convolver(part, w, given.shape[1]), given)
            if len(self.parts) == 1 and y.dtype == np.float32:
                return y
            if total is None:
                total = work.like(y, np.int32)
                work.do(total.fill, 0)
            work.do(partial(np.add, casting="unsafe"), total, y, total)
        assert total is not None
        return total


def integer_filters(w: Array, zero_point: Array | None, group: int) -> IntegerFilters:
    """Lay out 8-bit weights for inputs that are at most 255 from their zero point."""
    wide = centered(w, None if zero_point is None else zero_point.reshape(-1, *(1,) * (w.ndim - 1)))
    parts = exact_parts(wide, _MOST_PARTS if group == 1 else 1)
    if parts is None:
        return IntegerFilters(((slice(None), filters(wide.astype(np.float64), group)),), w.shape[2:])
    return IntegerFilters(tuple([(k, filters(wide[:, k], group)) for k in parts]), w.shape[2:])


_MOST_PARTS = 16
"""Maximum number of parts into which input channels may be split."""


def prepared_integers(operands: Sequence[Array | None], *, group: int = 1, **geometry: Any) -> Function | None:
    """ConvInteger with constant weights minus their zero points: sums in floating point that are exact."""
    w, known = (*operands, None, None)[1:4:2]
    if w is None or not w.size or group < 1 or len(w) % group:
        return None
    weights, where = integer_filters(w, known, group), placement(geometry)

    def run(work: Work, x: Array, _: Array, x_zero: Array | None = None, w_zero: Array | None = None) -> Array | None:
        if work is not AT_ONCE or (w_zero is None) != (known is None):
            return None
        place = convolution_window(x.shape[2:], weights.kernel, **where)
        return weights.convolve(centered(x, x_zero), place).astype(np.int32)

    return run
