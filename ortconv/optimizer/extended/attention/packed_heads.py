"""Query, key and value that are split from one product along a leading axis are split along its last axis instead."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import TensorType
from ortconv.optimizer.conditions import numbers, producer_of
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.attention.heads import SPLIT, alone, reader_of
from ortconv.optimizer.extended.parts import slice_of
from ortconv.optimizer.extended.split import SPLIT_BY_INPUT
from ortconv.optimizer.insertion import insert
from ortconv.optimizer.passes import FunctionPass
from ortconv.optimizer.shapes import dim_of, refined, target

PACKED = (2, 0, 3, 1, 4)
PARTS = 3


def fuse(graph: Graph, context: Context) -> int:
    """Transpose<2, 0, 3, 1, 4>(Reshape(x, (batch, rows, 3, heads, size)))[i]  ->  Transpose<0, 2, 1, 3>(Reshape(Split(x)[i]))

    Counterpart: none: beyond ONNX Runtime
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("Transpose"))


def _fuse(transpose: Node, context: Context) -> bool:
    graph, reshape = transpose.graph, producer_of(transpose.inputs[0], "Reshape")
    if graph is None or reshape is None or tuple(transpose.attr("perm", ())) != PACKED:
        return False
    picked = _picked(transpose)
    spec = _spec(reshape)
    if picked is None or spec is None or transpose.out.is_output or alone(reshape.out) is None:
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


def _spec(reshape: Node) -> tuple[int, int, tuple[int, ...]] | None:
    """The number of heads, their size, and the shape of a third of x; None unless this Reshape splits rows into three
    such parts.
    """
    x, wanted = reshape.inputs[0], target(reshape)
    if x is None or x.dtype is None or wanted is None or len(wanted) != 5:
        return None
    dims = refined(wanted, reshape.out)
    outer, sizes = numbers(*dims[:2]), numbers(*dims[2:])
    if not sizes or sizes[0] != PARTS or x.dim(-1) != prod(sizes):
        return None
    _, heads, size = sizes
    if x.rank == 3:
        kept = all(dim_of(x, i) in (wanted[i], dims[i]) for i in range(2))
        return (heads, size, (0, 0, heads, size)) if kept else None
    return (heads, size, (*outer, heads, size)) if x.rank == 2 and outer and prod(outer) == x.dim(0) else None


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
    split_heads = TensorType(x.dtype, (*dims, heads, size))
    swapped = TensorType(x.dtype, (dims[0], heads, dims[1], size))
    for node, part in picked:
        cut = insert("Reshape", [split.outputs[part], wanted], split_heads, transpose)
        graph.replace(node.out, insert("Transpose", [cut], swapped, transpose, {"perm": Ints(SPLIT)}))
    for node, _ in picked:
        graph.remove_dead(node)


PASSES = (FunctionPass("PackedHeadsFusion", fuse, operators=(("", "Transpose"),)),)
