"""The number of keys from their parts, so that it is known before attention has joined them."""

from __future__ import annotations

from ortconv.ir.graph import Node, Value
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import ints
from ortconv.optimizer.extended.attention.heads import Heads
from ortconv.optimizer.extended.attention.mask import Masks
from ortconv.optimizer.extended.attention.past import ROWS

ROWS_PICKED = ((ROWS,), (ROWS - 4,))


def measure_parts(joined: Heads, masks: Masks, before: Node) -> None:
    """Give Gather(Shape(join), rows), also of heads that were repeated, the sum of the numbers of earlier and later rows.

    A mask that is cut to the number of keys would need them joined, while the attention that joins them needs the mask.
    """
    repeated = [n for n in joined.source.consumers if n.is_op("Gather") and n.attr("axis", 0) == 1]
    for value in (joined.source, *(node.out for node in repeated)):
        for pick in _row_counts(value, masks):
            size = masks.size(joined, before)
            if size is not None:
                _put(pick, size)


def _row_counts(value: Value, masks: Masks) -> list[Node]:
    """The nodes Gather(Shape(value), rows)."""
    shapes = [n for n in value.consumers if n.is_op("Shape") and not n.attrs and n.graph is masks.graph]
    return [pick for shape in shapes for pick in shape.out.consumers if _picks_rows(pick, masks)]


def _picks_rows(pick: Node, masks: Masks) -> bool:
    axis = pick.attr("axis", 0)
    return pick.is_op("Gather") and axis == 0 and pick.graph is masks.graph and ints(pick.inputs[1]) in ROWS_PICKED


def _put(pick: Node, size: Value) -> None:
    """Replace the Gather by a tensor of one element, as a scalar where that is what it returns."""
    graph = pick.graph
    assert graph is not None
    if pick.out.rank == 0:
        size = graph.add_node("Squeeze", [size], 1, types=[TensorType(DType.INT64, ())], before=pick).out
    graph.replace(pick.out, size)
    graph.remove_dead(pick)
