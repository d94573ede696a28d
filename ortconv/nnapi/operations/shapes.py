"""Shape rules that many operations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ortconv.executor.algorithms.sliding_window import same_padding
from ortconv.executor.replay.work import Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import PaddingCode
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.operations.arithmetic import by_table
from ortconv.nnapi.operations.table import Dims, OperationCall


def like_x(c: OperationCall) -> Dims:
    return c.x.dims


def broadcast(*shapes: Sequence[int]) -> Dims:
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        raise op_failed(f"dimensions do not broadcast: {' and '.join(str(list(one)) for one in shapes)}") from None


def broadcast_ab(c: OperationCall) -> Dims:
    return broadcast(c.a.dims, c.b.dims)


def elementwise(c: OperationCall, function: Callable[..., object], *operands: Array) -> Array:
    """A ufunc of operands. The result has the type of the first one and the dimensions of the output."""
    y = c.work.empty(c.out.dims, operands[0].dtype)
    c.work.do(partial(function, out=y), *operands)
    return y


def in_quantization(c: OperationCall, x: Tensor, convert: Callable[[Tensor, OperandType], Array]) -> Array:
    """The elements of x, by convert(x, c.out) if they are quantized in another way than the output."""
    if not x.is_quantized or x.same_quantization(c.out):
        return x.array
    return c.work.call(partial(by_table, x, lambda one: convert(one, c.out)))


def taken(work: Work, x: Array, places: Array, axis: int) -> Array:
    """The elements at `places` of an axis, all of which must exist."""
    y = work.empty((*x.shape[:axis], len(places), *x.shape[axis + 1 :]), x.dtype)
    work.do(np.take, x, places, axis, y, "clip")
    return y


def fits(c: OperationCall, shapes: Mapping[str, Dims]) -> None:
    """Raise OP_FAILED if an operand that is not omitted has other dimensions than these."""
    for name, dims in shapes.items():
        x = c.args[name]
        if x is not None and x.dims != dims:
            raise op_failed(f"{name} has dimensions {list(x.dims)}, not {list(dims)}")


def are_within(indices: Array, count: int) -> bool:
    """True if all indices are at least 0 and less than `count`."""
    return bool(indices.min(initial=0) >= 0 and indices.max(initial=-1) < count)


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis. OP_FAILED outside of -rank..rank-1."""
    if not -rank <= axis < rank:
        raise op_failed(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def integers(x: Tensor, count: int | None = None) -> list[int]:
    """The elements of a one-dimensional tensor. Raises OP_FAILED for another rank, or another number than `count`."""
    if x.rank != 1 or count not in (None, x.size):
        wanted = "one dimension" if count is None else f"[{count}]"
        raise op_failed(f"a list of integers has dimensions {list(x.dims)}, not {wanted}")
    return x.array.tolist()


def axes_of(axes: Tensor, rank: int) -> list[int]:
    """Nonnegative axes in ascending order, each once."""
    return sorted({axis_of(axis, rank) for axis in integers(axes)})


def margins(paddings: Tensor, rank: int) -> list[tuple[int, int]]:
    """Elements before and after each of `rank` dimensions, from a tensor [rank, 2]. Raises OP_FAILED for negative ones."""
    if paddings.dims != (rank, 2):
        raise op_failed(f"paddings have dimensions {list(paddings.dims)}, not [{rank}, 2]")
    if paddings.size and paddings.array.min() < 0:
        raise op_failed(f"padding {paddings.array.tolist()} is negative")
    return [(before, behind) for before, behind in paddings.array.tolist()]


def padded(dims: Dims, pads: list[tuple[int, int]]) -> Dims:
    return tuple(dim + before + behind for dim, (before, behind) in zip(dims, pads))


def dilations(c: OperationCall) -> tuple[int, int]:
    """(height, width); 1 if the operation has none."""
    return (1, 1) if c.get("dilation_h") is None else (c.dilation_h, c.dilation_w)


Pads = tuple[tuple[int, int], tuple[int, int]]


def paddings(
    c: OperationCall, size: tuple[int, int], window: tuple[int, int], dilation: tuple[int, int] = (1, 1)
) -> Pads:
    """((top, bottom), (left, right)) of a window operation, in either of its forms; sizes are (height, width)."""
    if min(c.stride_h, c.stride_w, *window, *dilation) <= 0:
        sizes = f"strides {c.stride_h}, {c.stride_w}, window {list(window)} and dilations {list(dilation)}"
        raise op_failed(f"{sizes} must be positive")
    if c.get("padding") is None:
        pads = (c.pad_top, c.pad_bottom), (c.pad_left, c.pad_right)
        for pair, cells, by in zip(pads, window, dilation):
            span = (cells - 1) * by + 1
            if not 0 <= min(pair) <= max(pair) < span:
                raise op_failed(f"padding {list(pair)} must not be negative, and less than the window's {span}")
        return pads
    if c.padding == PaddingCode.VALID:
        return (0, 0), (0, 0)
    if c.padding != PaddingCode.SAME:
        raise op_failed(f"{c.padding} is not a padding code")
    rows, columns = map(same_padding, size, window, (c.stride_h, c.stride_w), dilation)
    return rows, columns


def image_only(x: OperandType) -> None:
    """Raise OP_FAILED unless x is a batch of images with elements; only the batch size may be 0."""
    if x.rank != 4 or 0 in x.dims[1:]:
        raise op_failed(f"{list(x.dims)} is not a batch of images: only the batch of the four dimensions may be 0")


def windows_dims(c: OperationCall, window: tuple[int, int], dilation: tuple[int, int], depth: int) -> Dims:
    """[batch, rows, columns, depth] of an operation on windows of the image x; sizes are (height, width)."""
    size, strides = c.x.dims[1:3], (c.stride_h, c.stride_w)
    rows, columns = map(_windows, size, window, strides, paddings(c, size, window, dilation), dilation)
    return c.x.dims[0], rows, columns, depth


def _windows(size: int, window: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    """The number of windows that fit."""
    count = (size - ((window - 1) * dilation + 1) + sum(pads)) // stride + 1
    if count <= 0:
        raise op_failed(f"a window of {window} does not fit into {size} + {sum(pads)}")
    return count
