"""Creates the fused operators of attention, and the nodes around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Ints, Node, Value
from ortconv.ir.operands import reader_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType, ValueType
from ortconv.optimizer.conditions import EXPAND, equal_shapes, numbers, with_open, without_absent
from ortconv.optimizer.engine import Context, New, NewInput, insert_new
from ortconv.optimizer.extended.attention.heads import SWAP_HEADS, Heads, length
from ortconv.optimizer.extended.attention.mask import Masks, PaddingMask, knows_all_batches, whole_type
from ortconv.optimizer.extended.attention.past import Past
from ortconv.optimizer.extended.attention.projection import Projection
from ortconv.optimizer.insertion import insert, reshaped
from ortconv.optimizer.permutation import transpose_perm
from ortconv.optimizer.shapes import DimOf, Element, refined, target

MERGE = (0, 2, 1, 3)


class Found(NamedTuple):
    """The nodes of attention in a graph: Transpose(MatMul(Softmax(q k^T * scale + bias), v))."""

    root: Node
    query: Heads
    key: Heads
    value: Heads
    scale: float
    bias: Value | None = None
    """The bias that is added to the scores, (1 or batch, 1 or heads, queries, keys)."""
    padding: PaddingMask | None = None
    nodes: tuple[Node, ...] = ()
    projections: tuple[Projection, Projection, Projection] | None = None
    """The projections from one tensor to query, key and value, if there are such."""
    blind: bool = False
    """True if there may be rows without a key, which a guard after the Softmax sets to zero."""
    added: bool = False
    """True if there is a mask, and all that it needs is to be added to the scores."""

    @property
    def graph(self) -> Graph:
        return self.root.parent

    @property
    def outer(self) -> tuple[Dim, Dim]:
        """The numbers of batches and queries."""
        heads, out = self.root.present_inputs[0], self.root.out
        if self.root.op != "Reshape":
            return out.dim(0), out.dim(1)
        is_rows = (out.shape or ())[1:] == (1, self.value.count * self.value.copies * self.value.size)
        return out.dim(0) if is_rows else heads.dim(0), 1


def may_make(f: Found, op: str, context: Context, bias: NewInput = None) -> bool:
    """True if the release that must run the model supports the operator with the present masks, or with this bias instead."""
    x: NewInput = f.query.source
    if f.query.rows is not None:
        x = New("Reshape", [x], types=[TensorType(DType.FLOAT, f.query.rows)])
    inputs = [x, x, x if op == "Attention" else None, None, None, bias or f.bias]
    return context.may_make(f.graph, New(op, inputs, {"num_heads": f.query.count}, domain=MICROSOFT))


def has_expand(graph: Graph) -> bool:
    """True if the operator set has Expand, which gives a bias to each head or copy."""
    return graph.opset() >= EXPAND


def with_whole_bias(f: Found, past: Past | None, masks: Masks, context: Context) -> Found:
    """The same attention with a bias for each batch and head, if the release requires it.

    Only where it costs less than the fusion saves: with a past, since there is usually one row of queries, and if the projections
    become part of Attention. All layers share the bias. So if its number of batches comes from the past, that must be an input.
    """
    op = "Attention" if past is None else "MultiHeadAttention"
    if f.bias is None or not has_expand(f.graph) or may_make(f, op, context):
        return f
    if not may_make(f, op, context, New("Expand", [f.bias], types=[whole_type(f.bias, f.query)])):
        return f
    earlier = None if past is None else past[0].earlier
    if not knows_all_batches(f.bias, f.query) and (earlier is None or earlier.producer is not None):
        return f
    return f._replace(bias=masks.whole(f.bias, f.query, earlier, f.nodes[2]))


def multi_head_attention(f: Found) -> Node:
    sides = (f.key, f.value)
    return _make(f, "MultiHeadAttention", _operands(f, sides, any(side.is_whole for side in sides)), {})


def with_past(f: Found, past: Past, context: Context) -> Node:
    """The fused node, which appends the present keys and values to the past ones, and returns both."""
    earlier, later = [side.earlier for side in past], (past[0].later, past[1].later)
    whole = [side.whole for side in later]
    use = New("MultiHeadAttention", [f.query.source, *whole, None, None, None, *earlier], domain=MICROSOFT)
    apart = any(side.source is side.whole for side in later) and context.may_make(f.graph, use)
    types = [side.node.out.type for side in past]
    node = _make(f, "MultiHeadAttention", [*_operands(f, later, apart), *earlier], {}, types)
    for side, present in zip(past, node.present_outputs[1:]):
        f.graph.replace(side.node.out, present)
        f.graph.remove_dead(side.node)
    return node


def _operands(f: Found, sides: tuple[Heads, Heads], apart: bool) -> list[Value | None]:
    """Query, keys, values and masks as inputs of MultiHeadAttention; keys and values as heads if `apart`."""
    query = packed_rows(f.query, f.root)
    return [query, *(side.whole if apart else packed_rows(side, f.root) for side in sides), *masks_of(f)]


def masks_of(f: Found) -> list[Value | None]:
    """The masks as inputs of MultiHeadAttention, after an absent bias."""
    return [None, f.padding.keys if f.padding else None, f.bias]


def attention(f: Found, packed: dict[tuple[Value | None, ...], tuple[Value, Value]]) -> Node:
    """The Attention node of heads whose projections it includes. `packed` has the joined weights and biases made so far."""
    assert f.projections is not None
    key = tuple(v for p in f.projections for v in (p.weight, p.bias))
    if key not in packed:
        packed[key] = _pack(f.graph, f.projections)
    weight, bias = packed[key]
    source, rows = f.projections[0].x, f.query.rows
    if rows is not None and not equal_shapes(source.shape, shape := (*rows[:2], source.dim(-1))):
        source = _shaped(source, shape, f.root)
    _, keys, added = masks_of(f)
    sizes = tuple(p.width for p in f.projections)
    attrs: dict[str, Attribute] = {} if len(set(sizes)) == 1 else {"qkv_hidden_sizes": sizes}
    return _make(f, "Attention", [source, weight, bias, keys, None, added], attrs)


def _pack(graph: Graph, projections: tuple[Projection, ...]) -> tuple[Value, Value]:
    """The weights side by side, (hidden, sum of widths), and the biases, which the kernel requires although the schema does not."""
    name = projections[0].weight.name
    weight = np.concatenate([p.matrix() for p in projections], axis=1)
    bias = np.concatenate([p.vector() for p in projections])
    return graph.constant(Tensor.of(weight), f"{name}_qkv"), graph.constant(Tensor.of(bias), f"{name}_qkv_bias")


def _make(
    f: Found, op: str, inputs: list[Value | None], attrs: dict[str, Attribute], more: Sequence[ValueType | None] = ()
) -> Node:
    attrs = {"num_heads": f.query.count, "scale": float(np.float32(f.scale))} | attrs
    if f.padding is not None:
        attrs["mask_filter_value"] = f.padding.low
    batch, queries = f.outer
    queries = queries if f.key.copies == 1 else None
    type = TensorType(DType.FLOAT, (batch, queries, f.query.count * f.value.size))
    types = (type, *more)
    return insert_new(New(op, without_absent(inputs), attrs, domain=MICROSOFT, outputs=len(types), types=types), f.root)


def packed_rows(side: Heads, before: Node) -> Value:
    """Query, key or value in the shape (batch, length, hidden)."""
    source = side.source
    if source.constant is not None and source.rank == 4:
        heads: Array = source.constant.numpy()
        batch, _, rows, _ = heads.shape
        merged = heads.transpose(MERGE).reshape(batch, rows, side.count * side.size)
        return before.parent.constant(Tensor.of(merged), f"{source.name}_rows")
    if source.rank == 3 and side.rows is None:
        return source
    if source is side.whole:
        return _merged(side, before)
    assert side.rows is not None
    if with_open(side.rows).count(-1) > 1:  # rows of heads
        return reshaped(source, (0, 0, side.rows[2]), before, TensorType(DType.FLOAT, side.rows))
    return _shaped(source, side.rows, before)


def _shaped(rows: Value, shape: Shape, before: Node) -> Value:
    """A Reshape of rows, in which one dimension may be a symbol."""
    return reshaped(rows, with_open(shape), before, TensorType(DType.FLOAT, shape))


def _merged(side: Heads, before: Node) -> Value:
    """Heads in the form of rows."""
    batch, count, rows, size = side.source.shape or (None,) * 4
    hidden = side.count * side.size
    merged = TensorType(DType.FLOAT, (batch, rows, hidden))
    if 1 in (count, rows):
        return reshaped(side.source, (0, -1, hidden), before, merged)
    apart = TensorType(DType.FLOAT, (batch, rows, count, size))
    transposed = insert("Transpose", [side.source], apart, before, {"perm": Ints(MERGE)})
    return reshaped(transposed, (0, 0, hidden), before, merged)


def by_groups(f: Found, masks: Masks) -> Found:
    """The same attention with as many query heads as key heads; if they share keys, with one row per copy."""
    if f.key.copies == 1:
        return f
    count, copies, size = f.key.count, f.key.copies, f.query.size
    heads = _swapped(packed_rows(f.query, f.root), (count, copies, size), f.root)
    type = TensorType(DType.FLOAT, (heads.dim(0), None, count * size))
    rows = reshaped(heads, (0, -1, count * size), f.root, type)
    query = replace(f.query, source=rows, count=count, rows=None, whole=None)
    return f._replace(query=query, bias=f.bias and masks.by_groups(f.bias, f.key, f.nodes[2]))


def result_of(f: Found, fused: Node, seen: Value | None) -> Value:
    """The output of the fused node, again with one row per query; rows for which `seen` is false are zero."""
    rows, swap = fused.out, f.key.copies > 1
    count, copies, size = f.key.count, f.key.copies, f.query.size
    if swap:
        hidden = count * copies * size
        type = TensorType(DType.FLOAT, (*f.outer, hidden))
        rows = reshaped(rows, (0, -1, hidden), f.root, type)
    if seen is not None:
        zero = f.graph.constant(Tensor.of(np.float32(0)), f"{seen.name}_const")
        rows = insert("Where", [seen, rows, zero], rows.type, f.root)
    return _swapped(rows, (copies, count, size), f.root) if swap else rows


def _swapped(rows: Value, parts: tuple[int, int, int], before: Node) -> Value:
    """Rows that each contain a matrix of heads, with these matrices transposed."""
    if 1 in parts[:2]:
        return rows
    dims, (first, second, size) = (rows.dim(0), rows.dim(1)), parts
    split = reshaped(rows, (0, 0, *parts), before, TensorType(DType.FLOAT, (*dims, *parts)))
    type = TensorType(DType.FLOAT, (*dims, second, first, size))
    transposed = insert("Transpose", [split], type, before, {"perm": Ints(SWAP_HEADS)})
    return reshaped(transposed, (0, 0, prod(parts)), before, TensorType(DType.FLOAT, (*dims, prod(parts))))


def merges(root: Node, heads: Value) -> bool:
    """True for the Transpose that merges heads, or a Reshape of one row, perhaps in groups, to a shape known up to the batch."""
    if transpose_perm(root) == MERGE:
        return True
    dims, sizes = root.out.shape or (), numbers(*(heads.shape or ())[1:])
    if not root.is_op("Reshape") or len(sizes) != 3:
        return False
    return bool(numbers(*dims)) or dims[1:] == (1, prod(sizes))


def merge_of(root: Node) -> Node | None:
    """The Reshape that merges heads into rows, if there is one: the root, or its reader."""
    return root if root.op == "Reshape" else reader_of(root.out, "Reshape")


def put(f: Found, fused: Value) -> None:
    """Replace the merged heads by the output of the fused node. A Reshape into rows is removed if there is one."""
    graph, root = f.graph, f.root
    reader = merge_of(root)
    rows = None if reader is None or reader.ep != root.ep else _as_read(f, fused, reader)
    if reader is not None and rows is not None:
        graph.replace(reader.out, rows)
        graph.remove_dead(reader)
        return
    split = reshaped(fused, (0, 0, f.value.count * f.value.copies, f.value.size), root, root.out.type)
    graph.replace(root.out, split)
    graph.remove_dead(root)


def _as_read(f: Found, fused: Value, reshape: Node) -> Value | None:
    """The output of the fused node in the shape that a Reshape gives the merged heads; None if that is not known."""
    wanted = target(reshape)
    if wanted is None:
        return None
    hidden = f.value.count * f.value.copies * f.value.size
    dims = refined(wanted, reshape.out)
    if _are_rows(dims, f, hidden) or _are_rows(wanted, f, hidden):
        fused.retype(reshape.out.type)
        return fused
    shape: tuple[Dim, ...] = tuple(d for d in dims if isinstance(d, int))
    return reshaped(fused, shape, f.root, reshape.out.type) if len(shape) == len(dims) else None


def _are_rows(dims: tuple[Element, ...], f: Found, hidden: int) -> bool:
    """True if these are the dimensions (batch, queries, hidden); one of them may be -1."""
    if len(dims) != 3 or dims.count(-1) > 1:
        return False
    merged = f.root.present_inputs[0] if f.root.op == "Reshape" else f.root.out
    batch, queries = (length(f.query, axis) | {dim, DimOf(merged, axis)} for axis, dim in enumerate(f.outer))
    allowed: tuple[set[Element], ...] = (batch, queries, {hidden})
    return all(d == -1 or (d is not None and d in known) for d, known in zip(dims, allowed))
