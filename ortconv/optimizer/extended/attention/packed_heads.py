"""Query, key and value that are split from one product along a leading axis are split along its last axis instead."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import TensorType
from ortconv.optimizer.conditions import axes_of, ints
from ortconv.optimizer.engine import Context, FunctionPass
from ortconv.optimizer.extended.attention.heads import SPLIT
from ortconv.optimizer.extended.split import SPLIT_BY_INPUT
from ortconv.optimizer.shapes import dim_of, refined, target

PACKED = (2, 0, 3, 1, 4)
PARTS = 3


def fuse(graph: Graph, context: Context) -> int:
    """Transpose<2, 0, 3, 1, 4>(Reshape(x, (batch, rows, 3, heads, size)))[i]  ->  Transpose<0, 2, 1, 3>(Reshape(Split(x)[i]))

    Counterpart: none: beyond ONNX Runtime
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("Transpose"))


def _fuse(transpose: Node, context: Context) -> bool:
    graph = transpose.graph
    reshape = None if transpose.inputs[0] is None else transpose.inputs[0].producer
    if graph is None or tuple(transpose.attr("perm", ())) != PACKED or reshape is None or not reshape.is_op("Reshape"):
        return False
    picked = _picked(transpose)
    spec = _spec(reshape)
    if picked is None or spec is None or transpose.out.is_output or len(reshape.out.uses) != 1 or reshape.out.is_output:
        return False
    if not context.may_touch(transpose, reshape, *(node for node, _ in picked)):
        return False
    before, label = len(graph), transpose.label
    _replace(graph, transpose, reshape, picked, spec)
    context.record("PackedHeadsFusion", label, max(0, before - len(graph)), 0)
    return True


def _picked(transpose: Node) -> list[tuple[Node, int]] | None:
    """The nodes that select a part and remove the leading axis, each with the index of its part; None if other nodes
    read the parts.
    """
    found: list[tuple[Node, int]] = []
    for node in transpose.out.consumers:
        if node.is_op("Gather") and node.graph is transpose.graph and node.attr("axis", 0) == 0:
            index = ints(node.inputs[1])
            if index is None or node.inputs[1] is None or node.inputs[1].rank != 0 or not -PARTS <= index[0] < PARTS:
                return None
            found.append((node, index[0] % PARTS))
        elif node.is_op("Split") and node.attr("axis", 0) == 0 and len(node.outputs) == PARTS:
            for part, out in enumerate(node.outputs):
                reader = out.consumers[0] if out is not None and len(out.uses) == 1 and not out.is_output else None
                if (
                    reader is None
                    or not reader.is_op("Squeeze")
                    or axes_of(reader) != (0,)
                    or reader.graph is not node.graph
                ):
                    return None
                found.append((reader, part))
        else:
            return None
    return found


def _spec(reshape: Node) -> tuple[int, int, tuple[int, ...]] | None:
    """The number of heads, their size, and the shape of a third of x; None unless this Reshape splits rows into three
    such parts.
    """
    x, wanted = reshape.inputs[0], target(reshape)
    if x is None or x.dtype is None or wanted is None or len(wanted) != 5 or x.rank not in (2, 3):
        return None
    batch, rows, parts, heads, size = refined(wanted, reshape.out)
    if parts != PARTS or not isinstance(heads, int) or not isinstance(size, int) or x.dim(-1) != PARTS * heads * size:
        return None
    if x.rank == 3:
        kept = all(dim_of(x, i) in (wanted[i], d) for i, d in enumerate((batch, rows)))
        return (heads, size, (0, 0, heads, size)) if kept else None
    if not isinstance(batch, int) or not isinstance(rows, int) or batch * rows != x.dim(0):
        return None
    return heads, size, (batch, rows, heads, size)


def _replace(
    graph: Graph, transpose: Node, reshape: Node, picked: list[tuple[Node, int]], spec: tuple[int, int, tuple[int, ...]]
) -> None:
    heads, size, shape = spec
    x = reshape.inputs[0]
    assert x is not None
    assert x.shape is not None
    assert x.dtype is not None
    width = heads * size
    inputs, attrs = [x], dict[str, Attribute](axis=len(x.shape) - 1)
    if graph.opset() >= SPLIT_BY_INPUT:
        inputs.append(graph.constant(Tensor.of(np.array([width] * PARTS, np.int64)), f"{x.name}_parts"))
    else:
        attrs["split"] = Ints([width] * PARTS)
    thirds = [TensorType(x.dtype, (*x.shape[:-1], width))] * PARTS
    name = graph.fresh(f"{transpose.name or transpose.out.name}/Split")
    split = graph.add_node("Split", inputs, PARTS, attrs, name=name, types=thirds, before=transpose)
    split.ep = transpose.ep
    dims = (reshape.out.dim(0), reshape.out.dim(1))
    wanted = graph.constant(Tensor.of(np.array(shape, np.int64)), f"{x.name}_heads")
    for node, part in picked:
        third = split.outputs[part]
        assert third is not None
        split_heads = TensorType(x.dtype, (*dims, heads, size))
        rows: list[Value | None] = [third, wanted]
        cut = graph.add_node("Reshape", rows, 1, types=[split_heads], before=transpose)
        swapped = TensorType(x.dtype, (dims[0], heads, dims[1], size))
        turned = graph.add_node("Transpose", [cut.out], 1, {"perm": Ints(SPLIT)}, types=[swapped], before=transpose)
        cut.ep = turned.ep = transpose.ep
        graph.replace(node.out, turned.out)
    for node, _ in picked:
        graph.remove_dead(node)


PASSES = (FunctionPass("PackedHeadsFusion", fuse, operators=(("", "Transpose"),)),)
