"""ONNX's own Attention, of operator set 23 and later, takes over tasks of the nodes around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.optimizer.conditions import without_absent
from ortconv.optimizer.engine import Context, New, insert_new
from ortconv.optimizer.extended.attention import making
from ortconv.optimizer.extended.attention.heads import Heads, split_heads
from ortconv.optimizer.extended.attention.making import Found
from ortconv.optimizer.extended.attention.past import Past, Pasts

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
    found = Found(root, f.query, key, value, f.scale)
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
