"""Query, key and value that are split from one product along a leading axis are split along its last axis instead."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import only_reader, producer_of, reader_of
from ortconv.ir.types import Shape, TensorType
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.extended.attention.heads import SPLIT, split_of
from ortconv.optimizer.extended.parts import slice_of
from ortconv.optimizer.insertion import insert, integers, with_list

PACKED = (2, 0, 3, 1, 4)
PARTS = 3


def fuse(graph: Graph, context: Context) -> int:
    """Transpose<2, 0, 3, 1, 4>(Reshape(x, (batch, rows, 3, heads, size)))[i]  ->  Transpose<0, 2, 1, 3>(Reshape(Split(x)[i]))

    Counterpart: none: beyond ONNX Runtime
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("Transpose"))


def _fuse(transpose: Node, context: Context) -> bool:
    graph, reshape = transpose.parent, producer_of(transpose.inputs[0], "Reshape")
    if reshape is None or tuple(transpose.attr("perm", ())) != PACKED:
        return False
    picked = _picked(transpose)
    split = split_of(reshape, PARTS)
    if picked is None or split is None or transpose.out.is_output or only_reader(reshape.out) is None:
        return False
    if not context.may_touch(transpose, reshape, *(node for node, _ in picked)):
        return False
    before, label = len(graph), transpose.label
    heads, size, rows = split
    _replace(graph, transpose, reshape, picked, heads, size, rows[:2] if rows else (0, 0))
    context.record("PackedHeadsFusion", label, max(0, before - len(graph)), 0)
    return True


def _picked(transpose: Node) -> list[tuple[Node, int]] | None:
    """The nodes that select a part without the leading axis, each with its index; None if others read the parts."""
    found: list[tuple[Node, int]] = []
    for node in _pickers(transpose.out):
        part = None if node is None or node.graph is not transpose.graph else slice_of(node.out)
        if node is None or part is None or part.x is not transpose.out or part.axis != 0:
            return None
        found.append((node, part.start))
    return found


def _pickers(x: Value) -> Iterator[Node | None]:
    """The readers of x; instead of a Split, the Squeeze that alone reads each of its outputs, or None if there is none."""
    for node in x.consumers:
        if node.is_op("Split"):
            yield from (None if v is None else reader_of(v, "Squeeze") for v in node.outputs)
        else:
            yield node


def _replace(
    graph: Graph, transpose: Node, reshape: Node, picked: list[tuple[Node, int]], heads: int, size: int, outer: Shape
) -> None:
    x = reshape.present_inputs[0]
    assert x.shape is not None
    assert x.dtype is not None
    width = heads * size
    inputs, attrs = with_list(graph, "Split", x, [width] * PARTS, "parts", axis=len(x.shape) - 1)
    thirds = [TensorType(x.dtype, (*x.shape[:-1], width))] * PARTS
    name = graph.fresh(f"{transpose.name or transpose.out.name}/Split")
    split = insert_node("Split", inputs, PARTS, thirds, transpose, attrs, name=name)
    dims = (reshape.out.dim(0), reshape.out.dim(1))
    wanted = integers(graph, (*outer, heads, size), x, "heads")
    split_heads = TensorType(x.dtype, (*dims, heads, size))
    swapped = TensorType(x.dtype, (dims[0], heads, dims[1], size))
    for node, part in picked:
        cut = insert("Reshape", [split.outputs[part], wanted], split_heads, transpose)
        graph.replace(node.out, insert("Transpose", [cut], swapped, transpose, {"perm": Ints(SPLIT)}))
    for node, _ in picked:
        graph.remove_dead(node)
