"""Facts about values and nodes that several rules need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import clip_bounds, ints, producer_of, scalar, stated_ints
from ortconv.ir.operators import Trait, named, traits
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType

T = TypeVar("T")

FLOATS = frozenset({DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE})


EXPAND = 8
"""The opset that introduced Expand."""

SLICE_BY_INPUTS = 10
"""The opset from which on Slice has its bounds as inputs."""

RESHAPES = named(Trait.ORDERED, but=("Identity",))
"""Operators that change only the shape."""

# ---------------------------------------------------------------------- constants


def exactly(number: float) -> Callable[[Value], bool]:
    """A condition on values: a numeric constant with one element, this number."""
    return lambda value: scalar(value) == number


def is_filled_with(value: Value, number: float) -> bool:
    """True for a numeric constant with at least one element whose elements all equal `number`; -0.0 equals 0."""
    const = value.constant
    if const is None or const.size == 0 or const.dtype is DType.STRING:
        return False
    array = const.numpy()
    return bool(array.flat[0] == number) and (const.size == 1 or bool(np.all(array == number)))


def uniform(value: Value | None) -> Array | None:
    """The element that a tensor repeats, as an array without axes; None if its elements may differ."""
    casts: list[DType] = []
    while value is not None and value.producer is not None and _repeats(value.producer):
        if value.producer.op == "Cast":
            casts.append(DType(value.producer.attr("to", 0)))
        value = value.producer.inputs[0]
    element = _filler(value)
    for dtype in reversed(casts):
        if element is None or dtype is DType.STRING:
            return None
        with np.errstate(all="ignore"):
            cast = element.astype(dtype.numpy)
        element = cast if dtype is DType.BOOL or cast == element else None
    return element


def _repeats(node: Node) -> bool:
    """True if a node returns a tensor of equal elements if its first operand is one."""
    if node.domain == "" and node.op == "Resize":
        nearest = node.attr("mode", "nearest") == "nearest"
        return nearest and node.attr("coordinate_transformation_mode", "") != "tf_crop_and_resize"
    return node.is_op("Cast") or traits(node).has(Trait.MOVES)


def _filler(value: Value | None) -> Array | None:
    """The element of a constant or a ConstantOfShape whose elements are equal numbers."""
    fill = producer_of(value, "ConstantOfShape")
    if fill is not None:
        return filler(fill)
    const = None if value is None else value.constant
    if const is None or not const.size or const.dtype is DType.STRING:
        return None
    array = const.numpy()
    return array.reshape(-1)[0] if bool(np.all(array == array.flat[0])) else None


def filler(fill: Node) -> Array:
    """The number that a ConstantOfShape repeats, as an array without axes."""
    number = fill.attrs.get("value")
    return number.numpy().reshape(()) if isinstance(number, Tensor) else np.array(0, np.float32)


def greatest(dtype: DType | None) -> float:
    """The largest finite number of a float type that numpy has; infinity for other types."""
    return float(np.finfo(dtype.numpy).max) if dtype in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16) else math.inf


def is_finite(*arrays: Array) -> bool:
    return all(bool(np.all(np.isfinite(a))) for a in arrays)


def rounded(array: Array, dtype: DType) -> Array | None:
    """Convert a float64 result to the element type of its tensor. Return None if an element becomes infinite or NaN, or
    becomes 0 although it was not 0.

    In float16, small weights may become 0, because that cannot be avoided.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        result: Array = np.asarray(array).astype(dtype.numpy)
    if not is_finite(result):
        return None
    if dtype in (DType.FLOAT, DType.DOUBLE) and np.count_nonzero(result) != np.count_nonzero(array):
        return None
    return result


LARGE = 1000.0
"""Adding a larger number rounds a value. Exporters add 1.5 * 2**23, and subtract it again, to round to whole numbers."""


def round_together(a: Array, b: Array) -> bool:
    """True if both constants are large and of opposite signs: adding both rounds a value, adding their sum does not."""
    opposed = np.sign(a) != np.sign(b)
    return bool(np.any(opposed & (np.minimum(np.abs(a), np.abs(b)) > LARGE)))


def rounded_sum(a: Array, b: Array, dtype: DType) -> Array | None:
    """The sum of two constants in float64, converted as by `rounded`; None if that fails, or if they round together."""
    with np.errstate(all="ignore"):
        return None if round_together(a, b) else rounded(a + b, dtype)


def array_of(value: Value) -> Array:
    """The elements of a value that must be constant."""
    const = value.constant
    assert const is not None
    return const.numpy()


def wide(value: Value) -> Array:
    """The elements of a value that must be constant, in float64."""
    return array_of(value).astype(np.float64)


def keeps_rank(value: Value, *constants: Value) -> bool:
    """True if constants, combined with a value, do not give the result more axes than the value has."""
    return all((const.rank or 0) <= (value.rank or 0) for const in constants)


def are_numbers(values: Iterable[Value], rank: int | None) -> bool:
    """True if all values are constants with one element, and with at most this number of axes, if it is known."""
    return rank is not None and all(scalar(v) is not None and (v.rank or 0) <= rank for v in values)


def per_channel(value: Value, rank: int, channels: int) -> Array | None:
    """The elements of a constant that broadcasts along axis 1 of a tensor of this rank, one for each channel, in float64.

    None if it varies along another axis or would enlarge the tensor.
    """
    const = value.constant
    if const is None or const.rank > rank:
        return None
    shape = (1,) * (rank - const.rank) + const.shape
    if shape[1] not in (1, channels) or any(d != 1 for i, d in enumerate(shape) if i != 1):
        return None
    return np.broadcast_to(wide(value).reshape(-1), (channels,))


