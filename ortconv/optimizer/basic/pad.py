"""Moves a Pad before Conv or pooling, and a Slice behind Conv or ConvTranspose, into the node's own padding.

Also orders computed pads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from ortconv.ir.graph import Attribute, Ints, Node, Value
from ortconv.ir.operands import ints, producer_of, scalar
from ortconv.ir.schema import since_version
from ortconv.ir.shape_rules import spatial_pads
from ortconv.ir.slices import AxisSlice, axis_slices, selected
from ortconv.ir.types import INT32_MAX, Dim, DType
from ortconv.optimizer.conditions import FLOATS, greatest, is_nonnegative, stated_pads
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import transpose_perm

DILATED = 19
"""The version of AveragePool that has dilations, and in onnxruntime a kernel of its own."""


def pad_value(node: Node) -> float | None:
    """The constant value of a Pad; None if it is computed."""
    if node.opset < 11:
        return float(node.attr("value", 0.0))
    value = node.input(2)
    return 0.0 if value is None else scalar(value)


def _rank(node: Node) -> int:
    """The rank of a Conv's or pooling node's operand; 0 if it is unknown."""
    if node.op != "Conv":
        return len(node.attr("kernel_shape", Ints())) + 2
    weights = node.input(1)
    return 0 if weights is None else weights.rank or 0


_ABSORBING = ("AveragePool", "Conv", "MaxPool")


@rule("Pad_Fusion", P(_ABSORBING, P("Pad", "x", ..., name="pad", shared=True), ...))
def fuse_pad(m: Match) -> Replacement:
    """Conv(Pad(x))  ->  Conv(x) with the pads added; also for pooling, if its own padding has the same effect

    MaxPool pads with minus infinity: a Pad with zeros has the same effect only if x is never negative.

    Counterpart: Pad_Fusion
    Differs: Pad with zeros before MaxPool only if no element can be negative, which ONNX Runtime does not check; Pad
        with minus infinity before MaxPool; a constant axes input; several readers; not before pooling with ceil_mode; not
        before an AveragePool whose padding onnxruntime 1.21 to 1.24 read wrongly.
    """
    pad, graph = m.node("pad"), m.graph
    others = [node for node, _ in pad.out.uses if node is not m.root]
    if pad.out.is_output or len(pad.out.uses) > len(others) + 1:
        return None
    if any(n.graph is not graph or n.op not in _ABSORBING or _padded(n, pad) is None for n in others):
        return None
    attrs = _padded(m.root, pad)
    return None if attrs is None else New(m.root.op, [m.x, *m.root.inputs[1:]], attrs, like=m.root)


def _padded(node: Node, pad: Node) -> dict[str, Attribute] | None:
    """The attributes of a Conv or pooling node that includes the Pad before it; None if it cannot."""
    rank, is_constant = _rank(node), pad.attr("mode", "constant") == "constant"
    pads, own = (stated_pads(pad, rank), spatial_pads(node, rank - 2)) if rank > 2 and is_constant else (None, None)
    if pads is None or own is None or min(pads) < 0 or any(pads[i] for i in (0, 1, rank, rank + 1)):
        return None
    added = (*pads[2:rank], *pads[rank + 2 :])
    total = tuple(a + b for a, b in zip(own, added, strict=True))
    value = pad_value(pad)
    if not (value == 0 if node.op == "Conv" else _pools_the_same(node, pad.present_inputs[0], value, own, total)):
        return None
    attrs: dict[str, Attribute] = {**node.attrs, "pads": Ints(total)}
    attrs.pop("auto_pad", None)
    if node.op == "AveragePool":
        attrs["count_include_pad"] = 1
    return attrs


def _pools_the_same(node: Node, x: Value, value: float | None, own: tuple[int, ...], total: tuple[int, ...]) -> bool:
    """True if pooling x with these total pads, instead of its own ones, has the same result."""
    # onnxruntime's pooling refuses to pad an image without rows or columns.
    if not all(isinstance(d, int) and d > 0 for d in (x.shape or (None,))[2:]):
        return False
    kernel = node.attr("kernel_shape", Ints())
    if node.attr("ceil_mode", 0) or any(p >= k for p, k in zip(total, (*kernel, *kernel))):
        return False
    return _pools_max(node, x, value) if node.op == "MaxPool" else _pools_average(node, value, own, total)


def _pools_max(node: Node, x: Value, value: float | None) -> bool:
    if any(node.outputs[1:]) or any(d != 1 for d in node.attr("dilations", Ints())):
        return False
    # A second Pad may make windows of minus infinity alone. For those, onnxruntime's own padding gives the lowest number.
    if producer_of(x, "Pad") is not None:
        return False
    lowest = np.iinfo(x.dtype.numpy).min if x.dtype in (DType.INT8, DType.UINT8) else -greatest(x.dtype)
    return value in (-math.inf, lowest) or (value == 0 and x.dtype in FLOATS and is_nonnegative(x))


def _pools_average(node: Node, value: float | None, own: tuple[int, ...], total: tuple[int, ...]) -> bool:
    axes = len(total) // 2
    # onnxruntime 1.21 to 1.24 ends a window before the padding at the end of an axis, which they read from this other place.
    if since_version(node) >= DILATED and any(total[2 * i + 1] < total[axes + i] for i in range(axes)):
        return False
    return value == 0 and (not any(own) or node.attr("count_include_pad", 0) == 1)


@rule("CropFusion", P("Slice", P(("Conv", "ConvTranspose"), "x", ..., name="conv"), ...))
def fuse_crop(m: Match) -> Replacement:
    """Slice(ConvTranspose(x))  ->  ConvTranspose(x) with more padding, which cuts the result, if the Slice cuts its borders

    Slice(Conv(x))  ->  Conv(x) with less padding, if it has as much. Temporal convolutions cut what lies in the future.
    """
    conv, rank = m.node("conv"), m.x.rank or 0
    pads, parts = spatial_pads(conv, rank - 2) if rank > 2 else None, axis_slices(m.root, ints)
    if pads is None or parts is None or "output_shape" in conv.attrs:
        return None
    total = _cropped(conv, pads, parts)
    if total is None or min(total) < 0:
        return None
    return New(conv.op, conv.inputs, {**conv.attrs, "auto_pad": "NOTSET", "pads": Ints(total)}, like=conv)


def _cropped(conv: Node, pads: Sequence[int], parts: Sequence[AxisSlice[int]]) -> list[int] | None:
    """The padding with which the result has only these parts; None if it is unknown."""
    total, axes = list(pads), len(pads) // 2
    strides = conv.attr("strides", Ints((1,) * axes))
    for part in parts:
        axis, size = part.axis % (axes + 2) - 2, conv.out.dim(part.axis)
        cut = _cut(part, size)
        if cut is None or axis < 0:
            return None
        step = -strides[axis] if conv.op == "Conv" else 1
        total[axis] += step * cut[0]
        total[axis + axes] += step * cut[1]
        if not isinstance(size, int) and not _covers(conv, axis, total):
            return None
    return total


def _cut(part: AxisSlice[int], size: Dim) -> tuple[int, int] | None:
    """The numbers of elements that a Slice leaves out at both ends of an axis; None if that is unknown, or nothing remains."""
    if part.step != 1:
        return None
    if not isinstance(size, int):
        end = 0 if part.end >= INT32_MAX else -part.end
        return (part.start, end) if part.start >= 0 and end >= 0 and part.end != 0 else None
    kept = selected(part.start, part.end, part.step, size)
    return (kept.start, size - kept.stop) if kept else None


def _covers(conv: Node, axis: int, pads: Sequence[int]) -> bool:
    """True if an image with any number of elements along an axis and these pads has a window of a Conv."""
    axes, weights = len(pads) // 2, conv.input(1)
    size = None if weights is None else weights.dim(axis + 2)
    dilation = conv.attr("dilations", Ints((1,) * axes))[axis]
    return conv.op == "Conv" and isinstance(size, int) and pads[axis] + pads[axes + axis] >= dilation * (size - 1)


_REORDERED = P("Slice", P("Reshape", "pads", ..., name="pairs"), ..., name="reverse")


@rule("PadListFusion", P("Reshape", P("Transpose", _REORDERED, name="swap"), ..., name="whole"))
def fuse_pad_list(m: Match) -> Replacement:
    """Reshape(Transpose(Slice(Reshape(pads, (-1, 2)))), (-1))  ->  Concat of the elements of pads in their new order

    As TorchScript reorders computed pads, which are two for each axis, the last axis first.
    """
    elements = _list(m.pads)
    shapes = [ints(m.node(name).inputs[1]) for name in ("pairs", "whole")]
    if shapes != [(-1, 2), (-1,)] or transpose_perm(m.node("swap")) != (1, 0) or m.root.out.dtype is not DType.INT64:
        return None
    rows = _rows(m.node("reverse"), len(elements) // 2)
    parts = _runs([elements[2 * row + column] for column in (0, 1) for row in rows])
    return New("Concat", parts, {"axis": 0}, like=m.root) if len(parts) > 1 else None


def _list(value: Value) -> list[int | Value]:
    """The numbers, and lists of one element, that are joined to a list; [] if it has other parts."""
    known, join = ints(value), producer_of(value, "Concat")
    if known is not None or value.shape == (1,):
        return [*known] if known is not None else [value]
    parts = [_list(part) for part in join.present_inputs] if join is not None else []
    return [element for part in parts for element in part] if all(parts) else []


def _rows(reverse: Node, count: int) -> Sequence[int]:
    """The rows that a Slice selects of a matrix; () if they are unknown."""
    found = axis_slices(reverse, ints) or []
    if len(found) != 1 or found[0].axis not in (0, -2):
        return ()
    start, end, _, step = found[0]
    return () if start is None or end is None else selected(start, end, step, count)


def _runs(elements: Sequence[int | Value]) -> list[NewInput]:
    """The same elements, with numbers that follow each other in one list."""
    parts: list[NewInput] = []
    for is_value, run in groupby(elements, lambda element: isinstance(element, Value)):
        group = [*run]
        parts += [v for v in group if isinstance(v, Value)] if is_value else [np.array(group, np.int64)]
    return parts
