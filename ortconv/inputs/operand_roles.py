"""The roles of operands, such as indices, shapes, axes, bounds and scales, and contents that are valid for each role."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT, Trait, named, traits
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim, DType

LARGEST_BLOCK = 64
"""Upper bound of the sizes of a block of Col2Im that are tried."""

TEXT_STARTS, NEW_TOKENS = 8, 4
"""The length of the text that a search for tokens starts with, if it is free, and the number of tokens that it adds."""

Content = Callable[[Node, tuple[int, ...]], Array | None]


class Role(NamedTuple):
    """The role of an input in a node. `content` makes contents of a shape that the node accepts; None if any are."""

    content: Content | None = None
    indexed: Callable[[Node], list[Dim]] | None = None
    """For indices: the sizes that they must lie below."""
    is_shape: bool = False
    """True if its elements are the shape of the output, but for dimensions of 1 in an Expand."""
    passed: bool = False
    """True if the output holds its elements, unchanged, cast to another type, or clipped."""


def parameter(value: Value, shape: tuple[int, ...]) -> Array | None:
    """Contents of an input of this shape that suit the first node that uses it as a parameter; None if there is no such node."""
    for node, slot in uses(value):
        content = operand_role(node, slot).content
        found = None if content is None else content(node, shape)
        if found is not None and value.dtype is not None and found.size == math.prod(shape):
            return found.reshape(shape).astype(value.dtype.numpy)
    return None


def operand_role(node: Node, slot: int) -> Role:
    """The role of an input of a node."""
    return ROLES.get(node.domain, {}).get(node.op, {}).get(slot, ANY)


def uses(value: Value) -> Iterator[tuple[Node, int]]:
    """The nodes that read a value, or what it is cast to, each with the slot."""
    for node, slot in value.uses:
        yield node, slot
        if node.is_op("Cast"):
            yield from uses(node.out)


def _readers(value: Value) -> Iterator[tuple[Node, int]]:
    """The nodes that read elements of a value, directly or passed on by other nodes, each with the slot."""
    seen, stack = {value}, [value]
    while stack:
        for node, slot in stack.pop().uses:
            yield node, slot
            if _passes(node, slot):
                fresh = [v for v in node.present_outputs if v not in seen]
                seen.update(fresh)
                stack += fresh


def _passes(node: Node, slot: int) -> bool:
    """True if an output holds the elements of an input, unchanged, cast to another type, or clipped."""
    flags = traits(node)
    return (
        flags.has(Trait.JOINS) or (slot == 0 and flags.has(Trait.MOVES, Trait.PICKS)) or operand_role(node, slot).passed
    )


def upper_bound(value: Value) -> int:
    """The exclusive upper bound of integers that are safe to feed: 2, or if the value indexes tables, the size of the smallest."""
    rows = _indexed_sizes(value)
    return min(1 << 16, *rows) if rows else 2


def _indexed_sizes(value: Value) -> list[int]:
    """The known sizes of the tables that the elements of a value index."""
    readers = ((node, operand_role(node, slot).indexed) for node, slot in _readers(value))
    found = [d for node, indexed in readers if indexed is not None for d in indexed(node)]
    return [d for d in found if isinstance(d, int) and d > 0]


def is_float_index(value: Value) -> bool:
    """True for floats that are cast to indices, as Keras's embeddings do."""
    if value.dtype not in (DType.FLOAT, DType.DOUBLE):
        return False
    casts = (
        node for node, _ in _readers(value) if node.is_op("Cast") and node.attr("to", 0) in (DType.INT32, DType.INT64)
    )
    return any(_is_float(node.input(0)) and _indexed_sizes(node.out) for node in casts)


