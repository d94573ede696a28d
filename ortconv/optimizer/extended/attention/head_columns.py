"""Query, key and value that are groups of heads, or columns of each head, of one product become columns of this product."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import array_of
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.extended.attention.heads import SPLIT, split_of, split_of_one_row
from ortconv.optimizer.extended.attention.projection import match_product
from ortconv.optimizer.insertion import insert, integers, with_list
from ortconv.optimizer.parts import gathered, part_of
from ortconv.optimizer.permutation import transpose_perm

HEADS, COLUMNS = 2, 3
"""Axes of heads (batch, rows, heads, columns)."""

QKV = 3
"""Number of parts of each head; two parts are those of a rotation."""


class Part(NamedTuple):
    """A part of heads that a node selects, [start, end) along HEADS or COLUMNS; `swapped` after Transpose<0, 2, 1, 3>."""

    value: Value
    node: Node
    axis: int
    start: int
    end: int
    swapped: bool


def fuse(graph: Graph, context: Context) -> int:
    """Parts of Reshape(x, (batch, rows, heads, columns))  ->  Reshape(part of x), with the columns of a product x reordered

    The parts are groups of heads or, if a product with constant weights computes x, three groups of columns of each head; also of
    the heads after Transpose<0, 2, 1, 3>, for which the Reshape of a single row suffices.
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("Reshape") and node.out.rank == 4)


def _fuse(reshape: Node, context: Context) -> bool:
    x, split = reshape.present_inputs[0], split_of(reshape)
    one_row = split_of_one_row(reshape) if split is None else None
    if x.rank != 3 or reshape.out.dtype is not DType.FLOAT or only_reader(x) is None:
        return False
    count, size = split[:2] if split is not None else one_row or (0, 0)
    parts = _all_parts(reshape.out, count, size, swapped=split is None)
    if not parts or not context.may_touch(reshape, *(part.node for part in parts)):
        return False
    source = x if parts[0].axis == HEADS else _reordered(x, _order(parts, count, size), context)
    if source is None:
        return False
    graph, before, label = reshape.parent, len(reshape.parent), reshape.label
    _replace(reshape, source, parts, count, size)
    for part in parts:
        graph.remove_dead(part.node)
    context.record("HeadColumnsFusion", label, max(0, before - len(graph)), max(0, len(graph) - before))
    return True


def _all_parts(heads: Value, count: int, size: int, *, swapped: bool) -> list[Part]:
    """The parts of heads that are all of them along one axis, in order, if nothing else reads the heads; else []."""
    found = _parts(heads, swapped=swapped)
    if found is None or len(found) < 2 or len({part.axis for part in found}) != 1:
        return []
    if found[0].axis == COLUMNS and len(found) != QKV:
        return []
    found.sort(key=lambda part: part.start)
    length = {HEADS: count, COLUMNS: size}.get(found[0].axis, 0)
    edges = [(0, 0), *((part.start, part.end) for part in found), (length, length)]
    adjacent = all(first[1] == second[0] for first, second in pairwise(edges))
    return found if adjacent and all(part.start < part.end for part in found) else []


def _parts(heads: Value, *, swapped: bool) -> list[Part] | None:
    """The parts that the readers of heads select, before or after a Transpose; None if there are other readers."""
    found: list[Part] = []
    if heads.is_output:
        return None
    for node in heads.consumers:
        if not swapped and transpose_perm(node) == SPLIT and node.graph is heads.graph:
            after = _parts(node.out, swapped=True)
            if after is None:
                return None
            found += after
            continue
        for value in node.outputs:
            part = part_of(value) or gathered(value, keeps=True)
            if value is None or part is None or part.x is not heads or node.graph is not heads.graph:
                return None
            axis = SPLIT[part.axis] if swapped else part.axis
            found.append(Part(value, node, axis, part.start, part.end, swapped))
    return found


def _order(parts: list[Part], count: int, size: int) -> Array:
    """The columns of rows of heads, in an order in which all columns of one part come together."""
    columns = np.arange(count * size).reshape(count, size)
    return np.concatenate([columns[:, part.start : part.end].reshape(-1) for part in parts])


def _reordered(x: Value, order: Array, context: Context) -> Value | None:
    """A product with constant weights, and its bias, in another order of columns; None if x is not such a product."""
    m = None if x.producer is None else match_product(x.producer)
    if m is None or m.weight.rank != 2 or len(m.weight.uses) > 1:
        return None
    product, bias = m.node("product"), m.optional("bias")
    if bias is not None and bias.shape != (len(order),):
        return None
    if only_reader(product.out) is None or not context.may_touch(m.root, product):
        return None

    def constant(value: Value) -> Value:
        return m.graph.constant(Tensor.of(np.ascontiguousarray(array_of(value)[..., order])), f"{value.name}_columns")

    rows = insert("MatMul", [m.x, constant(m.weight)], x.type, product, product.attrs, name=product.name)
    return rows if bias is None else insert("Add", [rows, constant(bias)], x.type, m.root, name=m.root.name)


def _replace(reshape: Node, source: Value, parts: list[Part], count: int, size: int) -> None:
    """Replace each part by the heads of the same part of the rows."""
    graph, (batch, rows) = reshape.parent, (source.dim(0), source.dim(1))
    by_heads = parts[0].axis == HEADS
    sizes = [(part.end - part.start, size) if by_heads else (count, part.end - part.start) for part in parts]
    widths = [prod(own) for own in sizes]
    inputs, attrs = with_list(graph, "Split", source, widths, "parts", axis=2)
    types = [TensorType(DType.FLOAT, (batch, rows, width)) for width in widths]
    name = graph.fresh(f"{reshape.name or reshape.out.name}/Split")
    split = insert_node("Split", inputs, len(parts), types, reshape, attrs, name=name)
    for part, own, columns in zip(parts, sizes, split.present_outputs):
        graph.replace(part.value, _heads(part, columns, own, source, reshape))


def _heads(part: Part, columns: Value, sizes: tuple[int, int], source: Value, before: Node) -> Value:
    """Columns of the source split into heads of these number and size, in the order of axes of the part."""
    graph, (batch, rows), (count, size) = before.parent, (columns.dim(0), columns.dim(1)), sizes
    swapped = TensorType(DType.FLOAT, (batch, count, rows, size))
    if part.swapped and rows == 1:
        return insert("Reshape", [columns, integers(graph, (0, count, 1, size), source, "heads")], swapped, before)
    shape, type = integers(graph, (0, 0, *sizes), source, "heads"), TensorType(DType.FLOAT, (batch, rows, *sizes))
    heads = insert("Reshape", [columns, shape], type, before)
    return insert("Transpose", [heads], swapped, before, {"perm": Ints(SPLIT)}) if part.swapped else heads
