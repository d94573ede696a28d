"""Type and shape rules for the attention operators of ONNX and of ONNX Runtime's own domain."""

from __future__ import annotations

from typing import Any

from ortconv.ir.graph import Node
from ortconv.ir.symbols import plus, times
from ortconv.ir.types import Dim, Shape, ValueType
from ortconv.onnxio.type_rules import TypeRule, shape_of, tensor


def attention(past_slot: int, dtype_slot: int) -> TypeRule:
    """Attention over a packed projection of queries, keys and values; `present` is [2, batch, heads, length, head size]."""

    def rule(node: Node) -> list[ValueType | None]:
        x, w, past = shape_of(node, 0), shape_of(node, 1), shape_of(node, past_slot)
        dtype = node.dtype(dtype_slot)
        sizes: Any = node.attr("qkv_hidden_sizes", ())
        hidden: Dim = sizes[2] if sizes else _split(w[1], 3) if w is not None and len(w) == 2 else None
        batch, length = x[:2] if x is not None and len(x) == 3 else (None, None)
        heads: int = node.attr("num_heads", 0)
        head_size = _split(hidden, heads)
        present: Shape = (2, batch, heads or None, length, head_size)
        if past is not None and len(past) == 5:
            share = node.attr("past_present_share_buffer", 0)
            present = past if share else (*past[:3], plus(past[3], length), past[4])
        elif node.input(past_slot) is not None:
            present = (2, batch, heads or None, None, head_size)
        return [tensor(dtype, None if x is None else (batch, length, hidden)), tensor(dtype, present)]

    return rule


def multi_head_attention(past_slot: int) -> TypeRule:
    """Rule for attention over separate queries, keys and values, or over all three packed as [batch, length, heads, 3, head size].

    Present keys and values are [batch, heads, past length + length, head size].
    """

    def rule(node: Node) -> list[ValueType | None]:
        dtype = node.dtype(0)
        q, k, v = (shape_of(node, slot) for slot in range(3))
        if q is None or len(q) not in (3, 5):
            return [tensor(dtype, None), tensor(dtype, (None,) * 4), tensor(dtype, (None,) * 4)]
        heads: Dim = node.attr("num_heads", 0) or None
        hidden, v_hidden = (q[2], None) if v is None and node.input(2) is not None else _hidden(q, v)
        length = k[1] if k is not None and len(k) in (3, 5) else k[2] if k is not None and len(k) == 4 else q[1]
        present = [
            _present(node, past_slot + i, (q[0], heads, length, _split(size, heads)))
            for i, size in enumerate((hidden, v_hidden))
        ]
        return [tensor(dtype, (q[0], q[1], v_hidden)), *(tensor(dtype, shape) for shape in present)]

    return rule


def _hidden(q: Shape, v: Shape | None) -> tuple[Dim, Dim]:
    """(size of all query heads together, size of all value heads together)."""
    if len(q) == 5:
        both = times(q[2], q[4])
        return both, both
    if v is None:
        return q[2], q[2]
    return q[2], v[2] if len(v) == 3 else times(v[1], v[3]) if len(v) == 4 else q[2]


def _split(size: Dim, parts: Dim) -> Dim:
    return size // parts if isinstance(size, int) and isinstance(parts, int) and parts else None


def _present(node: Node, past_slot: int, alone: Shape) -> Shape:
    past = shape_of(node, past_slot)
    if node.input(past_slot) is None:
        return alone
    if past is None or len(past) != 4:
        return (*alone[:2], None, alone[3])
    has_length = node.op == "MultiHeadAttention" and node.input(8) is not None
    if has_length or node.attr("past_present_share_buffer", 0):
        return past
    return (*past[:2], plus(past[2], alone[2]), past[3])


def group_query_attention(node: Node) -> list[ValueType | None]:
    """Attention with fewer heads of keys than of queries. Without keys, the first input packs all along its last axis."""
    q, past = shape_of(node, 0), shape_of(node, 3)
    dtype = node.dtype(0)
    cache = node.dtype(3) or dtype
    heads: int = node.attr("num_heads", 0)
    kv_heads: int = node.attr("kv_num_heads", 0)
    if q is None or len(q) != 3:
        return [tensor(dtype, None), *[tensor(cache, (None,) * 4)] * 2, tensor(dtype, (None,) * 4)]
    packed = node.input(1) is None
    head_size = _split(q[2], heads + 2 * kv_heads if packed else heads)
    hidden = times(head_size, heads) if packed else q[2]
    present: Shape = (q[0], kv_heads or None, None, head_size)
    if past is not None and len(past) == 4:
        present = (*past[:2], None, past[3])
    scores: Shape = (q[0], heads or None, q[1], None)
    return [tensor(dtype, (q[0], q[1], hidden)), *[tensor(cache, present)] * 2, tensor(dtype, scores)]


def sparse_attention(node: Node) -> list[ValueType | None]:
    """Attention that keeps keys and values in the memory of the past ones, so that both have the same type and shape."""
    return [group_query_attention(node)[0], *(tensor(node.dtype(slot), shape_of(node, slot)) for slot in (3, 4))]


def linear_attention(node: Node) -> list[ValueType | None]:
    """Attention whose past is one state of fixed size."""
    dtype = node.dtype(0)
    return [tensor(dtype, None), tensor(node.dtype(3) or dtype, shape_of(node, 3))]


def standard_attention(node: Node) -> list[ValueType | None]:
    """ONNX's own attention, over heads [batch, heads, length, head size], or over rows of heads side by side."""
    q, k, v = (
        _as_heads(shape_of(node, i), node.attr(f"{side}_num_heads", 0)) for i, side in enumerate(("q", "kv", "kv"))
    )
    if q is None or k is None or v is None:
        return []
    (batch, heads, length, _), dtype = q, node.dtype(0)
    present_key, present_value = _present(node, 4, k), _present(node, 5, v)
    is_rows = len(shape_of(node, 0) or ()) == 3
    y = (batch, length, times(heads, v[3])) if is_rows else (batch, heads, length, v[3])
    scores = (batch, heads, length, present_key[2])
    others = tensor(dtype, present_key), tensor(node.dtype(2), present_value), tensor(dtype, scores)
    return [tensor(dtype, y), *others]


def _as_heads(shape: Shape | None, heads: int) -> Shape | None:
    """The shape of heads that are given as such, or side by side in rows; None if it is unknown."""
    if shape is None or len(shape) != 3:
        return None if shape is None or len(shape) != 4 else shape
    return shape[0], heads or None, shape[1], _split(shape[2], heads)


ATTENTION_TYPES: dict[str, TypeRule] = {
    "Attention": attention(4, 0),
    "QAttention": attention(8, 3),
    "MultiHeadAttention": multi_head_attention(6),
    "DecoderMaskedMultiHeadAttention": multi_head_attention(5),
    "GroupQueryAttention": group_query_attention,
    "LinearAttention": linear_attention,
    "SparseAttention": sparse_attention,
}
"""Rules for the output types of a node, by operator of com.microsoft."""