def _is_float(value: Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_float


_NOT_ZERO = {("Div", 1), ("Mod", 1), ("Range", 2), ("Slice", 4)}
"""Operands that must not be 0 if they are integers: divisors and steps."""


def must_not_be_zero(value: Value) -> bool:
    """True if the elements of a value are integers that divide others, or are steps: onnxruntime fails for zeros."""
    is_integer = value.dtype is not None and value.dtype.numpy.kind in "iu"
    return is_integer and any((node.op, slot) in _NOT_ZERO for node, slot in _readers(value))


def is_size(value: Value) -> bool:
    """True if elements of a list of integers become sizes, perhaps among others."""
    readers = _readers(value)
    return value.dtype in (DType.INT32, DType.INT64) and any(
        operand_role(node, slot).is_shape for node, slot in readers
    )


def is_condition(value: Value) -> bool:
    """True if an input decides which branch of an If runs."""
    return value.dtype is DType.BOOL and any(node.is_op("If") and slot == 0 for node, slot in value.uses)


def _number(number: float) -> Role:
    return Role(lambda node, shape: np.full(shape, number))


def _counting(node: Node, shape: tuple[int, ...]) -> Array:
    return np.arange(math.prod(shape))


def _numerals(node: Node, shape: tuple[int, ...]) -> Array | None:
    """Numbers as text for a Cast of strings."""
    is_text = node.dtype(0) is DType.STRING and node.out.dtype is not DType.STRING
    return np.array([str(i) for i in range(math.prod(shape))], object) if is_text else None


def _declared(node: Node, shape: tuple[int, ...]) -> Array | None:
    """The shape that the node's output declares."""
    found = node.out.static_shape
    return None if found is None else np.array(found)


def _reshape(node: Node, shape: tuple[int, ...]) -> Array | None:
    declared, source = _declared(node, shape), node.inputs[0]
    if declared is not None:
        return declared
    if source is not None and source.rank == math.prod(shape) and not node.attr("allowzero", 0):
        return np.zeros(shape)  # 0 keeps a dimension
    return np.array([-1, *[1] * (math.prod(shape) - 1)])


def _squeeze(node: Node, shape: tuple[int, ...]) -> Array | None:
    source = node.inputs[0]
    ones = [i for i, d in enumerate((source.shape if source is not None else None) or ()) if d == 1]
    return np.array(ones[: math.prod(shape)])


def _split(node: Node, shape: tuple[int, ...]) -> Array | None:
    whole, count = node.dim(0, node.attr("axis", 0)), math.prod(shape)
    if not isinstance(whole, int) or not count:
        return None
    parts = np.full(count, whole // count)
    parts[-1] += whole - parts.sum()
    return parts


def _pads(node: Node, shape: tuple[int, ...]) -> Array:
    """Pads of 1; 0 for an axis with one element if it is to be reflected."""
    reflects = node.attr("mode", "constant") == "reflect"
    return np.array([0 if reflects and node.dim(0, axis) == 1 else 1 for axis in range(math.prod(shape) // 2)] * 2)


def _depth(node: Node, shape: tuple[int, ...]) -> Array:
    declared = node.out.dim(node.attr("axis", -1))
    return np.full(shape, declared if isinstance(declared, int) else 4)


def _region(node: Node, shape: tuple[int, ...]) -> Array:
    """A region that covers the whole image."""
    return np.repeat((0.0, 1.0), math.prod(shape) // 2)


def _keys(node: Node, shape: tuple[int, ...]) -> Array | None:
    """Number of keys that an attention reads: past keys plus those of this run."""
    past = 0 if node.input(3) is None else node.dim(3, 2)
    present = node.dim(0 if node.input(1) is None else 1, 1)
    return np.full(shape, past + present) if isinstance(past, int) and isinstance(present, int) else None


def _last_key(node: Node, shape: tuple[int, ...]) -> Array | None:
    count = _keys(node, shape)
    return None if count is None else count - 1


def _image(node: Node, shape: tuple[int, ...]) -> Array | None:
    """The image shape that the output of Col2Im declares."""
    found = node.out.static_shape
    return None if found is None else np.array(found[2:])


def _block(node: Node, shape: tuple[int, ...]) -> Array | None:
    """The block shape of Col2Im for which the columns fill the declared image."""
    source, made, rank = node.inputs[0], node.out.static_shape, math.prod(shape)
    columns = None if source is None else source.static_shape
    if columns is None or made is None or rank > 3 or len(made) != 2 + rank:
        return None
    pads = node.attr("pads", ()) or (0,) * 2 * rank
    room = [made[2 + i] + pads[i] + pads[i + rank] for i in range(rank)]
    for block in product(*(range(1, min(r, LARGEST_BLOCK) + 1) for r in room)):
        if math.prod(block) * made[1] == columns[1] and _places(node, room, block) == columns[2]:
            return np.array(block)
    return None


def _places(node: Node, room: Sequence[int], block: Sequence[int]) -> int:
    """Number of places of a block in a padded image."""
    ones = (1,) * len(block)
    strides, dilations = node.attr("strides", ()) or ones, node.attr("dilations", ()) or ones
    return math.prod(max(0, _count(*window)) for window in zip(room, block, strides, dilations, strict=True))


def _count(size: int, block: int, stride: int, dilation: int) -> int:
    """Number of places of a block along an axis."""
    return (size - dilation * (block - 1) - 1) // stride + 1


def sequences(lengths: Value) -> Value | None:
    """The first input with sequences of these lengths, which has the same batch; None for values other than lengths.

    Masks are computed up to the largest length.
    """
    if lengths.graph is None or lengths.rank != 1 or lengths.dtype not in (DType.INT32, DType.INT64):
        return None
    batches = (v for v in lengths.graph.inputs if (v.rank or 0) > 1 and v.dim(0) == lengths.dim(0))
    return next(batches, None) if any(node.is_op("ReduceMax") for node in lengths.consumers) else None


def _longest_text(node: Node, shape: tuple[int, ...]) -> Array:
    """A maximum length with which a search for tokens ends soon."""
    start = node.dim(0, -1)
    return np.full(shape, NEW_TOKENS + (start if isinstance(start, int) else TEXT_STARTS))


def _along(axis: int | None = None, table: int = 0) -> Role:
    """Indices along an axis of an input, by default the node's attribute."""
    return Role(indexed=lambda node: [node.dim(table, node.attr("axis", 0) if axis is None else axis)])


def _leading(node: Node) -> list[Dim]:
    """The sizes of the axes that an index of GatherND or ScatterND consists of."""
    depth, first = node.dim(1, -1), node.attr("batch_dims", 0)
    return [node.dim(0, first + i) for i in range(depth)] if isinstance(depth, int) else []


ANY, PASSED = Role(), Role(passed=True)
AXES = Role(_counting)
LIKE_OUTPUT = Role(_declared)
IN_TUPLES = Role(indexed=_leading)
ZERO, ONE, TWO, WINDOW = map(_number, (0, 1, 2, 8))
LONGEST_TEXT, PENALTY = Role(_longest_text), _number(1.25)

ROLES: dict[str, dict[str, dict[int, Role]]] = {
    "": {
        **{op: {1: AXES} for op in named(Trait.REDUCES)},
        **{op: {0: WINDOW} for op in ("BlackmanWindow", "HammingWindow", "HannWindow")},
        **{op: {1: _along()} for op in ("Gather", "GatherElements")},
        **{op: {1: _along(1)} for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
        **{op: {0: PASSED, 1: _along(), 2: PASSED} for op in ("Scatter", "ScatterElements")},
        **{op: {0: Role(_numerals, passed=True)} for op in ("Cast", "CastLike")},
        "CenterCropPad": {1: LIKE_OUTPUT},
        "Clip": {0: PASSED},
        "Col2Im": {1: Role(_image), 2: Role(_block)},
        "ConstantOfShape": {0: Role(_declared, is_shape=True)},
        "CumSum": {1: ZERO},
        "DFT": {1: WINDOW, 2: _number(-2)},
        "Expand": {1: Role(_declared, is_shape=True)},
        "GatherND": {1: IN_TUPLES},
        "MaxUnpool": {2: LIKE_OUTPUT},
        "OneHot": {1: Role(_depth)},
        "Pad": {1: Role(_pads)},
        "Range": {0: ZERO, 1: _number(5), 2: ONE},
        "Reshape": {1: Role(_reshape, is_shape=True)},
        "Resize": {1: Role(_region), 2: TWO, 3: LIKE_OUTPUT},
        "RoiAlign": {2: _along(0)},
        "STFT": {1: WINDOW, 3: _number(16)},
        "ScatterND": {0: PASSED, 1: IN_TUPLES, 2: PASSED},
        "SequenceAt": {1: Role(indexed=lambda node: [1])},  # generated sequences have one element
        "Slice": {1: ZERO, 2: _number(1 << 30), 3: AXES, 4: ONE},
        "Split": {1: Role(_split)},
        "SplitToSequence": {1: Role(lambda node, shape: _split(node, shape) if shape else np.array(1))},
        "Squeeze": {1: Role(_squeeze)},
        "Tile": {1: TWO},
        "TopK": {1: ONE},
        "Unsqueeze": {1: AXES},
        "Upsample": {1: TWO},
        "Where": {1: PASSED, 2: PASSED},
    },
    "ai.onnx.ml": {"ArrayFeatureExtractor": {1: _along(-1)}},
    MICROSOFT: {
        **{op: {1: LONGEST_TEXT, 2: ONE, 3: TWO, 4: ONE, 5: PENALTY, 6: PENALTY} for op in ("BeamSearch", "WhisperBeamSearch")},
        **{op: {1: LONGEST_TEXT, 2: ONE, 3: PENALTY} for op in ("GreedySearch", "Sampling")},
        "CropAndResize": {2: _along(0)},
        "EmbedLayerNormalization": {0: _along(0, table=2), 1: _along(0, table=4)},
        "GatherND": {1: IN_TUPLES},
        "GroupQueryAttention": {5: Role(_last_key), 6: Role(_keys)},
        "Unique": {0: PASSED},
    },
}  # fmt: skip
"""The roles of inputs by domain, operator and slot."""
