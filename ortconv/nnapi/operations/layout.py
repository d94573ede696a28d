"""Padding of images, and operations that move elements between space, depth and batch."""

from __future__ import annotations

from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import KEPT, SMALL, dims_are, offset_needs_level_3, rank, same_rank
from ortconv.nnapi.operations.movement import moved
from ortconv.nnapi.operations.shapes import axis_of, integers, like_x, margins, padded, taken
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

on_images = partial(operation, types="F Q H@3 S@4", checks=(rank("x", 4),), quantization=(KEPT,), nchw=("x", "out"))
"""Decorator of operations that move the elements of images."""


def pad_dims(c: OperationCall) -> Dims:
    return padded(c.x.dims, margins(c.paddings, c.x.rank))


def pad_with(c: OperationCall, value: float) -> Array:
    y = c.work.empty(c.out.dims, c.x.array.dtype)
    c.work.do(y.fill, value)
    inside = tuple(slice(before, before + dim) for (before, _), dim in zip(margins(c.paddings, c.x.rank), c.x.dims))
    c.work.do(np.copyto, y[inside], c.x.array)
    return y


@moved("PAD", "x:T paddings:I", level=2, types="F Q H@3 S@4", infer=pad_dims, checks=(SMALL, offset_needs_level_3))
def pad(c: OperationCall) -> Array:
    return pad_with(c, c.x.zero_point)


@moved("PAD_V2", "x:T paddings:I value:value", level=3, types="F H Q S@4", infer=pad_dims, checks=(SMALL,))
def pad_v2(c: OperationCall) -> Array:
    """For a quantized tensor, the pad value must have the same quantization."""
    if c.x.is_quantized and not c.x.limits[0] <= c.value <= c.x.limits[1]:
        raise op_failed(f"the value {c.value} is none of {c.x.type.name}")
    return pad_with(c, c.value)


def mirror_dims(c: OperationCall) -> Dims:
    pads = margins(c.paddings, c.x.rank)
    if c.mode not in (0, 1):
        raise op_failed(f"{c.mode} is not a mode of mirroring; 0 reflects, 1 is symmetric")
    for dim, pad in zip(c.x.dims, pads):
        if max(pad) > dim - 1 + c.mode:
            raise op_failed(f"padding {max(pad)} of a dimension of {dim} is more than it can mirror")
    return padded(c.x.dims, pads)


@operation(
    "MIRROR_PAD", "x:T paddings:I mode:i", level=7, types="F H Q S I", infer=mirror_dims,
    checks=(KEPT, lambda c: dims_are("paddings", c.x.rank, 2)(c), same_rank("x", "out")),
)  # fmt: skip
def mirror_pad(c: OperationCall) -> Array:
    return np.pad(c.x.array, margins(c.paddings, c.x.rank), mode="symmetric" if c.mode else "reflect")


def depth_to_space_dims(c: OperationCall) -> Dims:
    batch, height, width, depth = c.x.dims
    if c.block <= 0 or depth % (c.block * c.block):
        raise op_failed(f"{depth} channels are not a multiple of blocks of {c.block} x {c.block}")
    return batch, height * c.block, width * c.block, depth // (c.block * c.block)


@on_images("DEPTH_TO_SPACE", "x:T block:i [nchw:b=0 @3]", infer=depth_to_space_dims, recorded=("x",))
def depth_to_space(c: OperationCall) -> Array:
    batch, height, width, _ = c.x.dims
    blocks = c.work.reshaped(c.x.array, (batch, height, width, c.block, c.block, -1))
    return c.work.copied(blocks.transpose(0, 1, 3, 2, 4, 5)).reshape(c.out.dims)


def space_to_depth_dims(c: OperationCall) -> Dims:
    batch, height, width, depth = c.x.dims
    if c.block <= 0 or height % c.block or width % c.block:
        raise op_failed(f"{height} x {width} is not a multiple of blocks of {c.block}")
    return batch, height // c.block, width // c.block, depth * c.block * c.block


@on_images("SPACE_TO_DEPTH", "x:T block:i [nchw:b=0 @3]", infer=space_to_depth_dims, recorded=("x",))
def space_to_depth(c: OperationCall) -> Array:
    batch, rows, columns, _ = c.out.dims
    blocks = c.work.reshaped(c.x.array, (batch, rows, c.block, columns, c.block, -1))
    return c.work.copied(blocks.transpose(0, 1, 3, 2, 4, 5)).reshape(c.out.dims)


def block_of(c: OperationCall) -> list[int]:
    """Height and width of a block."""
    block = integers(c.block, 2)
    if min(block) <= 0:
        raise op_failed(f"the block {block} must be positive")
    return block


def batch_to_space_dims(c: OperationCall) -> Dims:
    batch, height, width, depth = c.x.dims
    rows, columns = block_of(c)
    if batch % (rows * columns):
        raise op_failed(f"a batch of {batch} is not a multiple of a block of {rows} x {columns}")
    return batch // (rows * columns), height * rows, width * columns, depth


@on_images("BATCH_TO_SPACE_ND", "x:T block:I [nchw:b=0 @3]", level=2, infer=batch_to_space_dims)
def batch_to_space(c: OperationCall) -> Array:
    blocks = c.x.array.reshape(*block_of(c), c.out.dims[0], *c.x.dims[1:])
    return blocks.transpose(2, 3, 0, 4, 1, 5).reshape(c.out.dims)


def image_margins(c: OperationCall) -> list[tuple[int, int]]:
    return [(0, 0), *margins(c.paddings, 2), (0, 0)]


def space_to_batch_dims(c: OperationCall) -> Dims:
    batch, height, width, depth = padded(c.x.dims, image_margins(c))
    rows, columns = block_of(c)
    if height % rows or width % columns:
        raise op_failed(f"{height} x {width} with padding is not a multiple of a block of {rows} x {columns}")
    return batch * rows * columns, height // rows, width // columns, depth


@on_images(
    "SPACE_TO_BATCH_ND", "x:T block:I paddings:I [nchw:b=0 @3]", level=2, infer=space_to_batch_dims,
    checks=(rank("x", 4), offset_needs_level_3),
)  # fmt: skip
def space_to_batch(c: OperationCall) -> Array:
    full = np.pad(c.x.array, image_margins(c), constant_values=c.x.zero_point)
    _, rows, columns, depth = c.out.dims
    by_h, by_w = block_of(c)
    blocks = full.reshape(full.shape[0], rows, by_h, columns, by_w, depth)
    return blocks.transpose(2, 4, 0, 1, 3, 5).reshape(c.out.dims)


def shuffle_dims(c: OperationCall) -> Dims:
    size = c.x.dims[axis_of(c.axis, c.x.rank)]
    if c.groups <= 0 or size % c.groups:
        raise op_failed(f"{size} channels do not divide into {c.groups} groups")
    return like_x(c)


@moved("CHANNEL_SHUFFLE", "x:T groups:i axis:i", level=3, types="F H Q S@4", infer=shuffle_dims, checks=(SMALL,))
def channel_shuffle(c: OperationCall) -> Array:
    """Channel j of group i becomes channel i of group j."""
    order = np.arange(c.x.dims[c.axis]).reshape(c.groups, -1).T.reshape(-1)
    return taken(c.work, c.x.array, order, axis_of(c.axis, c.x.rank))
