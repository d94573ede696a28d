"""Operations that move elements without computing: shapes, joins, slices, padding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operand
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import rank_at_most, same_quantization
from ortconv.nnapi.operations.elementwise import converted
from ortconv.nnapi.operations.shapes import axis_of, like_x
from ortconv.nnapi.operations.table import Call, Dims, operation

TYPES = "F Q H@3 S@4"
WIDE = "F H I Q S@4"
SAME = same_quantization("x", "out")
SMALL = rank_at_most(4, "x")


def reshape_dims(c: Call) -> Dims:
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


@operation("RESHAPE", "x:T shape:I", types="F Q H@3 S@4 I@6", infer=reshape_dims, checks=(SMALL, SAME))
def reshape(c: Call) -> Array:
    return c.x.array.reshape(c.out.dims)


def squeeze_dims(c: Call) -> Dims:
    """Axes of size 1 are left out: those listed, or all. [1] if none is left."""
    ones = {axis for axis, dim in enumerate(c.x.dims) if dim == 1}
    axes = ones if c.axes is None else {axis_of(axis, c.x.rank) for axis in c.axes.array.reshape(-1).tolist()}
    if not axes <= ones:
        raise op_failed(f"axes {sorted(axes - ones)} of {list(c.x.dims)} are not of size 1")
    return tuple(dim for axis, dim in enumerate(c.x.dims) if axis not in axes) or (1,)


operation("SQUEEZE", "x:T axes:I?", level=2, types=TYPES, infer=squeeze_dims, checks=(SMALL, SAME))(reshape)


def expand_dims(c: Call) -> Dims:
    axis = axis_of(c.axis, c.x.rank + 1)
    return *c.x.dims[:axis], 1, *c.x.dims[axis:]


operation("EXPAND_DIMS", "x:T axis:i", level=3, types=WIDE, infer=expand_dims, checks=(SAME,))(reshape)


def permutation(c: Call) -> tuple[int, ...]:
    order = range(c.x.rank)[::-1] if c.order is None else c.order.array.reshape(-1).tolist()
    if sorted(order) != list(range(c.x.rank)):
        raise op_failed(f"{list(order)} is no permutation of {c.x.rank} axes")
    return tuple(order)


def transposed_dims(c: Call) -> Dims:
    return tuple(c.x.dims[axis] for axis in permutation(c))


@operation(
    "TRANSPOSE", "x:T order:I?", level=2, types=TYPES, infer=transposed_dims, checks=(SMALL, SAME), zero_sized=True
)
def transpose(c: Call) -> Array:
    return c.x.array.transpose(permutation(c))


def concatenated_dims(c: Call) -> Dims:
    dims = [one.dims for one in c.inputs]
    axis = axis_of(c.axis, len(dims[0]))
    if any(one[:axis] != dims[0][:axis] or one[axis + 1 :] != dims[0][axis + 1 :] for one in dims):
        raise op_failed(f"dimensions differ beside axis {axis}: {', '.join(str(list(one)) for one in dims)}")
    return *dims[0][:axis], sum(one[axis] for one in dims), *dims[0][axis + 1 :]


def other_quantization(c: Call) -> Iterator[str | FeatureLevel]:
    if not c.inputs:
        yield "needs an input"
    if any(one.is_quantized and not one.same_quantization(c.out) for one in c.inputs):
        yield FeatureLevel.LEVEL_3


@operation(
    "CONCATENATION", "inputs:T* axis:i", types=TYPES, infer=concatenated_dims, zero_sized=True,
    checks=(rank_at_most(4, "inputs"), other_quantization),
)  # fmt: skip
def concatenation(c: Call) -> Array:
    return np.concatenate([converted(one, c.out) for one in c.inputs], axis=c.axis)


def packed_dims(c: Call) -> Dims:
    dims = c.inputs[0].dims
    if any(one.dims != dims for one in c.inputs):
        raise op_failed(f"dimensions differ: {', '.join(str(list(one.dims)) for one in c.inputs)}")
    axis = axis_of(c.axis, len(dims) + 1)
    return *dims[:axis], len(c.inputs), *dims[axis:]


def at_least_one(c: Call) -> Iterator[str | FeatureLevel]:
    if not c.inputs:
        yield "needs an input"


@operation(
    "PACK", "axis:i inputs:T*", level=6, types="F H Q S I", infer=packed_dims,
    checks=(at_least_one, same_quantization("inputs", "out")),
)  # fmt: skip
def pack(c: Call) -> Array:
    return np.stack([one.array for one in c.inputs], axis=c.axis)


def split_dims(c: Call) -> list[Dims]:
    axis = axis_of(c.axis, c.x.rank)
    if c.count <= 0 or c.count != len(c.outputs) or c.x.dims[axis] % c.count:
        raise op_failed(f"a dimension of {c.x.dims[axis]} is not split into {c.count} for {len(c.outputs)} outputs")
    return [(*c.x.dims[:axis], c.x.dims[axis] // c.count, *c.x.dims[axis + 1 :])] * c.count


@operation(
    "SPLIT", "x:T axis:i count:i", outputs="parts:T*", level=3, types=WIDE, infer=split_dims,
    checks=(same_quantization("x", "parts"),),
)  # fmt: skip
def split(c: Call) -> list[Array]:
    return np.split(c.x.array, c.count, axis=c.axis)


def slices(c: Call) -> tuple[slice, ...]:
    begin, size = c.begin.array.reshape(-1).tolist(), c.size.array.reshape(-1).tolist()
    if not len(begin) == len(size) == c.x.rank:
        raise op_failed(f"{len(begin)} beginnings and {len(size)} sizes for rank {c.x.rank}")
    ends = [dim if length == -1 else start + length for start, length, dim in zip(begin, size, c.x.dims)]
    if any(not 0 <= start <= end <= dim for start, end, dim in zip(begin, ends, c.x.dims)):
        raise op_failed(f"the slice from {begin} of {size} lies outside of {list(c.x.dims)}")
    return tuple(map(slice, begin, ends))


def sliced_dims(c: Call) -> Dims:
    return tuple(one.stop - one.start for one in slices(c))


@operation("SLICE", "x:T begin:I size:I", level=3, types=WIDE, infer=sliced_dims, checks=(SAME,), zero_sized=True)
def slice_(c: Call) -> Array:
    return c.x.array[slices(c)]


def strides_of(c: Call) -> tuple[list[range], Dims]:
    """The indexes taken from each axis, and the dimensions without axes that shrink."""
    begin, end, step = (one.array.reshape(-1).tolist() for one in (c.begin, c.end, c.strides))
    if not len(begin) == len(end) == len(step) == c.x.rank or 0 in step:
        raise op_failed(f"begin {begin}, end {end} and strides {step} do not fit rank {c.x.rank}")
    taken: list[range] = []
    kept = []
    for axis, dim in enumerate(c.x.dims):
        bit = 1 << axis
        start = None if c.begin_mask & bit else begin[axis]
        stop = None if c.end_mask & bit else end[axis]
        indexes = range(*slice(start, stop, step[axis]).indices(dim))
        taken.append(indexes)
        if not c.shrink_mask & bit:
            kept.append(len(indexes))
        elif step[axis] <= 0 or len(indexes) != 1:
            raise op_failed(f"axis {axis} cannot shrink: {len(indexes)} elements of {dim} with stride {step[axis]}")
    return taken, tuple(kept) or (1,)


def strided_dims(c: Call) -> Dims:
    return strides_of(c)[1]


@operation(
    "STRIDED_SLICE", "x:T begin:I end:I strides:I begin_mask:i end_mask:i shrink_mask:i", level=2, types=TYPES,
    infer=strided_dims, checks=(SMALL, SAME),
)  # fmt: skip
def strided_slice(c: Call) -> Array:
    """Negative beginnings and ends count from the end, and all are brought inside."""
    return c.x.array[np.ix_(*strides_of(c)[0])].reshape(c.out.dims)


def pads(c: Call) -> list[tuple[int, int]]:
    """(before, behind) of every axis."""
    if c.paddings.dims != (c.x.rank, 2) or c.paddings.array.min(initial=0) < 0:
        raise op_failed(f"paddings {c.paddings.array.tolist()} do not fit rank {c.x.rank}")
    return [(int(before), int(behind)) for before, behind in c.paddings.array]


def padded_dims(c: Call) -> Dims:
    return tuple(dim + sum(both) for dim, both in zip(c.x.dims, pads(c)))


def zero_point_needs_level_3(c: Call) -> Iterator[str | FeatureLevel]:
    if c.main is Operand.TENSOR_QUANT8_ASYMM and c.x.zero_point:
        yield FeatureLevel.LEVEL_3


@operation(
    "PAD", "x:T paddings:I", level=2, types=TYPES, infer=padded_dims, checks=(SMALL, SAME, zero_point_needs_level_3)
)
def pad(c: Call) -> Array:
    """With what stands for 0."""
    return np.pad(c.x.array, pads(c), constant_values=c.x.zero_point)


@operation("PAD_V2", "x:T paddings:I value:pad", level=3, types="F H Q S@4", infer=padded_dims, checks=(SMALL, SAME))
def pad_v2(c: Call) -> Array:
    """With a value, which for quantized inputs is in their quantization."""
    return np.pad(c.x.array, pads(c), constant_values=c.value)


MODES: tuple[Literal["reflect"], Literal["symmetric"]] = ("reflect", "symmetric")


def mirrored_dims(c: Call) -> Dims:
    if c.mode not in range(len(MODES)):
        raise op_failed(f"the mode {c.mode} is not 0 or 1")
    for dim, both in zip(c.x.dims, pads(c)):
        if max(both) > dim - (c.mode == 0):
            raise op_failed(f"{max(both)} cells cannot be mirrored from {dim}")
    return padded_dims(c)


@operation("MIRROR_PAD", "x:T paddings:I mode:i", level=7, types="F H Q S I", infer=mirrored_dims, checks=(SAME,))
def mirror_pad(c: Call) -> Array:
    """Mode 0 leaves the edge itself out of the reflection, 1 repeats it."""
    return np.pad(c.x.array, pads(c), mode=MODES[c.mode])


@operation("REVERSE", "x:T axis:I", level=7, types="F H Q S I", infer=like_x, checks=(SAME,))
def reverse(c: Call) -> Array:
    if c.axis.size != 1:
        raise op_failed(f"one axis is reversed, not {c.axis.size}")
    return np.flip(c.x.array, axis_of(int(c.axis.array.reshape(-1)[0]), c.x.rank))


def tiled_dims(c: Call) -> Dims:
    multiples = c.multiples.array.reshape(-1).tolist()
    if len(multiples) != c.x.rank or min(multiples, default=0) < 0:
        raise op_failed(f"multiples {multiples} do not fit rank {c.x.rank}")
    return tuple(dim * by for dim, by in zip(c.x.dims, multiples))


@operation("TILE", "x:T multiples:I", level=3, types=WIDE, infer=tiled_dims, checks=(SAME,))
def tile(c: Call) -> Array:
    return np.tile(c.x.array, c.multiples.array.reshape(-1))


def filled_dims(c: Call) -> Dims:
    dims = c.dims.array.reshape(-1).tolist()
    if min(dims, default=0) < 0:
        raise op_failed(f"the dimensions {dims} are negative")
    return tuple(dims)


def value_of_output_type(c: Call) -> Iterator[str | FeatureLevel]:
    pairs = {
        Operand.FLOAT32: Operand.TENSOR_FLOAT32,
        Operand.FLOAT16: Operand.TENSOR_FLOAT16,
        Operand.INT32: Operand.TENSOR_INT32,
    }
    if pairs[c.value.type] is not c.out.type:
        yield f"value is {c.value.type.name}, but out is {c.out.type.name}"


@operation(
    "FILL", "dims:I value:f32|f16|i", outputs="out:F|H|I", level=4, infer=filled_dims, checks=(value_of_output_type,)
)
def fill(c: Call) -> Array:
    return np.full(c.out.dims, c.value, c.out.type.dtype)


@operation("RANK", "x:any", outputs="out:i", level=4, infer=lambda c: ())
def rank_of(c: Call) -> Array:
    return np.array(c.x.rank, np.int32)


def gathered_dims(c: Call) -> Dims:
    axis = axis_of(c.axis, c.x.rank)
    indices = c.indices.array
    if indices.size and not 0 <= indices.min() <= indices.max() < c.x.dims[axis]:
        raise op_failed(f"an index is out of range for a dimension of {c.x.dims[axis]}")
    return *c.x.dims[:axis], *c.indices.dims, *c.x.dims[axis + 1 :]


@operation("GATHER", "x:T axis:i indices:I", level=3, types=WIDE, infer=gathered_dims, checks=(SAME,))
def gather(c: Call) -> Array:
    return np.take(c.x.array, c.indices.array, axis=c.axis)
