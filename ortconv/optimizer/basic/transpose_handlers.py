"""Handlers that move a Transpose from before a node to after it, by operator.

A handler receives the node, the slot that reads Transpose<perm>(x), and perm. It returns a Push: the changes with which
the node can read x instead, and the permutation that each of its outputs then needs. None means that the Transpose
cannot move. Axis i of the transposed tensor is axis perm[i] of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Ints, Node, Value
from ortconv.ir.operands import axes_of, ints
from ortconv.ir.operators import Trait, named
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim, Shape
from ortconv.optimizer.conditions import same_dim, with_open
from ortconv.optimizer.permutation import Perm, identity, inverse
from ortconv.optimizer.quantizers import QUANTIZERS, scaled_axes

_NONE: Mapping[int, Array] = MappingProxyType({})


class Push(NamedTuple):
    """The changes to a node when a Transpose moves past it."""

    slots: tuple[int, ...]
    """Inputs that need the inverse Transpose; constants of lower rank, also dequantized ones, first get leading axes of 1."""
    perms: tuple[Perm | None, ...]
    """For each output the permutation that restores it; None if it is unchanged."""
    attrs: dict[str, Attribute]
    constants: Mapping[int, Array] = _NONE
    """Inputs that are replaced by constants, by slot."""
    picks: Mapping[int, Array] = _NONE
    """Inputs that are replaced by their elements at these places, by slot."""


Handler = Callable[[Node, int, Perm], Push | None]
Handlers = Mapping[tuple[str, str], Handler]


def compress(perm: Perm, dropped: Collection[int]) -> Perm | None:
    """The permutation of the transposed tensor without these axes; None if it is the identity."""
    axes = [axis for i, axis in enumerate(perm) if i not in dropped]
    order = sorted(axes)
    return _needed([order.index(axis) for axis in axes])


def _needed(perm: Sequence[int]) -> Perm | None:
    """The permutation; None for the identity."""
    return None if tuple(perm) == identity(len(perm)) else tuple(perm)


def _normal(axis: int, rank: int) -> int | None:
    return axis % rank if -rank <= axis < rank else None


def normal_axes(axes: Sequence[int] | None, rank: int) -> list[int] | None:
    """The axes counted from the front; None if they are unknown, or if one is out of range."""
    if axes is None or any(_normal(a, rank) is None for a in axes):
        return None
    return [a % rank for a in axes]


def _with_axes(node: Node, axes: Sequence[int]) -> tuple[dict[str, Attribute], dict[int, Array]]:
    """The attributes and constant inputs of a node with other axes; its axes are an attribute or input 1."""
    if "axes" in node.attrs:
        return {**node.attrs, "axes": Ints(axes)}, {}
    value = node.input(1)
    return dict(node.attrs), {} if value is None else {1: np.array(axes, np.int64)}


def _unary(node: Node, slot: int, perm: Perm) -> Push | None:
    return Push((0,), (perm,) * len(node.outputs), node.attrs)


def _broadcast(node: Node, slot: int, perm: Perm) -> Push | None:
    slots = []
    for i, value in enumerate(node.inputs):
        if value is None or value.shape is None or len(value.shape) > len(perm):
            return None
        if all(d == 1 for d in value.shape):
            continue
        if len(value.shape) < len(perm) and value.constant is None and dequantizer(value, node) is None:
            return None
        slots.append(i)
    return Push(tuple(slots), (perm,), node.attrs) if slot in slots else None


def dequantizer(value: Value, reader: Node) -> Node | None:
    """The DequantizeLinear of a constant with one scale, or one for each index of an axis, of the reader's graph and provider."""
    dq = value.producer
    if dq is None or dq.op != "DequantizeLinear" or dq.constant(0) is None or scaled_axes(dq) is None:
        return None
    return dq if dq.graph is reader.graph and dq.ep == reader.ep else None


def _along_axis(node: Node, perm: Perm, default: int, *, keeps: bool = True) -> Push | None:
    """For an operator along one axis, with this default; the outputs have that axis if it `keeps` it."""
    axis = _normal(node.attr("axis", default), len(perm))
    if axis is None:
        return None
    out = perm if keeps else compress(perm, (axis,))
    return Push((0,), (out,) * len(node.outputs), {**node.attrs, "axis": perm[axis]})


def _concat(node: Node, slot: int, perm: Perm) -> Push | None:
    found = _along_axis(node, perm, 0) if "axis" in node.attrs else None
    return found and found._replace(slots=tuple(range(len(node.inputs))))


def _softmax(node: Node, slot: int, perm: Perm) -> Push | None:
    if node.opset >= 13:
        return _along_axis(node, perm, -1)
    axis = _normal(node.attr("axis", 1), len(perm))
    if axis is None or set(perm[axis:]) != set(range(axis, len(perm))):
        return None
    return Push((0,), (perm,), node.attrs)


