"""DENSIFY: a dense tensor from the parts of a sparse one."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.checks import KEPT
from ortconv.nnapi.operations.shapes import are_within, integers
from ortconv.nnapi.operations.table import Dims, Findings, OperationCall, operation

DENSE, SPARSE = 0, 1


def levels(c: OperationCall) -> tuple[list[int], list[int]]:
    """The order of traversal, and the dimension to which each of the blocks' levels belongs.

    Levels are the dimensions of the tensor, followed by those within a block.
    """
    order = integers(c.order)
    blocks = [] if c.blocks is None else integers(c.blocks)
    rank = len(order) - len(blocks)
    if sorted(order) != list(range(len(order))) or rank <= 0 or any(not 0 <= dim < rank for dim in blocks):
        raise op_failed(f"traversal {order} and blocks {blocks} are of no tensor")
    if len(c.parts) != 2 * len(order):
        raise op_failed(f"{len(order)} levels need {2 * len(order)} segments and indices, not {len(c.parts)}")
    return order, blocks


def densify_dims(c: OperationCall) -> Dims:
    order, blocks = levels(c)
    sizes = integers(c.sizes, len(order))
    rank = len(order) - len(blocks)
    dims = [1] * rank
    for level, size in zip(order, sizes):
        dims[level if level < rank else blocks[level - rank]] *= size
    return tuple(dims)


def descend(c: OperationCall, sizes: list[int]) -> Array:
    """The coordinates of every stored element, one row for each level in order of traversal."""
    places = np.zeros((0, 1), np.int64)
    for level, (kind, size) in enumerate(zip(integers(c.formats, len(sizes)), sizes)):
        count = places.shape[1]
        if kind == DENSE:
            parents, own = np.repeat(np.arange(count), size), np.tile(np.arange(size), count)
        elif kind == SPARSE:
            parents, own = compressed(c.parts[2 * level], c.parts[2 * level + 1], count, size)
        else:
            raise op_failed(f"{kind} is not a format of a dimension; 0 is dense, 1 sparse")
        places = np.concatenate([places[:, parents], own[None]])
    return places


def compressed(segments: Tensor | None, indices: Tensor | None, count: int, size: int) -> tuple[Array, Array]:
    """For each stored index of a sparse level, the position of its parent, and the index itself."""
    if segments is None or indices is None:
        raise op_failed("a sparse dimension has no segments or indices")
    ends, own = np.array(integers(segments, count + 1)), np.array(integers(indices), np.int64)
    runs = np.diff(ends)
    if ends[0] != 0 or ends[-1] != own.size or (runs < 0).any() or not are_within(own, size):
        raise op_failed(f"segments {ends.tolist()} and indices {own.tolist()} are of no dimension of {size}")
    return np.repeat(np.arange(count), runs), own


def one_dimension(c: OperationCall) -> Findings:
    if c.x.rank > 1:
        yield f"the stored elements have rank {c.x.rank}, not 1"


@operation(
    "DENSIFY", "x:T order:I blocks:I? formats:I sizes:I parts:I?*", level=8, types="F H Q S I B S8 Q16 S16",
    infer=densify_dims, checks=(one_dimension,), quantization=(KEPT,),
)  # fmt: skip
def densify(c: OperationCall) -> Array:
    order, blocks = levels(c)
    sizes = integers(c.sizes)
    places = descend(c, sizes)
    if places.shape[1] != c.x.size:
        raise op_failed(f"{c.x.size} elements are stored, {places.shape[1]} described")
    rank = len(order) - len(blocks)
    by_level = dict(zip(order, zip(sizes, places)))
    index = np.array([by_level[level][1] for level in range(rank)])
    for level, dim in enumerate(blocks, rank):
        size, place = by_level[level]
        index[dim] = index[dim] * size + place
    y = np.full(c.out.dims, c.x.zero_point, c.x.array.dtype)
    y[tuple(index)] = c.x.array
    return y
