"""Parts of a tensor that are selected one by one become Split, and rows selected by a Range become Slice."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import axes_of, producer_of, scalar
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import SLICE_BY_INPUTS, with_shape
from ortconv.optimizer.engine import Context, New, Replacement, insert_node, rule
from ortconv.optimizer.insertion import insert, integers, with_list
from ortconv.optimizer.parts import gathered, sliced_part
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.shapes import elements

SPLIT_TYPES = frozenset({DType.FLOAT, DType.INT32, DType.INT64, DType.UINT8, DType.INT8, DType.STRING})
"""Element types that the CPU kernel supports in all releases."""


class PickedPart(NamedTuple):
    """A node that selects [start, end) along an axis. If `drops`, it also removes the axis."""

    node: Node
    axis: int
    start: int
    end: int
    drops: bool


def fuse(graph: Graph, context: Context) -> int:
    """Gathers and Slices that select disjoint parts of x along one axis  ->  Split(x), if that needs fewer nodes

    If the parts leave a rest, a Slice comes before; if a Gather removes the axis, a Squeeze follows.

    Counterpart: GatherSliceToSplitFusion
    Differs: parts may leave a rest, which a Slice removes first; opsets before 13; only if fewer nodes result.
    """
    sources = [v for v in graph.inputs if len(v.uses) > 1]
    sources += [v for node in graph for v in node.present_outputs if len(v.uses) > 1]
    return sum(_fuse(graph, x, context) for x in sources)


def _fuse(graph: Graph, x: Value, context: Context) -> bool:
    parts = _parts(x)
    if not parts or not context.may_touch(*(p.node for p in parts)):
        return False
    axis = parts[0].axis
    whole = parts[0].start == 0 and parts[-1].end == x.dim(axis)
    added = 1 + (not whole) + sum(p.drops for p in parts)
    if len(parts) <= added or (not whole and graph.opset() < SLICE_BY_INPUTS):
        return False
    label = parts[0].node.label
    _replace(graph, x, parts, axis, whole)
    context.record("GatherSliceToSplitFusion", label, len(parts), added)
    return True


def _parts(x: Value) -> list[PickedPart]:
    """The parts of x that nodes select along one axis, if each ends where the next one begins; else []."""
    if x.dtype not in SPLIT_TYPES or x.rank is None:
        return []
    found = [p for node in x.consumers if node.graph is x.graph and (p := _part(node, x)) is not None]
    found.sort(key=lambda p: (p.start, p.end))
    adjacent = all((p.axis, p.end) == (following.axis, following.start) for p, following in pairwise(found))
    return found if adjacent else []


def _part(node: Node, x: Value) -> PickedPart | None:
    if node.inputs[0] is not x or not (node.is_op("Gather") or node.is_op("Slice")):
        return None
    dropped = gathered(node.out, keeps=False)
    found = dropped or gathered(node.out, keeps=True) or sliced_part(node.out)
    if found is None or found.start >= found.end:
        return None
    return PickedPart(node, found.axis, found.start, found.end, dropped is not None)


def _replace(graph: Graph, x: Value, parts: list[PickedPart], axis: int, whole: bool) -> None:
    first = parts[0].node
    before = x.producer.next if x.producer is not None else next(iter(graph))
    assert before is not None
    sizes = Ints(p.end - p.start for p in parts)
    types = [_resized_type(x, axis, size) for size in sizes]
    source = x if whole else _sliced(graph, x, axis, parts, before)
    inputs, attrs = with_list(graph, "Split", x, sizes, axis=axis)
    inputs[0] = source
    name = graph.fresh(f"{first.name or first.out.name}/Split")
    split = insert_node("Split", inputs, len(parts), types, before, attrs, name=name)
    split.ep = first.ep
    for part, result in zip(parts, split.present_outputs):
        node = part.node
        if part.drops:
            inputs, attrs = with_list(graph, "Squeeze", result, (axis,))
            result = insert("Squeeze", inputs, node.out.type, node, attrs, name=node.name)
        graph.replace(node.out, result)
        graph.remove(node)


def _sliced(graph: Graph, x: Value, axis: int, parts: list[PickedPart], before: Node) -> Value:
    start, end = parts[0].start, parts[-1].end
    bounds = [integers(graph, (number,), x) for number in (start, end, axis)]
    like = parts[0].node
    name = graph.fresh(f"{like.name or like.out.name}/Slice")
    node = insert_node("Slice", [x, *bounds], 1, [_resized_type(x, axis, end - start)], before, name=name)
    node.ep = like.ep
    return node.out


def _resized_type(x: Value, axis: int, size: int) -> TensorType | None:
    """The type of x with another length of an axis."""
    shape = x.shape or ()
    return with_shape(x, (*shape[:axis], size, *shape[axis + 1 :]))


@rule("GatherToSliceFusion", P("Gather", "x", P("Range", C("start", one=True), "limit", C("step", one=True))))
def fuse_range(m: Match) -> Replacement:
    """Gather(x, Range(start, limit, step))  ->  Slice(x, start, limit, axis, step), if none of them is negative

    Counterpart: GatherToSliceFusion
    Differs: only if no index can be negative, which Slice would count from the end; there for any range.
    """
    start, step, known = scalar(m.start), scalar(m.step), elements(m.limit)
    if m.graph.opset() < SLICE_BY_INPUTS or m.x.rank is None or m.limit.dtype not in (DType.INT64, DType.INT32):
        return None
    if not isinstance(start, int) or not isinstance(step, int) or start < 0 or step <= 0:
        return None
    if known is None or len(known) != 1 or known[0] is None or (isinstance(known[0], int) and known[0] < 0):
        return None  # a dimension is never negative
    limit = _as_vector(m.limit)
    if limit is None:
        return None
    axis = m.root.attr("axis", 0) % m.x.rank
    numbers = [np.array([n], m.limit.dtype.numpy) for n in (start, axis, step)]
    return New("Slice", [m.x, numbers[0], limit, *numbers[1:]], {}, like=m.root)


def _as_vector(limit: Value) -> Value | None:
    """The limit as a tensor of rank 1, if a Squeeze or Gather computes the scalar from one; else None."""
    if limit.rank == 1:
        return limit
    squeeze = producer_of(limit, "Squeeze")
    vector = None if squeeze is None else squeeze.inputs[0]
    if squeeze is None or vector is None or vector.rank != 1:
        return None
    return vector if axes_of(squeeze) in ((), (0,), (-1,)) else None
