"""Resize and Upsample, along one axis at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import iadd, imul
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels.registry import float_kernel, kernel, older
from ortconv.ir.tensor import Array


class Axis(NamedTuple):
    """The resampling of one axis. `scale` is output size over input size as the model states it, in float32."""

    size: int
    output: int
    scale: np.floating[Any]
    start: float = 0.0
    end: float = 1.0
    """Region of interest, as fractions of the axis."""

    @property
    def keeps(self) -> bool:
        return self.size == self.output and self.scale == 1


def _half_pixel(i: Array, a: Axis) -> Array:
    return (i + np.float32(0.5)) / a.scale - np.float32(0.5)


def _half_pixel_symmetric(i: Array, a: Axis) -> Array:
    adjustment = np.float32(a.output) / (a.scale * np.float32(a.size))
    offset = np.float32(a.size) / 2 * (1 - adjustment)
    return np.asarray(offset + (i + np.float32(0.5)) / a.scale - np.float32(0.5))


def _crop(i: Array, a: Axis) -> Array:
    last, start, end = np.float32(a.size - 1), np.float32(a.start), np.float32(a.end)
    if a.output > 1:
        return start * last + i * ((end - start) * last / np.float32(a.output - 1))
    return np.full_like(i, 0.5 * (start + end) * last)


COORDINATES: dict[str, Callable[[Array, Axis], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": lambda i, a: _half_pixel(i, a) if a.output > 1 else np.zeros_like(i),
    # The corners are those of the result, as in onnxruntime. ONNX's reference uses the length before it is rounded down.
    "align_corners": lambda i, a: i * np.float32(a.size - 1) / np.float32(a.output - 1) if a.output > 1 else 0 * i,
    "asymmetric": lambda i, a: i / a.scale,
    "tf_half_pixel_for_nn": lambda i, a: (i + np.float32(0.5)) / a.scale,
    "tf_crop_and_resize": _crop,
}

NEAREST: dict[str, Callable[[Array, Axis], Array]] = {
    "round_prefer_floor": lambda x, _: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x, _: np.floor(x + np.float32(0.5)),
    "floor": lambda x, _: np.floor(x),
    "ceil": lambda x, _: np.ceil(x),
}


def cubic_near(x: Array, a: float) -> Array:
    """The weight of an element at a distance up to 1."""
    return np.asarray(((a + 2) * x - (a + 3)) * x * x + 1)


def cubic_far(x: Array, a: float) -> Array:
    """The weight of an element at a distance from 1 to 2."""
    return np.asarray(((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


def _cubic(x: Array, a: float) -> Array:
    x = np.abs(x)
    return np.where(x <= 1, cubic_near(x, a), np.where(x < 2, cubic_far(x, a), 0))


class Sampling(NamedTuple):
    """The rules by which positions determine elements of the result."""

    mode: str
    coordinates: str
    nearest: Callable[[Array, Axis], Array]
    cubic_coeff_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False

    def positions(self, a: Axis) -> Array:
        """Where the elements of the result are in x. An axis that keeps its size is not cropped either, as in onnxruntime."""
        places = np.arange(a.output, dtype=np.float32)
        return places if a.keeps else COORDINATES[self.coordinates](places, a)


@lru_cache(maxsize=64)
def _taps(a: Axis, s: Sampling) -> tuple[Array, Array | None]:
    """For each element along an axis of the result, the indices of input elements and the weights for their sum: both
    (taps, output). Without weights, elements are copied.
    """
    if s.mode == "nearest":
        index = np.clip(s.nearest(s.positions(a), a).astype(np.int64), 0, a.size - 1)
        return index[None], None
    position = s.positions(a)
    support = 1 if s.mode == "linear" else 2
    shrink = min(float(a.scale), 1.0) if s.antialias else 1.0
    before = int(np.floor(-support / shrink)) + 1
    offsets = np.arange(before, 1 - before + 1)
    base = np.floor(position)
    index = base.astype(np.int64) + offsets[:, None]
    distance = ((position - base).astype(np.float64) - offsets[:, None]) * shrink
    weights = np.maximum(1 - np.abs(distance), 0) if s.mode == "linear" else _cubic(distance, s.cubic_coeff_a)
    total = weights.sum(axis=0)
    weights = weights / np.where(total == 0, 1, total) if s.antialias else weights
    if s.exclude_outside:
        weights = np.where((index < 0) | (index >= a.size), 0, weights)
        total = weights.sum(axis=0)
        weights = weights / np.where(total == 0, 1, total)
    used = weights.any(axis=1) if weights.any() else np.arange(len(weights)) == 0
    return np.clip(index[used], 0, max(a.size - 1, 0)), weights[used]


def _resample(x: Array, axis: int, indices: Array, weights: Array | None) -> Array:
    """Resample one axis of x: sums of selected elements times weights."""
    selected: list[Array] = [x.take(index, axis) for index in indices]
    if weights is None:
        return selected[0]
    weights = weights.astype(x.dtype).reshape(len(selected), -1, *(1,) * (x.ndim - axis - 1))
    return reduce(iadd, map(imul, selected, weights))


def _sampled(x: Array, axes: Sequence[Axis], s: Sampling) -> Array:
    """x resampled along every axis, in floating point unless the mode is nearest. The result has the memory layout of x."""
    order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
    y = x if s.mode == "nearest" or x.dtype.kind in "fO" else x.astype(np.float32)
    y = y.transpose(order)
    for d in reversed(range(x.ndim)):
        a = axes[order[d]]
        if not a.keeps:
            y = _resample(y, d, *_taps(a, s))
    if np.may_share_memory(y, x):
        y = y.copy()
    return y.transpose(np.argsort(order))


def _extrapolated(y: Array, axes: Sequence[Axis], s: Sampling, value: float) -> Array:
    """y with `value` for positions outside the input."""
    for d, a in enumerate(axes):
        position = s.positions(a)
        y[(slice(None),) * d + ((position < 0) | (position > a.size - 1),)] = value
    return y


def _resampled(x: Array, axes: Sequence[Axis], s: Sampling, extrapolation_value: float = 0.0) -> Array:
    crops = s.coordinates == "tf_crop_and_resize"
    rounds = s.mode != "nearest" and x.dtype.kind in "iu"
    if not crops and all(a.size == a.output for a in axes):
        return x.copy()  # as onnxruntime does, whatever the scales
    y = _sampled(x, axes, s)
    if crops:
        y = _extrapolated(y, axes, s, extrapolation_value)
    if not rounds:
        return y
    info = np.iinfo(x.dtype)
    return np.clip(np.rint(y) if s.antialias else np.trunc(y), info.min, info.max).astype(x.dtype)


def _simple_nearest(position: Array, a: Axis) -> Array:
    """Before opset 11, down-scaling selects the next element."""
    return np.ceil(position) if a.scale < 1 else np.floor(position)


def _before_11(x: Array, scales: Array | Sequence[float], mode: str) -> Array:
    axes = [Axis(n, int(np.floor(np.float32(n) * np.float32(s))), np.float32(s)) for n, s in zip(x.shape, scales)]
    sampling = Sampling(_MODES[mode], "asymmetric", _simple_nearest)
    return _resampled(x, axes, sampling)


_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}


@float_kernel("Upsample", until=6)
def upsample_1(x: Array, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Array:
    return _before_11(x, (1, 1, height_scale, width_scale), mode)


@kernel("Upsample", since=9)
@float_kernel("Resize", until=10)
def upsample(x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    return _before_11(x, scales, mode)


older("Upsample", "scales", since=7, until=8)


@float_kernel("Resize", since=11)
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    coordinates = coordinate_transformation_mode
    chosen = range(x.ndim) if axes is None else [d % x.ndim for d in axes]
    lengths = [x.shape[d] for d in chosen]
    outputs, factors = _sizes(lengths, scales, sizes, keep_aspect_ratio_policy)
    region = [[0.0] * len(lengths), [1.0] * len(lengths)]
    if roi is not None and roi.size and coordinates == "tf_crop_and_resize":
        region = roi.reshape(2, -1).tolist()
    plan = [Axis(n, n, np.float32(1)) for n in x.shape]
    for d, *of_axis in zip(chosen, lengths, outputs, factors, *region):
        plan[d] = Axis(*of_axis)
    smooth = bool(antialias) and mode != "nearest"
    sampling = Sampling(mode, coordinates, NEAREST[nearest_mode], cubic_coeff_a, smooth, bool(exclude_outside))
    return _resampled(x, plan, sampling, extrapolation_value)


def _sizes(
    lengths: Sequence[int], scales: Array | None, sizes: Array | None, policy: str
) -> tuple[list[int], list[np.float32]]:
    """The sizes of the result along the axes that are resized, and their scales."""
    if scales is not None and scales.size:
        factors = [np.float32(s) for s in scales.ravel()]
        outputs = [int(np.floor(np.float32(n) * s)) for n, s in zip(lengths, factors)]
    elif sizes is not None and sizes.size:
        outputs = [int(s) for s in sizes]
        factors = [np.float32(o) / np.float32(max(n, 1)) for n, o in zip(lengths, outputs)]
        if policy != "stretch":
            factors = [(min if policy == "not_larger" else max)(factors)] * len(lengths)
            outputs = [int(np.floor(s * np.float32(n) + np.float32(0.5))) for n, s in zip(lengths, factors)]
    else:
        raise GraphError("Resize has neither scales nor sizes")
    if len(outputs) != len(lengths):
        raise GraphError(f"Resize got {len(outputs)} scales or sizes for {len(lengths)} axes")
    if min(factors) < 0 or (0 in factors and scales is not None and scales.size):
        raise GraphError(f"Resize cannot turn sizes {list(lengths)} into {outputs}")
    return outputs, factors
