"""Generates contents for inputs that control a node: shapes, axes, bounds, scales. Nodes would not accept random contents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

LARGEST_BLOCK = 64
"""Upper bound of the sizes of a block of Col2Im that are tried."""

Content = Callable[[Node, tuple[int, ...]], Array | None]


def parameter(value: Value, shape: tuple[int, ...]) -> Array | None:
    """Contents of an input of this shape that suit the first node that uses it as a parameter; None if there is no such node."""
    for node, slot in value.uses:
        row = _row(node, slot)
        found = None if row is None else row(node, shape)
        if found is not None and value.dtype is not None and found.size == math.prod(shape):
            return found.reshape(shape).astype(value.dtype.numpy)
    return None


def _row(node: Node, slot: int) -> Content | None:
    if slot == 1 and node.domain == "" and node.op.startswith("Reduce"):
        return _counting
    return ROWS.get((f"{node.domain}.{node.op}" if node.domain else node.op, slot))


def _number(number: float) -> Content:
    return lambda node, shape: np.full(shape, number)


def _counting(node: Node, shape: tuple[int, ...]) -> Array:
    return np.arange(math.prod(shape))


def _numerals(node: Node, shape: tuple[int, ...]) -> Array | None:
    """Numbers as text for a Cast of strings."""
    source = node.inputs[0]
    is_text = source is not None and source.dtype is DType.STRING and node.out.dtype is not DType.STRING
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


def _whole_lengths(node: Node, shape: tuple[int, ...]) -> Array | None:
    """Lengths of sequences that are as long as the batch of another input allows. Masks are computed up to the largest length."""
    lengths, graph = node.inputs[0], node.graph
    if lengths is None or lengths.rank != 1 or lengths.dtype not in (DType.INT32, DType.INT64) or graph is None:
        return None
    batches = [v for v in graph.inputs if (v.rank or 0) > 1 and v.dim(0) == lengths.dim(0)]
    longest = next((size for size in (v.dim(1) for v in batches) if isinstance(size, int)), None)
    return None if longest is None else np.full(shape, longest)


TEXT_STARTS, NEW_TOKENS = 8, 4
"""The length of the text that a search for tokens starts with, if it is free, and the number of tokens that it adds."""


def _longest_text(node: Node, shape: tuple[int, ...]) -> Array:
    """A maximum length with which a search for tokens ends soon."""
    start = node.dim(0, -1)
    return np.full(shape, NEW_TOKENS + (start if isinstance(start, int) else TEXT_STARTS))


def _searches() -> dict[tuple[str, int], Content]:
    """The rows of the operators that generate text."""
    penalties = {"BeamSearch": (5, 6), "WhisperBeamSearch": (5, 6), "GreedySearch": (3,), "Sampling": (3,)}
    rows: dict[tuple[str, int], Content] = {}
    for op, slots in penalties.items():
        name = f"com.microsoft.{op}"
        rows |= {(name, 1): _longest_text, (name, 2): _number(1), **{(name, slot): _number(1.25) for slot in slots}}
        if len(slots) > 1:
            rows |= {(name, 3): _number(2), (name, 4): _number(1)}
    return rows


ROWS: dict[tuple[str, int], Content] = {
    ("Col2Im", 1): _image,
    ("Col2Im", 2): _block,
    ("ReduceMax", 0): _whole_lengths,
    ("Reshape", 1): _reshape,
    **dict.fromkeys(
        (("Expand", 1), ("ConstantOfShape", 0), ("Resize", 3), ("CenterCropPad", 1), ("MaxUnpool", 2)), _declared
    ),
    ("Cast", 0): _numerals,
    ("Unsqueeze", 1): _counting,
    ("Squeeze", 1): _squeeze,
    ("Slice", 1): _number(0),
    ("Slice", 2): _number(1 << 30),
    ("Slice", 3): _counting,
    ("Slice", 4): _number(1),
    ("Split", 1): _split,
    ("SplitToSequence", 1): lambda node, shape: _split(node, shape) if shape else np.array(1),
    ("Tile", 1): _number(2),
    ("Pad", 1): _number(1),
    ("TopK", 1): _number(1),
    ("CumSum", 1): _number(0),
    ("OneHot", 1): _depth,
    ("Range", 0): _number(0),
    ("Range", 1): _number(5),
    ("Range", 2): _number(1),
    ("Resize", 1): _region,
    ("Resize", 2): _number(2),
    ("Upsample", 1): _number(2),
    ("STFT", 1): _number(8),
    ("STFT", 3): _number(16),
    **dict.fromkeys((("HannWindow", 0), ("HammingWindow", 0), ("BlackmanWindow", 0)), _number(8)),
    ("com.microsoft.GroupQueryAttention", 5): _last_key,
    ("com.microsoft.GroupQueryAttention", 6): _keys,
    **_searches(),
}
"""Functions that return contents, by (operator, slot)."""
