"""ONNX's own Attention and RotaryEmbedding, of operator set 23 and later, take over tasks of the nodes around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.optimizer.conditions import equal_shapes, numbers, with_shape, without_absent
from ortconv.optimizer.engine import Context, New, NewInput, Replacement, insert_new, rule
from ortconv.optimizer.extended.attention import making
from ortconv.optimizer.extended.attention.grouped import NORMS, is_of_rows
from ortconv.optimizer.extended.attention.heads import SPLIT, Heads, split_heads, split_of_one_row
from ortconv.optimizer.extended.attention.making import Found
from ortconv.optimizer.extended.attention.partial_rotary import joined_columns
from ortconv.optimizer.extended.attention.past import Past, Pasts
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import transpose_perm

NAME = "StandardAttentionFusion"


class _Attention(NamedTuple):
    """A node Attention(query, key, value, mask) of heads, and the values from which these are computed."""

    node: Node
    query: Heads
    key: Heads
    value: Heads

    @property
    def mask(self) -> Value | None:
        return self.node.input(3)

    @property
    def scale(self) -> float:
        stated = self.node.attr("scale", 0.0) or self.query.size**-0.5
        return float(np.float32(stated * self.query.scale * self.key.scale))


def fuse(graph: Graph, context: Context) -> int:
    """Transpose(Attention(heads of q, k and v))  ->  Attention(q, k, v), if Reshapes and Transposes make the heads of rows

    With heads that several queries share, the node reads them once. Keys and values behind earlier ones become inputs of the node,
    and it returns both.
    """
    found = [f for node in graph if node.is_op("Attention") and (f := _find(node, context)) is not None]
    pasts = Pasts(graph, ((f.key, f.value) for f in found))
    done = 0
    for f in reversed(found):  # first those that read others
        done += not context.exhausted and _fuse(f, pasts, context)
    if done:
        graph.sort()  # keys and values that attention returns may be read before the place of the node
    return done


def _find(node: Node, context: Context) -> _Attention | None:
    heads = _heads(node)
    if heads is None or not context.may_touch(node, *(n for side in heads for n in side.nodes)):
        return None
    found = _Attention(node, *heads)
    fits = found.key.copies == 1 or _is_for_all_heads(found.mask)
    return found if fits and 0 < found.scale < math.inf else None


def _heads(node: Node) -> tuple[Heads, Heads, Heads] | None:
    """Query, key and value of an Attention of heads that has no past and one result; else None."""
    if len(without_absent(node.inputs)) > 4 or node.present_outputs != [node.out]:
        return None
    query, key, value = map(split_heads, node.inputs[:3])
    if query is None or key is None or value is None:
        return None
    return (query, key, value) if _agree(query, key, value) else None


def _agree(query: Heads, key: Heads, value: Heads) -> bool:
    """True if keys and values have as many heads, shared by as many queries, and only scores are scaled."""
    if (key.count, key.copies, key.size) != (value.count, value.copies, query.size):
        return False
    return query.count % (key.count * key.copies) == 0 and (query.copies, value.scale) == (1, 1)


def _is_for_all_heads(mask: Value | None) -> bool:
    """True for a mask that ONNX Runtime before 1.25 accepts if heads are shared."""
    return mask is None or mask.rank == 2 or (mask.rank in (3, 4) and mask.dim(-3) == 1)


def _fuse(f: _Attention, pasts: Pasts, context: Context) -> bool:
    graph, before, label = f.node.parent, len(f.node.parent), f.node.label
    past = _past(f, pasts, context)
    later = (f.key, f.value) if past is None else (past[0].later, past[1].later)
    root = None if any(side.is_whole for side in (f.query, *later)) else _merging(f.node)
    if root is not None and context.may_touch(f.node, root):
        _put_rows(f, root, past, later)
    elif not _put_heads(f, past, later):
        return False
    fewer = before - len(graph)
    context.record(NAME, label, max(0, fewer) + 1, max(0, -fewer) + 1)
    return True


def _past(f: _Attention, pasts: Pasts, context: Context) -> Past | None:
    """The Concats that the node can compute. Behind a past, a causal mask would hide other keys."""
    past = None if f.node.attr("is_causal", 0) else pasts.find(f.key, f.value, (f.query.source, f.mask))
    return past if past is None or context.may_touch(f.node, *(side.node for side in past)) else None


def _put_heads(f: _Attention, past: Past | None, later: tuple[Heads, Heads]) -> bool:
    """Let the node read heads as they are, without copies and Concats. Return False if there are none, or no such heads."""
    graph, node, (key, value) = f.node.parent, f.node, (side.whole for side in later)
    if f.key.scale != 1 or (past is None and f.key.copies == 1) or key is None or value is None:
        return False
    graph.replace(node.out, _make(f, [node.inputs[0], key, value], past, node.out.type, {}, node).out)
    graph.remove_dead(node)
    return True


def _merging(node: Node) -> Node | None:
    """The Transpose that merges the heads of the result, or a Reshape if there is one row; None if there is neither."""
    root = only_reader(node.out)
    if root is None or not making.merges(root, node.out):
        return None
    return root if root.op == "Transpose" or node.out.dim(2) == 1 else None


def _put_rows(f: _Attention, root: Node, past: Past | None, later: tuple[Heads, Heads]) -> None:
    copies = f.query.count // f.key.count
    key, value = (replace(side, copies=copies) for side in (f.key, f.value))
    found = Found(root, f.query, key, value, f.scale, None, None, (), None, False, False)
    operands = [making.packed_rows(side, root) for side in (f.query, *later)]
    type = TensorType(DType.FLOAT, (*found.outer, f.query.count * f.value.size))
    heads: dict[str, Attribute] = {"q_num_heads": f.query.count, "kv_num_heads": f.key.count, "scale": f.scale}
    making.put(found, _make(f, operands, past, type, heads, root).out)


def _make(
    f: _Attention,
    operands: Sequence[Value | None],
    past: Past | None,
    type: ValueType | None,
    attrs: dict[str, Attribute],
    before: Node,
) -> Node:
    """The same attention to these operands. With a past, it takes the place of the Concats."""
    graph, sides = f.node.parent, past or ()
    inputs = without_absent([*operands, f.mask, *(side.earlier for side in sides)])
    types = (type, *(side.node.out.type for side in sides))
    new = New("Attention", inputs, {**f.node.attrs, **attrs}, outputs=len(types), types=types)
    made = insert_new(new, before)
    for side, present in zip(sides, made.present_outputs[1:]):
        graph.replace(side.node.out, present)
        graph.remove_dead(side.node)
    return made


_SPLIT = P("Reshape", "x", "heads", name="split")


@rule("RotaryRowsFusion", P("RotaryEmbedding", P("Transpose", _SPLIT, name="transpose"), "cos", "sin", ...))
def rotate_rows(m: Match) -> Replacement:
    """RotaryEmbedding(Transpose(Reshape(x)))  ->  Transpose(Reshape(RotaryEmbedding(x))), of operator set 23"""
    split, shape = m.node("split"), m.node("split").out.shape or ()
    sizes = numbers(*shape[2:])
    if len(sizes) != 2 or not equal_shapes(m.x.shape, (*shape[:2], math.prod(sizes))):
        return None
    return _transposed(
        m, New("Reshape", [_rotated(m, m.x, m.x.type, sizes[0]), m.heads], like=split, types=[split.out.type])
    )


@rule("RotaryRowsFusion", P("RotaryEmbedding", _SPLIT, "cos", "sin", ...))
def rotate_one_row(m: Match) -> Replacement:
    """RotaryEmbedding(Reshape(x))  ->  Reshape(RotaryEmbedding(x)) of operator set 23, if the only row of x is split into heads"""
    sizes = split_of_one_row(m.node("split"))
    return sizes and New("Reshape", [_rotated(m, m.x, m.x.type, sizes[0]), m.heads], like=m.node("split"))


@rule("RotaryRowsFusion", P("RotaryEmbedding", P("Transpose", "x", name="transpose"), "cos", "sin", ...))
def rotate_heads(m: Match) -> Replacement:
    """RotaryEmbedding(Transpose(x))  ->  Transpose(Reshape(RotaryEmbedding(Reshape(x)))) of operator set 23, for rows of heads x"""
    shape = m.x.shape or ()
    sizes = numbers(*shape[2:])
    if len(sizes) != 2:
        return None
    type = with_shape(m.x, (*shape[:2], math.prod(sizes)))
    rows = New("Reshape", [m.x, np.array([0, 0, math.prod(sizes)], np.int64)], types=[type])
    split = np.array([0, 0, *sizes], np.int64)
    return _transposed(m, New("Reshape", [_rotated(m, rows, type, sizes[0]), split], types=[m.x.type]))


@rule(
    "RotaryRowsFusion",
    P("RotaryEmbedding", P(NORMS, P("Transpose", "x", name="transpose"), ..., name="norm"), "cos", "sin", ...),
)
def norm_before_transpose(m: Match) -> Replacement:
    """RotaryEmbedding(Norm(Transpose(x)))  ->  RotaryEmbedding(Transpose(Norm(x))) of operator set 23, for norms of each row of
    each head
    """
    norm = m.node("norm")
    if m.x.rank != 4 or not is_of_rows(norm):
        return None
    heads = _transposed(m, New(norm.op, [m.x, *norm.inputs[1:]], like=norm, types=[m.x.type]))
    return heads and New("RotaryEmbedding", [heads, *m.root.inputs[1:]], like=m.root)


@rule("PartialRotaryFusion", P("Concat", P("RotaryEmbedding", "part", "cos", "sin", ..., name="rotation"), "rest"))
def rotate_first_columns(m: Match) -> Replacement:
    "Concat(RotaryEmbedding(first columns of x), other columns)  ->  RotaryEmbedding<rotary_embedding_dim>(x) of operator set 23"
    rotation, x, width = m.node("rotation"), joined_columns(m), m.part.dim(3)
    if x is None or not isinstance(width, int) or rotation.attr("rotary_embedding_dim", 0) not in (0, width):
        return None
    attrs = {**rotation.attrs, "rotary_embedding_dim": width}
    return New("RotaryEmbedding", [x, *rotation.inputs[1:]], attrs, like=rotation)


def _rotated(m: Match, rows: NewInput, type: ValueType | None, count: int) -> New:
    attrs = {**m.root.attrs, "num_heads": count}
    return New("RotaryEmbedding", [rows, *m.root.inputs[1:]], attrs, like=m.root, types=[type])


def _transposed(m: Match, heads: New) -> New | None:
    """Rows of heads, transposed as before; None if the Transpose does anything else."""
    transpose = m.node("transpose")
    if transpose_perm(transpose) != SPLIT:
        return None
    return New("Transpose", [heads], like=transpose, types=[transpose.out.type])


ROTARY_ROWS = rotate_rows + rotate_one_row + rotate_heads + norm_before_transpose