# ---------------------------------------------------------------------- shapes


def same_dim(a: Dim, b: Dim) -> bool:
    """True if two dimensions are known to be equal: the same number or the same symbol."""
    return a is not None and a == b


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """True if two shapes of tensors with the same number of elements are known to be equal.

    One pair of dimensions may be unknown if all others are the same positive numbers.
    """
    if a is None or b is None or len(a) != len(b):
        return False
    equal = [x for x, y in zip(a, b) if same_dim(x, y)]
    others = len(a) - len(equal)
    return others == 0 or (others == 1 and all(isinstance(d, int) and d > 0 for d in equal))


def equal_shapes(a: Shape | None, b: Shape | None) -> bool:
    """True if two shapes are known to be equal in each dimension."""
    return a is not None and b is not None and len(a) == len(b) and all(map(same_dim, a, b))


def broadcasts_into(shape: Shape | None, target: Shape | None) -> bool:
    """True if a tensor of this shape broadcasts to the target shape without enlarging it."""
    if shape is None or target is None or len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(d == 1 or same_dim(d, t) for d, t in zip(shape, tail))


def with_shape(value: Value, shape: Shape | None) -> TensorType | None:
    """The type of a value with its shape replaced."""
    return None if value.dtype is None else TensorType(value.dtype, shape)


def numbers(*dims: object) -> tuple[int, ...]:
    """The dimensions if all are numbers above 0; else ()."""
    known = tuple(d for d in dims if isinstance(d, int) and d > 0)
    return known if len(known) == len(dims) else ()


def with_open(dims: Iterable[Dim]) -> list[int]:
    """The dimensions as a Reshape states them: -1 for those that are no numbers."""
    return [d if isinstance(d, int) else -1 for d in dims]


def channels_of(x: Value) -> int:
    """The length of axis 1 of a tensor of rank 3 or more; 0 if it is unknown."""
    shape = x.shape or ()
    length = shape[1] if len(shape) > 2 else None
    return length if isinstance(length, int) else 0


# ---------------------------------------------------------------------- nodes of any operator set


def without_absent(inputs: Sequence[T]) -> list[T]:
    """The operands up to the last one that is not absent."""
    count = max((i + 1 for i, operand in enumerate(inputs) if operand is not None), default=0)
    return list(inputs[:count])


def is_plain_gemm(gemm: Node) -> bool:
    """True for a Gemm that computes a @ b + c; b may be transposed, and c absent."""
    if attribute(gemm, "alpha") != 1 or attribute(gemm, "transA"):
        return False
    return gemm.input(2) is None or attribute(gemm, "beta") == 1


def split_sizes(node: Node, whole: Dim) -> Sequence[int] | None:
    """The sizes of the parts into which a Split divides an axis of this length; None if they are unknown."""
    stated, count = stated_ints(node, "split"), len(node.outputs)
    if stated or stated is None or not isinstance(whole, int):
        return stated or None
    each = -(-whole // count)
    sizes = [min(each, whole - i * each) for i in range(count)]
    return sizes if min(sizes) >= 0 else None


def is_nonnegative(value: Value) -> bool:
    """True if no element of a value can be negative."""
    node = value.producer
    if node is None:
        const = value.constant
        return const is not None and const.dtype in FLOATS and bool(np.all(const.numpy() >= 0))
    if node.is_op("Clip"):
        return all(bound >= 0 for bound in clip_bounds(node))
    return node.domain == "" and traits(node).has(Trait.NONNEGATIVE)


def output_channels(weights: Tensor, node: Node) -> int:
    """The number of output channels of a Conv or ConvTranspose."""
    return weights.shape[0] if node.op == "Conv" else weights.shape[1] * node.attr("group", 1)


def stated_pads(node: Node, rank: int) -> tuple[int, ...] | None:
    """The pads of a Pad at the start, then at the end of each axis of a tensor of this rank; None if they are not constant."""
    pads, given = stated_ints(node, "pads"), ints(node.input(3), ())
    if pads is None or given is None or any(not -rank <= a < rank for a in given):
        return None
    axes = [a % rank for a in given] or list(range(rank))
    if len(pads) != 2 * len(axes) or len(set(axes)) < len(axes):
        return None
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis], full[rank + axis] = pads[i], pads[len(axes) + i]
    return tuple(full)


def copied_from_one(copies: Value, axis: int) -> Value | None:
    """The value of length 1 along an axis of which an Expand, Tile or Concat makes copies along it alone; None if there is none."""
    node = producer_of(copies, "Expand", "Tile", "Concat")
    x = None if node is None else node.inputs[0]
    if node is None or x is None or x.rank is None or x.rank != copies.rank or x.dim(axis) != 1:
        return None
    if node.op == "Concat":
        return x if node.attr("axis", 0) % x.rank == axis and set(node.inputs) == {x} else None
    return x if all(_keeps_length(node, i) for i in range(x.rank) if i != axis) else None


def _keeps_length(node: Node, axis: int) -> bool:
    """True if an Expand or Tile makes no copies along an axis of its operand."""
    if same_dim(node.dim(0, axis), node.out.dim(axis)):
        return True
    repeats = ints(node.inputs[1]) if node.op == "Tile" else None
    return repeats is not None and repeats[axis] == 1
