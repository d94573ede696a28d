"""Geometry of convolution and pooling: output sizes, padding, and views of sliding windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.steps import counted
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array


class Window(NamedTuple):
    """A sliding window over `size`; every field has one number per spatial axis."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    """Declared padding at the end. A window that ceil_mode adds may extend beyond it."""
    output: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Elements that a dilated kernel spans."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations))

    @property
    def is_pointwise(self) -> bool:
        return all(k == 1 for k in self.kernel) and not any(self.begin) and not any(self.end)

    @property
    def padded(self) -> tuple[int, ...]:
        """Number of elements that all windows together cover, including padding."""
        return tuple((o - 1) * s + e if o else 0 for o, s, e in zip(self.output, self.strides, self.extent))

    def taps(self) -> Iterator[tuple[slice, ...]]:
        """For each kernel element in row-major order, the slices of the padded spatial axes that it reads."""
        counted(prod(self.kernel))
        for tap in product(*map(range, self.kernel)):
            yield tuple(
                slice(t * d, t * d + (o - 1) * s + 1 if o else 0, s)
                for t, d, o, s in zip(tap, self.dilations, self.output, self.strides)
            )


def window(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    is_pool: bool = True,
) -> Window:
    """The window of a pool or convolution over the spatial sizes `size`. GraphError if it does not fit."""
    size, kernel, rank = tuple(size), tuple(kernel), len(size)
    strides, dilations = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    begin, end = _padding(size, extent, strides, pads or (), auto_pad)
    output = []
    for n, e, s, b, a in zip(size, extent, strides, begin, end):
        room = n + b + a - e
        # onnxruntime divides toward zero: a pool's window may exceed the padded input by less than a stride.
        steps = -(-room // s) if ceil_mode or room < 0 else room // s
        if ceil_mode and steps * s >= n + b:
            steps -= 1
        output.append(steps + 1)
        fits = steps >= -1 if is_pool else room >= 0 and n > 0
        if not fits:
            raise GraphError(f"a window spanning {extent} does not fit into {list(size)} padded by {[*begin, *end]}")
    return Window(size, kernel, strides, dilations, begin, end, tuple(output))


convolution_window = partial(window, is_pool=False)
"""The window of a convolution: GraphError for an image that is empty or smaller than the window, as in onnxruntime."""


def placement(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a convolution that state where its windows are."""
    return {key: attributes[key] for key in ("strides", "dilations", "pads", "auto_pad") if key in attributes}


def _padding(
    size: Sequence[int], extent: Sequence[int], strides: Sequence[int], pads: Sequence[int], auto_pad: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank = len(size)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        less, more = zip(*map(same_padding, size, extent, strides)) if rank else ((), ())
        return (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    if auto_pad == "VALID" or not pads:
        return (0,) * rank, (0,) * rank
    return tuple(pads[:rank]), tuple(pads[rank:])


def same_padding(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """(less, more): the two halves of the padding with which ceil(size / stride) windows fit."""
    total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


def padded(x: Array, w: Window, fill: Any) -> Array:
    """x (N, C, spatial...) with the padding that its windows read."""
    places = _padding_places(w)
    if places is None:
        return x
    source, target = places
    out = np.full((*x.shape[:2], *w.padded), fill, x.dtype)
    out[:, :, *target[1:]] = x[:, :, *source[1:]]
    return out


def taps(x: Array, w: Window, fill: Any) -> Iterator[Array]:
    """For each kernel element in order, the elements of x that it reads: (N, C, output...), with `fill` in the padding."""
    whole = padded(x, w, fill)
    for tap in w.taps():
        yield whole[:, :, *tap]


def windows(x: Array, w: Window) -> Array:
    """What each kernel element reads of x (N, C, spatial...), padded with zeros: a read-only view (N, C, kernel..., output...)."""
    whole = np.ascontiguousarray(padded(x, w, 0))
    steps = whole.strides[2:]
    strides = (*whole.strides[:2], *map(mul, steps, w.dilations), *map(mul, steps, w.strides))
    found = strided(whole, (*x.shape[:2], *w.kernel, *w.output), strides)
    found.flags.writeable = False
    return found


def pad_channels_last(x: Array, w: Window, work: Work = AT_ONCE) -> Array:
    """(N, C, spatial...) as a contiguous (N, spatial..., C), with the zeros that its windows read. Never writes to x."""
    x, places = to_last(x), _padding_places(w)
    if places is None:
        return work.contiguous(x)
    source, target = places
    out = work.empty((len(x), *w.padded, x.shape[-1]), x.dtype)
    work.do(out.fill, 0)
    work.do(np.copyto, out[target], x[source])
    return out


_Index = tuple[slice, ...]


@lru_cache(maxsize=256)
def _padding_places(w: Window) -> tuple[_Index, _Index] | None:
    """The slices of the input that are read, channels last, and their place in the padded one. None without padding."""
    if w.padded == w.size and not any(w.begin):
        return None
    places = [held_along(w, axis, count, 0, 1) for axis, count in enumerate(w.padded)]
    return (slice(None), *(source for _, source in places)), (slice(None), *(target for target, _ in places))


@lru_cache(maxsize=256)
def trimmed(w: Window) -> Window:
    """The window without the kernel elements on its edges that read only padding for every output."""
    begin, end, kernel = [], [], []
    for n, k, s, d, b, e, o in zip(w.size, w.kernel, w.strides, w.dilations, w.begin, w.end, w.output):
        first = min(max(0, -(((o - 1) * s - b) // d)), k - 1)
        last = max(first, min(k - 1, (n - 1 + b) // d))
        kernel.append(last - first + 1)
        begin.append(b - first * d)
        end.append(e - (k - 1 - last) * d)
    return w._replace(kernel=tuple(kernel), begin=tuple(begin), end=tuple(end))


Place = tuple[slice, slice]
"""A slice of a copy, or of outputs, along an axis, and the slice of the image that is stored there, or read for them."""


@lru_cache(maxsize=256)
def reached(w: Window, axis: int) -> tuple[Place, ...]:
    """For each kernel element along a spatial axis, the outputs for which it reads an input, and these inputs."""
    taps = range(counted(w.kernel[axis]))
    return tuple([held_along(w, axis, w.output[axis], t * w.dilations[axis], w.strides[axis]) for t in taps])


def held_along(w: Window, axis: int, count: int, first: int, step: int) -> Place:
    """The place of an image in a copy of `count` padded elements along a spatial axis, `step` apart, from `first` on."""
    origin = first - w.begin[axis]
    start, stop = (min(max(0, -(-edge // step)), count) for edge in (-origin, w.size[axis] - origin))
    return slice(start, stop), slice(step * start + origin, step * stop + origin, step)


def strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> Array:
    """View of the memory of a contiguous array, from a byte offset on. Much faster than numpy's as_strided."""
    return np.ndarray(shape, x.dtype, x, offset, strides)


def channels_last(x: Array, work: Work = AT_ONCE) -> Array:
    """(N, C, spatial...) as a contiguous (N, spatial..., C); no copy if the memory has this layout already."""
    return work.contiguous(to_last(x))


def to_last(x: Array) -> Array:
    """(N, C, spatial...) as a view (N, spatial..., C)."""
    return x.transpose(0, *range(2, x.ndim), 1)


def channels_first(x: Array) -> Array:
    """(N, spatial..., C) as a view (N, C, spatial...)."""
    return x.transpose(0, -1, *range(1, x.ndim - 1))
