"""Operations that rearrange, cut, join or repeat tensors without arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.operations.arithmetic import round_half_away
from ortconv.nnapi.operations.checks import KEPT, SMALL, dims_are, kept_as_advice, same_quantization, same_rank, small
from ortconv.nnapi.operations.shapes import are_within, axes_of, axis_of, in_quantization, integers
from ortconv.nnapi.operations.table import Dims, Findings, OperationCall, operation

ALL = "F H I Q S@4"

moved = partial(operation, quantization=(KEPT,), recorded=("x",))
"""Decorator of operations that keep elements and quantization of x."""


def reshape_dims(c: OperationCall) -> Dims:
    dims = c.shape.array.reshape(-1).tolist()
    stretch = [axis for axis, dim in enumerate(dims) if dim == -1]
    if len(stretch) > 1 or min(dims, default=1) < -1:
        raise op_failed(f"the shape {dims} may have one -1 and no other negative")
    rest = math.prod(dim for dim in dims if dim != -1)
    if stretch and rest:
        dims[stretch[0]] = c.x.size // rest
    if math.prod(dims) != c.x.size:
        raise op_failed(f"{c.x.size} elements do not fit the shape {dims}")
    return tuple(dims)


def reshaped(c: OperationCall) -> Array:
    return c.x.array.reshape(c.out.dims)


moved("RESHAPE", "x:T shape:I", types="F Q H@3 S@4 I@6", infer=reshape_dims, checks=(SMALL,))(reshaped)


def squeeze_dims(c: OperationCall) -> Dims:
    """The dimensions without the named ones of size 1, or without all of size 1 if none is named; [1] if no dimension remains."""
    named = [] if c.axes is None else axes_of(c.axes, c.x.rank)
    gone = named or [axis for axis, dim in enumerate(c.x.dims) if dim == 1]
    if wide := [axis for axis in gone if c.x.dims[axis] != 1]:
        raise op_failed(f"dimension {wide[0]} of {list(c.x.dims)} is not 1")
    return tuple(dim for axis, dim in enumerate(c.x.dims) if axis not in gone) or (1,)


moved("SQUEEZE", "x:T axes:I?", level=2, types="F Q H@3 S@4", infer=squeeze_dims, checks=(SMALL,))(reshaped)


def expand_dims(c: OperationCall) -> Dims:
    axis = axis_of(c.axis, c.x.rank + 1)
    return (*c.x.dims[:axis], 1, *c.x.dims[axis:])


moved("EXPAND_DIMS", "x:T axis:i", level=3, types=ALL, infer=expand_dims)(reshaped)


def permutation(c: OperationCall) -> list[int]:
    """The order of the dimensions; without one, a matrix is transposed."""
    if c.order is None:
        if c.x.rank != 2:
            raise op_failed(f"a tensor of rank {c.x.rank} needs an order; only a matrix does without")
        return [1, 0]
    order = integers(c.order, c.x.rank)
    if sorted(order) != list(range(c.x.rank)):
        raise op_failed(f"{order} is not an order of {c.x.rank} dimensions")
    return order


@moved(
    "TRANSPOSE", "x:T order:I?", level=2, types="F Q H@3 S@4", checks=(SMALL,), zero_sized=True,
    infer=lambda c: tuple(c.x.dims[axis] for axis in permutation(c)),
)  # fmt: skip
def transpose(c: OperationCall) -> Array:
    return c.x.array.transpose(permutation(c))


def some(c: OperationCall) -> Findings:
    if not c.inputs:
        yield "needs at least one tensor"


def mixed_quantization(c: OperationCall) -> Findings:
    if c.out.is_quantized and not all(one.same_quantization(c.out) for one in c.inputs):
        yield FeatureLevel.LEVEL_3


def concatenation_dims(c: OperationCall) -> Dims:
    first = c.inputs[0].dims
    axis = axis_of(c.axis, len(first))
    for other in c.inputs:
        if other.rank != len(first) or any(a != b for i, (a, b) in enumerate(zip(first, other.dims)) if i != axis):
            raise op_failed(f"dimensions {list(first)} and {list(other.dims)} differ off axis {axis}")
    return (*first[:axis], sum(one.dims[axis] for one in c.inputs), *first[axis + 1 :])


def requantized(x: Tensor, out: OperandType) -> Array:
    """Elements in the quantization of the output, rounded before its zero point is added."""
    scale = np.float32(x.scale) * (np.float32(1) / np.float32(out.scale))
    steps = round_half_away(x.array.astype(np.float32) * scale - np.float32(x.zero_point) * scale)
    return np.clip(steps + out.zero_point, *out.limits).astype(out.type.dtype)


@operation(
    "CONCATENATION", "inputs:T* axis:i", types="F Q H@3 S@4", infer=concatenation_dims,
    checks=(some, small("inputs"), mixed_quantization), zero_sized=True, recorded=("inputs",),
)  # fmt: skip
def concatenation(c: OperationCall) -> Array:
    parts = [in_quantization(c, one, requantized) for one in c.inputs]
    y = c.work.empty(c.out.dims, parts[0].dtype)
    c.work.do(np.concatenate, parts, c.axis, y)
    return y


def split_dims(c: OperationCall) -> list[Dims]:
    dims, axis = c.x.dims, axis_of(c.axis, c.x.rank)
    if c.count != len(c.parts) or c.count <= 0 or dims[axis] % c.count:
        raise op_failed(f"dimension {axis} of {list(dims)} does not split into {c.count} for {len(c.parts)} outputs")
    return [(*dims[:axis], dims[axis] // c.count, *dims[axis + 1 :])] * c.count


@operation(
    "SPLIT", "x:T axis:i count:i", outputs="parts:T*", level=3, types=ALL, infer=split_dims,
    quantization=(same_quantization("x", "parts"),), recorded=("x",),
)  # fmt: skip
def split(c: OperationCall) -> Sequence[Array]:
    return np.split(c.x.array, c.count, axis=c.axis)


def one_rank_more(c: OperationCall) -> Findings:
    rank = max(one.rank for one in c.inputs)
    if rank and c.out.rank not in (0, rank + 1):
        yield f"the output has rank {c.out.rank}, not {rank + 1}"


def pack_dims(c: OperationCall) -> Dims:
    first = c.inputs[0].dims
    if other := next((one for one in c.inputs if one.dims != first), None):
        raise op_failed(f"dimensions {list(first)} and {list(other.dims)} differ")
    if not 0 <= c.axis <= len(first):
        raise op_failed(f"axis {c.axis} is not in 0 to {len(first)}")
    return (*first[: c.axis], len(c.inputs), *first[c.axis :])


@operation(
    "PACK", "axis:i inputs:T*", level=6, types="F H Q S I", infer=pack_dims,
    checks=(some, same_quantization("inputs", "out"), same_rank("inputs"), one_rank_more),
)  # fmt: skip
def pack(c: OperationCall) -> Array:
    return np.stack([one.array for one in c.inputs], axis=c.axis)


def slice_bounds(c: OperationCall) -> list[tuple[int, int]]:
    """First index and size along each dimension."""
    bounds = []
    for dim, begin, size in zip(c.x.dims, integers(c.begin, c.x.rank), integers(c.sizes, c.x.rank)):
        length = dim - begin if size == -1 else size
        if not (0 <= begin <= dim and 0 <= length <= dim - begin):
            raise op_failed(f"{size} elements from {begin} are not within a dimension of {dim}")
        bounds.append((begin, length))
    return bounds


@operation(
    "SLICE", "x:T begin:I sizes:I", level=3, types=ALL, quantization=(kept_as_advice,), zero_sized=True,
    infer=lambda c: tuple(size for _, size in slice_bounds(c)), recorded=("x",),
)  # fmt: skip
def slice_(c: OperationCall) -> Array:
    return c.x.array[tuple(slice(begin, begin + size) for begin, size in slice_bounds(c))]


def strided_ranges(c: OperationCall) -> list[range]:
    """The selected indices along each dimension."""
    rank = c.x.rank
    given = zip(c.x.dims, integers(c.begin, rank), integers(c.end, rank), integers(c.strides, rank))
    ranges = []
    for axis, (dim, begin, end, stride) in enumerate(given):
        if stride == 0:
            raise op_failed(f"the stride of dimension {axis} is 0")
        masked = slice(None if c.begin_mask >> axis & 1 else begin, None if c.end_mask >> axis & 1 else end, stride)
        ranges.append(range(*masked.indices(dim)))
        if c.shrink_mask >> axis & 1 and (stride < 0 or len(ranges[-1]) != 1):
            raise op_failed(f"dimension {axis} goes only with stride > 0 and 1 element, not {stride} and {ranges[-1]}")
    return ranges


def strided_dims(c: OperationCall) -> Dims:
    sizes = [len(one) for axis, one in enumerate(strided_ranges(c)) if not c.shrink_mask >> axis & 1]
    return tuple(sizes) or (1,)


@operation(
    "STRIDED_SLICE", "x:T begin:I end:I strides:I begin_mask:i end_mask:i shrink_mask:i",
    level=2, types="F Q H@3 S@4", infer=strided_dims, checks=(SMALL,), quantization=(KEPT,),
)  # fmt: skip
def strided_slice(c: OperationCall) -> Array:
    return c.x.array[np.ix_(*strided_ranges(c))].reshape(c.out.dims)


@operation(
    "REVERSE", "x:T axis:I", level=7, types="F H Q S I", infer=lambda c: c.x.dims,
    checks=(KEPT, same_rank("x", "out"), dims_are("axis", 1)),
)  # fmt: skip
def reverse(c: OperationCall) -> Array:
    return np.flip(c.x.array, axis_of(integers(c.axis, 1)[0], c.x.rank))


def tile_dims(c: OperationCall) -> Dims:
    times = integers(c.multiples, c.x.rank)
    if min(times) < 0:
        raise op_failed(f"multiples {times} are negative")
    return tuple(dim * by for dim, by in zip(c.x.dims, times))


@operation("TILE", "x:T multiples:I", level=3, types=ALL, infer=tile_dims, quantization=(KEPT,))
def tile(c: OperationCall) -> Array:
    return np.tile(c.x.array, integers(c.multiples))


def gather_dims(c: OperationCall) -> Dims:
    axis = axis_of(c.axis, c.x.rank)
    return (*c.x.dims[:axis], *c.indices.dims, *c.x.dims[axis + 1 :])


@operation("GATHER", "x:T axis:i indices:I", level=3, types=ALL, infer=gather_dims, quantization=(kept_as_advice,))
def gather(c: OperationCall) -> Array:
    size, indices = c.x.dims[c.axis], c.indices.array
    if not are_within(indices, size):
        raise op_failed(f"indices {indices.min()} to {indices.max()} are not within a dimension of {size}")
    return np.take(c.x.array, indices, axis=c.axis)


def fill_dims(c: OperationCall) -> Dims:
    dims = integers(c.dims)
    if min(dims) < 0:
        raise op_failed(f"dimensions {dims} are negative")
    return tuple(dims)


@operation("FILL", "dims:I value:value", level=4, types="F H I", infer=fill_dims)
def fill(c: OperationCall) -> Array:
    return np.full(c.out.dims, c.value, c.out.type.dtype)


def tensor(c: OperationCall) -> Findings:
    if not c.x.type.is_tensor:
        yield f"x is {c.x.type.name}, not a tensor"


@operation("RANK", "x:any", outputs="out:i", level=4, infer=lambda c: (), checks=(tensor,))
def rank(c: OperationCall) -> Array:
    return np.array(c.x.rank, np.int32)