def _slice(node: Node, slot: int, perm: Perm) -> Push | None:
    axes = normal_axes(sliced_axes(node), len(perm))
    if axes is None:
        return None
    moved = [perm[a] for a in axes]
    if "starts" in node.attrs:
        return Push((0,), (perm,), {**node.attrs, "axes": Ints(moved)})
    starts = node.input(1)
    if starts is None or starts.dtype is None:
        return None
    return Push((0,), (perm,), node.attrs, {3: np.array(moved, starts.dtype.numpy)})


def sliced_axes(node: Node) -> Sequence[int] | None:
    """The axes of a Slice, stated or not; None if they are unknown."""
    if "starts" in node.attrs:
        return node.attr("axes", Ints(range(len(node.attr("starts", Ints())))))
    starts = node.input(1)
    if node.input(3) is not None or starts is None:
        return ints(node.input(3))
    return None if starts.static_shape is None else range(math.prod(starts.static_shape))


PAD_WITH_AXES = 18
"""The operator set from which Pad takes axes as an input."""


def _pad(node: Node, slot: int, perm: Perm) -> Push | None:
    if node.input(3) is not None:
        return _pad_of_axes(node, perm)
    pads = node.attr("pads", Ints()) if "pads" in node.attrs else ints(node.input(1))
    if pads is None and since_version(node) >= PAD_WITH_AXES:
        return Push((0,), (perm,), node.attrs, {3: np.array(perm, np.int64)})
    moved = _moved_pads(range(2 * len(perm)) if pads is None else pads, perm)
    if moved is None:
        return None
    if "pads" in node.attrs:
        return Push((0,), (perm,), {**node.attrs, "pads": Ints(moved)})
    places = {1: np.array(moved, np.int64)}
    return Push((0,), (perm,), node.attrs, picks=places) if pads is None else Push((0,), (perm,), node.attrs, places)


def _pad_of_axes(node: Node, perm: Perm) -> Push | None:
    stated = node.input(3)
    axes = normal_axes(ints(stated), len(perm))
    if axes is None or stated is None or stated.dtype is None:
        return None
    return Push((0,), (perm,), node.attrs, {3: np.array([perm[a] for a in axes], stated.dtype.numpy)})


def _moved_pads(pads: Sequence[int], perm: Perm) -> list[int] | None:
    """The pads of the axes in their order before Transpose<perm>; None if there are not two for each axis."""
    rank = len(perm)
    return [pads[i + side] for side in (0, rank) for i in inverse(perm)] if len(pads) == 2 * rank else None


def _reduce(node: Node, slot: int, perm: Perm) -> Push | None:
    axes = normal_axes(axes_of(node), len(perm))
    if axes is None:
        return None
    if not axes:
        return Push((0,), (perm if node.attr("noop_with_empty_axes", 0) else None,), node.attrs)
    attrs, constants = _with_axes(node, sorted(perm[a] for a in axes))
    out = perm if node.attr("keepdims", 1) else compress(perm, axes)
    return Push((0,), (out,), attrs, constants)


def _gather(node: Node, slot: int, perm: Perm) -> Push | None:
    """A Transpose with other readers stays before a Gather of one element: query, key and value are often gathered from one."""
    data, index = node.inputs
    if data is None or index is None or (index.rank == 0 and len(data.uses) > 1):
        return None
    return pick(node, slot, perm)


def pick(node: Node, slot: int, perm: Perm) -> Push | None:
    index = node.inputs[1]
    if index is None or index.rank not in (0, 1):
        return None
    return _along_axis(node, perm, 0, keeps=index.rank == 1)


def _squeeze(node: Node, slot: int, perm: Perm) -> Push | None:
    stated = axes_of(node)
    if stated is None:
        return None
    axes = normal_axes(stated, len(perm)) if stated else axes_of_one(node.inputs[0])
    if axes is None:
        return None
    attrs, constants = _with_axes(node, sorted(perm[a] for a in axes)) if stated else (node.attrs, {})
    return Push((0,), (compress(perm, axes),), attrs, constants)


def axes_of_one(value: Value | None) -> list[int] | None:
    shape = None if value is None else value.static_shape
    return None if shape is None else [i for i, d in enumerate(shape) if d == 1]


def _unsqueeze(node: Node, slot: int, perm: Perm) -> Push | None:
    stated = axes_of(node)
    if not stated:
        return None
    rank = len(perm) + len(stated)
    axes = normal_axes(stated, rank)
    if axes is None:
        return None
    places = [i for i in range(rank) if i not in axes]
    out = list(range(rank))
    for i, place in enumerate(places):
        out[place] = places[perm[i]]
    return Push((0,), (_needed(out),), node.attrs)


