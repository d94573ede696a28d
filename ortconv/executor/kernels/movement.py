"""Operators that move elements without computing: reshape, slice, join, pad, repeat. Views wherever numpy has one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import sub
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms import movement as fast
from ortconv.executor.kernels.registry import kernel, older, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.slices import selected
from ortconv.ir.tensor import Array


def integers(x: Array) -> tuple[int, ...]:
    """The elements of an integer tensor as Python integers."""
    return tuple(x.reshape(-1).tolist())


table({
    "Identity": lambda x: x,
    "Flatten": lambda x, *, axis=1: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])),
    "Transpose": lambda x, *, perm=None: x.transpose(perm),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, integers(shape))),
})  # fmt: skip


@kernel("Reshape", since=5, fast=fast.reshape)
def reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    sizes = integers(shape)
    return x.reshape(sizes if allowzero else [d or x.shape[i] for i, d in enumerate(sizes)])


older("Reshape", "shape", until=1)


@kernel("Squeeze", since=13)
def squeeze(x: Array, axes: Array | None = None) -> Array:
    if axes is None or not axes.size:
        return x.squeeze()
    return x.squeeze(tuple({axis + x.ndim if axis < 0 else axis for axis in integers(axes)}))  # axes may be repeated


older("Squeeze", "axes", until=12)


@kernel("Unsqueeze", since=13)
def unsqueeze(x: Array, axes: Array) -> Array:
    given, rank = integers(axes), x.ndim + axes.size
    inserted = {axis + rank if axis < 0 else axis for axis in given}
    if len(inserted) < len(given) or not all(0 <= axis < rank for axis in inserted):
        raise GraphError(f"axes {list(given)} cannot be inserted into a tensor of rank {x.ndim}")
    return x[tuple(None if axis in inserted else slice(None) for axis in range(rank))]


older("Unsqueeze", "axes", until=12)


table({"ExpandDims": lambda x, axis: np.expand_dims(x, axis.item())}, domain=MICROSOFT)


@kernel("UnfoldTensor", domain=MICROSOFT)
def unfold_tensor(x: Array, *, dim: int = -1, size: int, step: int = 1) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim)
    return windows[(slice(None),) * (dim % x.ndim) + (slice(None, None, step),)]


@kernel("Concat", record=fast.concat)
def concat(*inputs: Array, axis: int = 1) -> Array:
    return np.concatenate(inputs, axis)


@kernel("Split", since=13)
def split(
    x: Array, sizes: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, n_outputs: int
) -> tuple[Array, ...]:
    if sizes is not None:
        return pieces(x, axis, sizes)
    parts = num_outputs or n_outputs
    return chunks(x, axis, -(-x.shape[axis] // parts), parts)


older("Split", "split", until=11)


def pieces(x: Array, axis: int, sizes: Array) -> tuple[Array, ...]:
    """Consecutive views of these sizes along an axis, which must make up all of it."""
    given = integers(sizes)
    if min(given, default=0) < 0 or sum(given) != x.shape[axis]:
        raise GraphError(f"an axis of {x.shape[axis]} elements cannot be split into {list(given)}")
    return tuple(np.split(x, np.cumsum(given), axis)[:-1])


def chunks(x: Array, axis: int, size: int, count: int) -> tuple[Array, ...]:
    """`count` consecutive views of one size along an axis. What the axis lacks is missing in the last ones."""
    return tuple(np.split(x, size * np.arange(1, count + 1), axis)[:-1])


@kernel("DynamicSlice")
@kernel("Slice", since=10)
def slice_(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    along = range(starts.size) if axes is None or not axes.size else integers(axes)
    by = [1] * starts.size if steps is None else integers(steps)
    index = [slice(None)] * x.ndim
    for start, end, axis, step in zip(integers(starts), integers(ends), along, by, strict=True):
        taken = selected(start, end, step, x.shape[axis])
        index[axis] = slice(taken.start, taken.stop if taken.stop >= 0 else None, step) if taken else slice(0, 0)
    return x[tuple(index)]


older("Slice", "starts", "ends", "axes", until=1)


table({
    "Pad": lambda x, *, paddings, mode="constant", value=0.0: padded(x, paddings, mode, value, range(x.ndim)),
}, until=1)  # fmt: skip


@kernel("Pad", since=11)
@kernel("Pad", domain=MICROSOFT)
def pad(
    x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    value = zero(x) if constant_value is None else constant_value.reshape(-1)[0]
    return padded(x, integers(pads), mode, value, range(x.ndim) if axes is None else integers(axes))


older("Pad", "pads", "value", since=2, until=10)


def zero(x: Array) -> object:
    """The default element: 0, or the empty string."""
    is_text = x.dtype.kind == "O" and all(isinstance(element, str) for element in x.flat)
    return "" if is_text else x.dtype.type(0)


def padded(x: Array, pads: Sequence[int], mode: Any, value: object, axes: Sequence[int]) -> Array:
    """`pads` are the elements added before each of the axes, then those after each; negative amounts crop."""
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    if mode == "constant":
        sizes = [b + n + a for b, n, a in zip(before, x.shape, after)]
        out = np.full_like(x, value, shape=sizes)
        # Negative amounts crop, what the other side adds included.
        kept = tuple(slice(max(-b, 0), max(size - b, 0)) for b, size in zip(before, sizes))
        out[tuple(slice(max(b, 0), max(b + n, 0)) for b, n in zip(before, x.shape))] = x[kept]
        return out
    if mode not in ("edge", "reflect", "wrap"):
        raise ValueError(f"pad mode {mode!r} is not one of constant, edge, reflect, wrap")
    x = x[tuple(slice(max(-b, 0), n + min(a, 0)) for b, a, n in zip(before, after, x.shape))]
    return np.pad(x, [(max(b, 0), max(a, 0)) for b, a in zip(before, after)], mode)


@kernel("Tile", since=6)
def tile(x: Array, repeats: Array) -> Array:
    counts = integers(repeats)
    if any(count < 0 for count in counts):
        raise GraphError(f"a number of repeats is negative: {list(counts)}")
    both = [*zip(counts, x.shape, strict=True)]
    whole = np.broadcast_to(x.reshape([d for n in x.shape for d in (1, n)]), [d for pair in both for d in pair])
    return whole.reshape([*map(prod, both)])


table({
    "Tile": lambda x, tiles, axis: tile(x, np.where(np.arange(x.ndim) == axis.item() % x.ndim, tiles.item(), 1)),
}, until=1)  # fmt: skip


@kernel("DepthToSpace")
def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    (n, c, h, w), b = x.shape, blocksize
    c //= b * b
    x = x.reshape(n, b, b, c, h, w).transpose(0, 3, 1, 2, 4, 5) if mode == "DCR" else x.reshape(n, c, b, b, h, w)
    return x.transpose(0, 1, 4, 2, 5, 3).reshape(n, c, h * b, w * b)


@kernel("SpaceToDepth")
def space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    (n, c, h, w), b = x.shape, blocksize
    x = x.reshape(n, c, h // b, b, w // b, b)
    x = x.transpose(0, 3, 5, 1, 2, 4) if mode == "DCR" else x.transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(n, c * b * b, h // b, w // b)


@kernel("CenterCropPad")
def center_crop_pad(x: Array, shape: Array, *, axes: Sequence[int] | None = None) -> Array:
    added = [0] * x.ndim
    for axis, size in zip(range(x.ndim) if axes is None else axes, integers(shape), strict=True):
        added[axis] = size - x.shape[axis]
    before = [int(a / 2) for a in added]
    return padded(x, [*before, *map(sub, added, before)], "constant", zero(x), range(x.ndim))


@kernel("ReverseSequence")
def reverse_sequence(x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    rows = np.moveaxis(x, (batch_axis, time_axis), (0, 1))
    if lengths.shape != rows.shape[:1] or (lengths < 0).any():
        raise GraphError(f"{lengths.tolist()} are no lengths of {len(rows)} sequences")
    steps, length = np.arange(rows.shape[1]), lengths.astype(np.int64)[:, None]
    index = np.where(steps < length, length - 1 - steps, steps)
    return np.moveaxis(rows[np.arange(len(rows))[:, None], index], (0, 1), (batch_axis, time_axis))
