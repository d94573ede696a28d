"""Fuses the nodes of attention into com.microsoft:Attention, or into MultiHeadAttention if the projections stay separate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import only_reader, producer_of, reader_of, scalar
from ortconv.ir.schema import attribute
from ortconv.ir.types import Dim, DType
from ortconv.optimizer.basic.nan_guard import GUARD, leaves_a_key, projected_from
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.attention import making
from ortconv.optimizer.extended.attention.biased import Biased, split_mask
from ortconv.optimizer.extended.attention.heads import (
    Heads,
    Path,
    flattened,
    length,
    split_heads,
    unflattened,
    ungrouped,
)
from ortconv.optimizer.extended.attention.making import Found
from ortconv.optimizer.extended.attention.mask import Masks, PaddingMask, Scores, number
from ortconv.optimizer.extended.attention.past import Past, Pasts, past_of
from ortconv.optimizer.extended.attention.projection import Projection, packed_projections, projection_of
from ortconv.optimizer.pattern import matches
from ortconv.optimizer.shapes import Element, output_dims

LONG, LONG_OF_SMALL_HEADS, SMALL_HEAD = 384, 256, 32

TILE, FEW_COLUMNS, FEW_MASKED_COLUMNS = 16, 96, 48
"""Attention multiplies head by head, in whole tiles. With more columns than these in partial tiles, it costs more than it saves."""

SHORT, MANY = 8, 4
"""Attention has a product with weights for each head and element of a batch: slow for up to SHORT rows, from MANY elements on."""

FEW_ROWS = 16
"""With more rows of queries, MultiHeadAttention with a mask is slower than its parts."""

NARROW, FEW_SCORES = 8, 2048
"""With heads of up to NARROW columns and more than FEW_SCORES scores, MultiHeadAttention is slower than its parts."""


def fuse(graph: Graph, context: Context) -> int:
    """Softmax(q k^T * scale + bias) v over heads  ->  Attention or MultiHeadAttention

    Counterpart: AttentionFusion
    Differs: opset 13 and later, and static shapes, while ONNX Runtime matches opset 11 and 12 with symbolic shapes;
        MultiHeadAttention if query, key and value do not come from one tensor; heads in one axis with the batch; keys and values
        concatenated with earlier ones. A guard that sets the weights of rows without a key to zero is moved after the attention:
        such rows are zero even if values are NaN, and a NaN that occurs only among earlier keys reaches the result.
    """
    masks = Masks(graph)
    found = [f for node in graph if node.op == "Softmax" and (f := _find(node, masks, context)) is not None]
    fuser = _Fuser(graph, context, masks, found)
    done = sum(not context.exhausted and fuser.fuse(f) for f in reversed(found))  # first those that read others
    masks.remove_unused()
    if done or masks.has_measured:
        graph.sort()  # keys, values and their number may be read before the old position of the product
    return done


class _Fuser:
    """Fuses the attentions of one graph, which share masks and packed weights."""

    def __init__(self, graph: Graph, context: Context, masks: Masks, found: list[Found]) -> None:
        self.graph = graph
        self.context = context
        self.masks = masks
        self.pasts = Pasts(graph, ((f.key, f.value) for f in found))
        fused = [f.projections for f in found if f.projections]
        self.owners = {p.product: tuple(q.weight for q in together) for together in fused for p in together}
        """For every product that a fusion would remove, the weights that the fusion packs together."""
        self.packed: dict[tuple[Value | None, ...], tuple[Value, Value]] = {}

    def fuse(self, f: Found) -> bool:
        """Replace the nodes of one attention. Return False if no operator of the release can."""
        before, label = len(self.graph), f.root.label
        seen = self._seen(f) if f.blind else None
        past = self._past(f)
        if f.key.copies > 1 and (past is None or (f.bias is not None and not making.has_expand(self.graph))):
            return False
        f = f if past is None else making.by_groups(f, self.masks)
        if past is not None or f.projections is not None:
            f = making.with_whole_bias(f, past, self.masks, self.context)
        fused = self._fused(f, past)
        if fused is None:
            return False
        making.put(f, making.result_of(f, fused, seen))
        fewer = before - len(self.graph)
        self.context.record("AttentionFusion", label, max(0, fewer) + 1, max(0, -fewer) + 1)
        return True

    def _seen(self, f: Found) -> Value | None:
        """The condition of the rows for which the mask leaves a key; None without a mask."""
        if f.padding is not None:
            return self.masks.batches_with_a_key(f.padding.keys, f.nodes[2])
        return None if f.bias is None else self.masks.rows_with_a_key(f.bias, f.nodes[2])

    def _fused(self, f: Found, past: Past | None) -> Node | None:
        """The fused node; None if the release has none for these operands, or if their parts are faster."""
        apart = making.may_make(f, "MultiHeadAttention", self.context)
        packs = f.projections is not None and _may_pack(f.projections, self.owners) and _fills_tiles(f)
        if packs and not (apart and (_is_long(f) or _is_short(f))) and making.may_make(f, "Attention", self.context):
            return making.attention(f, self.packed)
        if not apart or (past is None and _is_faster_in_parts(f)):
            return None
        if past is not None and self.context.may_touch(f.root, *(side.node for side in past)):
            return making.with_past(f, past, self.context)
        return making.multi_head_attention(f)

    def _past(self, f: Found) -> Past | None:
        """The past and present parts of keys and values, if attention may join them; the mask may need the number of keys."""
        others = (f.query.source, *making.masks_of(f))
        past = self.pasts.find(f.key, f.value, others)
        if past is None and past_of(f.key, f.value) is not None:
            for side in (f.key, f.value):
                self.masks.measure(side, f.nodes[2])
            past = self.pasts.find(f.key, f.value, others)
        return past


# ---------------------------------------------------------------------- finding


class Sides(NamedTuple):
    """The computation of scores: the product of queries and keys, its scale, and the Reshape after it, if any."""

    heads: tuple[Heads, Heads, Heads]
    multiply: Node
    unstack: Node | None
    scale: float


def _find(softmax: Node, masks: Masks, context: Context) -> Found | None:
    around = _around(softmax)
    if around is None:
        return None
    biased, (heads, multiply, unstack, scale), after = around
    nodes = (after.root, after.product, softmax, multiply, *(after.guard or ()), *((unstack,) if unstack else ()))
    if not context.may_touch(*nodes, *(node for side in heads for node in side.nodes), *biased.nodes):
        return None
    projections = _projections(*heads)
    if after.guard is not None and not _may_move_guard(biased, *heads):
        return None
    guarded = after.guard is not None and not leaves_a_key(biased.mask)
    mask = _mask(biased, after.root, heads, masks, guarded)
    added = biased.mask is not None and not biased.replaces and after.guard is None
    return mask and Found(after.root, *heads, scale, *mask, nodes, projections, guarded, added)


def _around(softmax: Node) -> tuple[Biased, Sides, After] | None:
    """The inputs of a Softmax of scores, and the nodes that read it; None if they are not those of attention."""
    total = softmax.inputs[0]
    if total is None or not _is_of_scores(softmax, total) or only_reader(total) is None:
        return None
    after = _after(softmax)
    biased = split_mask(flattened(total) or total)
    if after is None or biased is None:
        return None
    sides = _sides(biased, after)
    return sides and (biased, sides, after)


def _mask(
    biased: Biased, root: Node, heads: tuple[Heads, Heads, Heads], masks: Masks, guarded: bool
) -> tuple[Value | None, PaddingMask | None] | None:
    """The bias or the padding for a mask; None if attention has none for it. With a guard, or if heads share keys, a bias must be
    one for all heads. With a guard and a past, there is no padding.
    """
    if biased.mask is None:
        return None, None
    query, key, value = heads
    rows, columns = length(query, 1), length(key, 1)
    fits = bool(columns & length(value, 1))
    scores = Scores(query, key, rows, columns, biased.nodes[0], _is_bounded(root, query, value), fits)
    padding = None if guarded and past_of(key, value) is not None else masks.padding(biased, scores)
    if padding is not None:
        return None, padding
    bias = masks.fitting(biased, scores)
    for_all_heads = guarded or key.copies > 1
    return None if bias is None or (for_all_heads and bias.dim(1) != 1) else (bias, None)


def _is_of_scores(softmax: Node, total: Value) -> bool:
    """True for a Softmax over the last axis of float32 scores, of which there may be some."""
    if not softmax.is_op("Softmax") or total.dtype is not DType.FLOAT or total.rank not in (3, 4):
        return False
    if 0 in (total.shape or ()):
        return False
    return attribute(softmax, "axis") in (-1, total.rank - 1)


def _sides(biased: Biased, after: After) -> Sides | None:
    scores = _scores(biased.scores)
    if scores is None or not _may_join(biased) or (after.copies > 1 and not _is_for_all_rows(biased)):
        return None
    path, unstack = scores
    multiply = producer_of(path.value, "MatMul")
    heads = None if multiply is None else _heads(multiply, after)
    if multiply is None or heads is None or not _fit(heads, unstack, after.unstack):
        return None
    scale = path.scale * heads[0].scale * heads[1].scale
    return Sides(heads, multiply, unstack, scale) if _is_known(scale) else None


def _is_known(scale: float) -> bool:
    """True for a factor that the `scale` attribute can represent; there, zero means the default."""
    return math.isfinite(scale) and scale != 0


def _may_move_guard(biased: Biased, query: Heads, key: Heads, value: Heads) -> bool:
    """True if the guard after a Softmax can be replaced by one for whole rows of the result: those, if any, for which the mask
    leaves no key.

    NaN must come from the tensor from which query, key and value are computed, or from the past that the caller provides.
    """
    past = past_of(key, value)
    sides = (query, key, value) if past is None else (query, past[0].later, past[1].later)
    sources = {projected_from(side.source) for side in sides}
    if biased.replaces or biased.layers is not None or len(sources) != 1 or None in sources:
        return False
    return leaves_a_key(biased.mask) or _is_never_positive(producer_of(biased.mask, "Where"))


def _is_never_positive(where: Node | None) -> bool:
    """True for a Where that selects between two numbers of at most 0."""
    return where is not None and all((n := scalar(v)) is not None and n <= 0 for v in where.inputs[1:])


class After(NamedTuple):
    """The nodes after a Softmax: the product with the values, and the Transpose that merges heads, or a Reshape of one row."""

    product: Node
    root: Node
    guard: tuple[Node, Node] | None
    unstack: Node | None
    """The Reshape between them, if batch and heads form one axis."""

    @property
    def copies(self) -> int:
        """The number of query heads in each group, if the rows of the product are the heads of one row."""
        rows = self.root.present_inputs[0].dim(2)
        return rows if self.root.op == "Reshape" and isinstance(rows, int) else 1


def _after(softmax: Node) -> After | None:
    guard = _guard(softmax)
    weights = softmax.out if guard is None else guard[0].out
    stack = reader_of(weights, "Reshape")
    if stack is not None and flattened(stack.out) is weights:
        weights = stack.out
    product = reader_of(weights, "MatMul")
    if product is None or product.inputs[0] is not weights:
        return None
    unstack = only_reader(product.out) if product.out.rank == 3 else None
    heads = product.out if unstack is None else unstack.out
    root = only_reader(heads)
    return After(product, root, guard, unstack) if root is not None and making.merges(root, heads) else None


def _scores(value: Value) -> tuple[Path, Node | None] | None:
    """The path to the product that computes the scores, and the Reshape that separates batch and heads."""
    path = Path(value).unscaled()
    unstack = path.value.producer if only_reader(path.value) is not None else None
    if unstack is None:
        return None
    if not unstack.is_op("Reshape"):
        return path, None
    path = path.through().unscaled()
    return (path, unstack) if only_reader(path.value) is not None else None


def _may_join(biased: Biased) -> bool:
    """False if a mask has batch and heads in one axis, or more axes than the scores."""
    mask, rank = biased.mask, biased.scores.rank
    if mask is None or rank == 4:
        return True
    return mask.rank is not None and mask.rank <= 3 and (mask.rank < 3 or mask.dim(0) == 1)


def _is_for_all_rows(biased: Biased) -> bool:
    """True if there is at most one mask, which all queries of all heads share."""
    mask = biased.mask
    return biased.layers is None and (mask is None or (mask.rank is not None and (mask.rank < 2 or mask.dim(-2) == 1)))


def _fit(heads: tuple[Heads, Heads, Heads], scores: Node | None, values: Node | None) -> bool:
    """True if the Reshapes of scores and values, if present, restore the axes of batch and heads."""
    query, key, value = heads
    outer: tuple[set[Element], ...] = (length(query, 0), {query.count}, length(query, 1))
    if scores is not None and not unflattened(scores, (*outer, length(key, 1))):
        return False
    return values is None or unflattened(values, (*outer, {value.size}))


def _guard(softmax: Node) -> tuple[Node, Node] | None:
    """The nodes of Where(IsNaN(softmax), 0, softmax), if nothing else reads the Softmax; else None."""
    weights = softmax.out
    m = next((m for node in weights.consumers for m in matches(GUARD, node) if m.weights is weights), None)
    if m is None or m.graph is not softmax.graph or weights.is_read_outside({m.root, m.node("test")}):
        return None
    return (m.root, m.node("test")) if only_reader(m.node("test").out) is m.root else None


def _is_bounded(root: Node, query: Heads, value: Heads) -> bool:
    """True if the result is known to have as many elements as the queries."""
    reader = making.merge_of(root)
    dims = output_dims(reader)
    if reader is None or len(dims) != 3:
        return False
    rows = all(length(query, axis) & dims[axis] for axis in range(2))
    hidden = query.count * value.size
    return rows and (hidden in dims[2] or (-1 in dims[2] and _columns(reader.out) == hidden))


def _columns(rows: Value) -> Dim:
    """The last dimension of rows, as required by the products with weights that read them; None if there is none."""
    for node in rows.consumers:
        readers = node.out.consumers if node.is_op("DynamicQuantizeLinear") else [node]
        for reader in readers:
            weight = reader.input(1)
            if reader.op in _PRODUCTS and weight is not None and weight.rank == 2:
                return weight.dim(0)
    return None


_PRODUCTS = ("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")


def _heads(multiply: Node, after: After) -> tuple[Heads, Heads, Heads] | None:
    """Query, key and value, if they have the same batch, heads and head size; else None."""
    if any(len({v and v.rank for v in node.inputs}) > 1 for node in (multiply, after.product)):
        return None
    query, key = split_heads(multiply.inputs[0]), split_heads(multiply.inputs[1], transposed=True)
    value = split_heads(after.product.inputs[1])
    if query is not None and after.copies > 1:
        query = ungrouped(query, after.copies)
    if query is None or key is None or value is None:
        return None
    if multiply.out.rank == 4 and query.count > 1 == key.count == value.count:  # the products broadcast
        key, value = replace(key, copies=query.count), replace(value, copies=query.count)
    elif after.copies > 1:
        key, value = (replace(side, copies=side.copies * after.copies) for side in (key, value))
    return (query, key, value) if value.scale == 1 and _agree(query, key, value) else None


def _agree(query: Heads, key: Heads, value: Heads) -> bool:
    """True if batch, heads and head size are the same; several query heads may share one of keys and values. If one of keys and
    values is in the form of heads, both must be available in it, with one size.
    """
    apart = key.is_whole or value.is_whole
    if apart and (None in (key.whole, value.whole) or key.size != value.size):
        return False
    if (query.count, query.size, query.copies) != (key.count * key.copies, key.size, 1):
        return False
    batch = length(query, 0)
    return (value.count, value.copies) == (key.count, key.copies) and all(batch & length(s, 0) for s in (key, value))


def _projections(*sides: Heads) -> tuple[Projection, Projection, Projection] | None:
    found: list[Projection | None] = [*(packed_projections(sides) or ())] or [projection_of(side) for side in sides]
    query, key, value = found
    if sides[1].copies > 1 or query is None or key is None or value is None or not query.x is key.x is value.x:
        return None
    return query, key, value


def _may_pack(projections: tuple[Projection, ...], owners: dict[Node, tuple[Value, ...]]) -> bool:
    """True if the weights are read only by products that are removed and that pack them in the same way."""
    weights = tuple(p.weight for p in projections)
    return all(owners.get(node) == weights for p in projections for node in p.weight.consumers)


def _is_long(f: Found) -> bool:
    """True if MultiHeadAttention is faster than Attention: its blocked softmax is faster for many rows, unless heads are narrow.

    With a bias it has no blocked softmax. The limits were measured with ONNX Runtime 1.31 on x86-64.
    """
    if _is_masked(f) or f.query.size <= NARROW:
        return False
    limit = LONG_OF_SMALL_HEADS if f.query.size <= SMALL_HEAD else LONG
    return all(rows is not None and rows >= limit for rows in (number(length(side, 1)) for side in (f.query, f.key)))


def _is_short(f: Found) -> bool:
    """True if MultiHeadAttention is faster than Attention because the sequences are many and short. See docs/encoders.md."""
    rows, batch = (number(length(f.query, axis)) for axis in (1, 0))
    return rows is not None and batch is not None and rows <= SHORT and batch >= MANY


def _fills_tiles(f: Found) -> bool:
    """True if Attention wastes no columns of its products, or few. See docs/encoders.md for measurements."""
    most = FEW_MASKED_COLUMNS if _is_masked(f) else FEW_COLUMNS
    return f.query.size % TILE == 0 or f.query.count * f.query.size <= most


def _is_faster_in_parts(f: Found) -> bool:
    """True for narrow heads, and if the mask costs one Add, since MultiHeadAttention copies it for each head and row."""
    queries, keys = (number(length(side, 1)) for side in (f.query, f.key))
    if any(side.source is side.whole for side in (f.key, f.value)):
        return False
    if _is_masked(f):
        return f.added and (queries is None or queries > FEW_ROWS)
    return f.query.size <= NARROW and queries is not None and keys is not None and queries * keys > FEW_SCORES


def _is_masked(f: Found) -> bool:
    return f.bias is not None or f.padding is not None