def _runs(before: Shape | None, after: Shape | None) -> list[tuple[Dim, ...]] | None:
    """The output dimensions, at least one, into which a Reshape splits each input axis; None if it does anything else.

    An inserted dimension of 1 goes to the axis after it, so that a Gather behind it can select from the axis before it.
    """
    if before is None or after is None or len(after) <= len(before) or 0 in (*before, *after):
        return None
    runs, rest = [], list(after)
    for left, dim in zip(reversed(range(len(before))), before):
        run: list[Dim] = []
        while len(rest) > left and not (_is_whole(run, dim) and (left or rest[0] != 1)):
            run.append(rest.pop(0))
        if not _is_whole(run, dim):
            return None
        runs.append(tuple(run))
    return None if rest else runs


def _is_whole(run: Sequence[Dim], dim: Dim) -> bool:
    parts = [d for d in run if d != 1]
    if len(parts) == 1:
        return same_dim(parts[0], dim)
    known = [d for d in parts if isinstance(d, int)]
    return bool(run) and len(known) == len(parts) and math.prod(known) == dim


def _reshape(node: Node, slot: int, perm: Perm) -> Push | None:
    """If a Reshape only splits axes, the parts of an axis move together."""
    value = node.inputs[0]
    runs = None if value is None else _runs(value.shape, node.out.shape)
    if runs is None or len(runs) != len(perm):
        return None
    moved = [runs[i] for i in inverse(perm)]
    spec = with_open(d for run in moved for d in run)
    if spec.count(-1) > 1:
        return None
    ends = list(accumulate(map(len, moved)))
    out = [i for axis in perm for i in range(ends[axis] - len(moved[axis]), ends[axis])]
    attrs = dict(node.attrs)
    attrs.pop("allowzero", None)
    return Push((0,), (_needed(out),), attrs, {1: np.array(spec, np.int64)})


def _tile(node: Node, slot: int, perm: Perm) -> Push | None:
    repeats = ints(node.input(1))
    if repeats is None or len(repeats) != len(perm):
        return None
    return Push((0,), (perm,), node.attrs, {1: np.array([repeats[i] for i in inverse(perm)], np.int64)})


def _quantize(node: Node, slot: int, perm: Perm) -> Push | None:
    axes = scaled_axes(node)
    if axes is None:
        return None
    return _along_axis(node, perm, 1) if axes else _unary(node, slot, perm)


_ANY_SLOT = (_broadcast, _concat)
"""Handlers of operators past which a Transpose can move from any input, not only from the first one."""

HANDLERS: Handlers = {
    **{("", op): _unary for op in named(Trait.ELEMENTWISE)},
    **{("", op): _broadcast for op in named(Trait.BROADCASTS)},
    **{("", op): _reduce for op in named(Trait.REDUCES)},
    **{("", op): _softmax for op in ("Softmax", "LogSoftmax", "Hardmax")},
    **{
        ("", op): lambda node, slot, perm: _along_axis(node, perm, 0, keeps=node.attr("keepdims", 1) != 0)
        for op in ("ArgMax", "ArgMin")
    },
    **dict.fromkeys(QUANTIZERS, _quantize),
    ("", "Concat"): _concat,
    ("", "Dropout"): lambda node, slot, perm: _unary(node, slot, perm) if node.input(2) is None else None,
    ("", "Gather"): _gather,
    ("", "Pad"): _pad,
    ("", "Reshape"): _reshape,
    ("", "Slice"): _slice,
    ("", "Split"): lambda node, slot, perm: _along_axis(node, perm, 0),
    ("", "Squeeze"): _squeeze,
    ("", "Tile"): _tile,
    ("", "Unsqueeze"): _unsqueeze,
}


def push(node: Node, slot: int, perm: Perm, handlers: Handlers) -> Push | None:
    """The changes to a node when Transpose<perm> moves from its input `slot` to its outputs; None if it cannot move."""
    handler = handlers.get((node.domain, node.op))
    return handler(node, slot, perm) if handler is not None and (slot == 0 or handler in _ANY_SLOT) else None


def absorbs(node: Node, slot: int, perm: Perm, handlers: Handlers) -> bool:
    """True if a node can read a value before this Transpose, and its outputs then need none."""
    found = pick(node, slot, perm) if node.is_op("Gather") and slot == 0 else push(node, slot, perm, handlers)
    return found is not None and len(found.slots) == 1 and not any(found.perms)


def carries(node: Node, slot: int, handlers: Handlers) -> bool:
    """True if a Transpose at this input may be able to move past the node, for some permutation.

    False for a Reshape: a value that reaches it over a long way, such as a normalization of the last axis, should not change.
    """
    handler = handlers.get((node.domain, node.op))
    return handler not in (None, _reshape) and (slot == 0 or handler in _ANY_SLOT)
