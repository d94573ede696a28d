"""Operations that exchange depth, batch and space of NHWC images, and CHANNEL_SHUFFLE."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import rank, rank_at_most, same_quantization
from ortconv.nnapi.operations.movement import zero_point_needs_level_3
from ortconv.nnapi.operations.shapes import axis_of, like_x
from ortconv.nnapi.operations.table import Call, Dims, operation

TYPES = "F Q H@3 S@4"
CHECKS = (rank("x", 4), same_quantization("x", "out"))
IMAGES = ("x", "out")


def depth_to_space_dims(c: Call) -> Dims:
    batch, height, width, depth = c.x.dims
    if c.block <= 0 or depth % (c.block * c.block):
        raise op_failed(f"a depth of {depth} is no multiple of the block size {c.block} squared")
    return batch, height * c.block, width * c.block, depth // (c.block * c.block)


@operation(
    "DEPTH_TO_SPACE", "x:T block:i [nchw:b=0 @3]", types=TYPES, infer=depth_to_space_dims, checks=CHECKS, nchw=IMAGES
)
def depth_to_space(c: Call) -> Array:
    batch, height, width, _ = c.x.dims
    cells = c.x.array.reshape(batch, height, width, c.block, c.block, -1)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(c.out.dims)


def space_to_depth_dims(c: Call) -> Dims:
    batch, height, width, depth = c.x.dims
    if c.block <= 0 or height % c.block or width % c.block:
        raise op_failed(f"{height} x {width} is no multiple of the block size {c.block}")
    return batch, height // c.block, width // c.block, depth * c.block * c.block


@operation(
    "SPACE_TO_DEPTH", "x:T block:i [nchw:b=0 @3]", types=TYPES, infer=space_to_depth_dims, checks=CHECKS, nchw=IMAGES
)
def space_to_depth(c: Call) -> Array:
    batch, height, width, depth = c.x.dims
    cells = c.x.array.reshape(batch, height // c.block, c.block, width // c.block, c.block, depth)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(c.out.dims)


def block_of(c: Call) -> tuple[int, int]:
    """(height, width)"""
    sizes = c.block.array.reshape(-1).tolist()
    if len(sizes) != 2 or min(sizes) <= 0:
        raise op_failed(f"the block {sizes} is not two positive sizes")
    return sizes[0], sizes[1]


def batch_to_space_dims(c: Call) -> Dims:
    (batch, height, width, depth), (block_h, block_w) = c.x.dims, block_of(c)
    if batch % (block_h * block_w):
        raise op_failed(f"a batch of {batch} is no multiple of {block_h} x {block_w}")
    return batch // (block_h * block_w), height * block_h, width * block_w, depth


@operation(
    "BATCH_TO_SPACE_ND",
    "x:T block:I [nchw:b=0 @3]",
    level=2,
    types=TYPES,
    infer=batch_to_space_dims,
    checks=CHECKS,
    nchw=IMAGES,
)
def batch_to_space(c: Call) -> Array:
    cells = c.x.array.reshape(*block_of(c), c.out.dims[0], *c.x.dims[1:])
    return cells.transpose(2, 3, 0, 4, 1, 5).reshape(c.out.dims)


def space_to_batch_pads(c: Call) -> list[tuple[int, int]]:
    if c.paddings.dims != (2, 2) or c.paddings.array.min() < 0:
        raise op_failed(f"the paddings {c.paddings.array.tolist()} are not two pairs that are not negative")
    return [(0, 0), *((int(before), int(behind)) for before, behind in c.paddings.array), (0, 0)]


def space_to_batch_dims(c: Call) -> Dims:
    batch, height, width, depth = (dim + sum(both) for dim, both in zip(c.x.dims, space_to_batch_pads(c)))
    block_h, block_w = block_of(c)
    if height % block_h or width % block_w:
        raise op_failed(f"{height} x {width} with padding is no multiple of {block_h} x {block_w}")
    return batch * block_h * block_w, height // block_h, width // block_w, depth


@operation(
    "SPACE_TO_BATCH_ND", "x:T block:I paddings:I [nchw:b=0 @3]", level=2, types=TYPES, infer=space_to_batch_dims,
    checks=(*CHECKS, zero_point_needs_level_3), nchw=IMAGES,
)  # fmt: skip
def space_to_batch(c: Call) -> Array:
    padded = np.pad(c.x.array, space_to_batch_pads(c), constant_values=c.x.zero_point)
    (block_h, block_w), (_, height, width, depth) = block_of(c), c.out.dims
    cells = padded.reshape(-1, height, block_h, width, block_w, depth)
    return cells.transpose(2, 4, 0, 1, 3, 5).reshape(c.out.dims)


@operation(
    "CHANNEL_SHUFFLE", "x:T groups:i axis:i", level=3, types="F H Q S@4", infer=like_x,
    checks=(rank_at_most(4, "x"), same_quantization("x", "out")),
)  # fmt: skip
def channel_shuffle(c: Call) -> Array:
    """The channels of every group in turn."""
    axis = axis_of(c.axis, c.x.rank)
    before, channels, behind = c.x.dims[:axis], c.x.dims[axis], c.x.dims[axis + 1 :]
    if c.groups <= 0 or channels % c.groups:
        raise op_failed(f"{channels} channels do not divide into {c.groups} groups")
    cells = c.x.array.reshape(*before, c.groups, channels // c.groups, *behind)
    return cells.swapaxes(axis, axis + 1).reshape(c.x.dims)
