"""Moves the batch before the rows around attention, since fused attention has it there.

PyTorch's MultiheadAttention computes on rows (length, batch, hidden), also with batch_first=True.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortconv.ir.graph import Graph, Ints, Node, Value
from ortconv.ir.operands import producer_of, reader_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.optimizer.basic.transpose import Sweep
from ortconv.optimizer.basic.transpose_handlers import HANDLERS, Handlers, Push, pick, push
from ortconv.optimizer.conditions import numbers
from ortconv.optimizer.engine import Context, New, Replacement, apply, rule
from ortconv.optimizer.extended.attention.heads import LENGTH_FIRST, SPLIT, SWAP, Path
from ortconv.optimizer.extended.gemm_rows import fuse_split_rows
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.permutation import Perm, compose, identity, permuted_type, transpose_perm
from ortconv.optimizer.shapes import dim_of, keeps_dim, may_be_empty, target

NAME = "BatchFirstFusion"
_FUSED, _SPLITS = tuple(LENGTH_FIRST), tuple(LENGTH_FIRST.values())
"""The Transposes of heads (batch, length, count, size), and those of heads (length, batch, count, size)."""
_MERGE = (2, 0, 1, 3)
"""The Transpose back to heads (length, batch, count, size). SPLIT is the one to heads (batch, length, count, size)."""


def put_batch_first(graph: Graph, context: Context) -> int:
    """Rows (length, batch, hidden) around attention without a mask  ->  rows (batch, length, hidden)

    All nodes change for which the order of the rows does not matter. Transposes remain where others begin.

    Counterpart: none: ONNX Runtime does not fuse such attention
    """
    found = [node for node in context.nodes(graph, [("", "Softmax")]) if _heads(node)]
    if not found:
        return 0
    unflattened = sum(_unflatten(value, context) for node in found for value in _heads(node))
    sweep, seen = Sweep(graph, context, ROW_HANDLERS, NAME), set[Value]()
    for softmax in found:
        heads = _heads(softmax)
        if heads and seen.isdisjoint(heads):
            region = _Region(context, heads)
            seen.update(region.values)
            if region.gains(heads):
                region.swap(sweep)
    return unflattened + sweep.changes


def _heads(softmax: Node) -> list[Value]:
    """The heads (length, batch, count, size) among query, key, value and result of attention; empty if others differ."""
    found = _transposes(softmax)
    perms = [transpose_perm(node) for node in found]
    if not found or perms[-1] not in (_MERGE, SPLIT) or not {*_SPLITS, *_FUSED}.issuperset(perms[:-1]):
        return []
    sides = [node.present_inputs[0] for node, perm in zip(found[:-1], perms) if perm in _SPLITS]
    return [*sides, found[-1].out] if perms[-1] == _MERGE else sides


def _transposes(softmax: Node) -> list[Node]:
    """The Transposes of query, key, value and result of float32 attention; empty for other nodes, and with a mask."""
    weigh = reader_of(softmax.out, "MatMul")
    merge = None if weigh is None else reader_of(weigh.out, "Transpose")
    multiply = producer_of(Path(softmax.present_inputs[0]).unscaled().value, "MatMul")
    if multiply is None or weigh is None or merge is None or softmax.out.dtype is not DType.FLOAT:
        return []
    found = [_transpose_before(value) for value in (*multiply.present_inputs, weigh.present_inputs[1])]
    return [node for node in (*found, merge) if node is not None] if None not in found else []


def _transpose_before(value: Value) -> Node | None:
    """The Transpose that computes an operand of attention, before a scale and an exchange of rows and columns, if any."""
    path = Path(value).unscaled()
    if transpose_perm(path.value.producer) == SWAP:
        path = path.through().unscaled()
    return producer_of(path.value, "Transpose")


def _unflatten(heads: Value, context: Context) -> bool:
    """Replace the Gemm of flat rows that computes heads, perhaps with others, by a MatMul. Return False if there is none."""
    node = producer_of(heads, *_APART)
    while node is not None:
        before = producer_of(node.present_inputs[0], "Gemm", *_APART)
        if before is not None and before.op == "Gemm":
            return node.op == "Reshape" and any(apply(r, node, context) is not None for r in fuse_split_rows)
        node = before
    return False


_APART = ("Gather", "Reshape", "Slice", "Split", "Squeeze")
"""Operators between a product and the heads that it computes."""


class _Region:
    """Connected values whose first two axes can change places, and the nodes that compute and read them."""

    def __init__(self, context: Context, heads: list[Value]) -> None:
        self.context = context
        self.values = dict.fromkeys(heads)
        self.moves: dict[Node, tuple[Push, Perm]] = {}
        pending = list(self.values)
        while pending:
            value = pending.pop()
            for node in _around(value):
                found = None if node in self.moves or not context.may_touch(node) else _move(node, value)
                if found is not None:
                    self.moves[node] = found
                    new = [v for v in _moved(node, found[0]) if v not in self.values]
                    self.values.update(dict.fromkeys(new))
                    pending += new

    def gains(self, heads: list[Value]) -> bool:
        """True if nodes change that compute these heads from rows or merge them, and if no more Transposes are added than attention
        can absorb then.
        """
        if not all(any(not n.is_op("Transpose") and self._includes(n, v) for n in _around(v)) for v in heads):
            return False
        around = dict.fromkeys(node for value in self.values for node in _around(value))
        added = sum(map(self._needs_transpose, self.values))
        for node in filter(self._is_transpose, around):
            perm, after = transpose_perm(node), self._perm(node)
            added -= (after in _FUSED) - (perm in _FUSED) + (after == identity(len(after)))
        return added <= 0

    def swap(self, sweep: Sweep) -> None:
        """Swap the axes of all values: a Transpose moves past each node."""
        graph = sweep.graph
        for node in [node for node in graph if node in self.moves]:
            if not self.context.exhausted:
                sweep.apply(node, *self.moves[node])
        for node in graph:
            if node.op in ("Transpose", "Reshape"):
                sweep.visit(node)
        if sweep.out_of_order:
            graph.sort()

    def _needs_transpose(self, value: Value) -> bool:
        """True if a Transpose must separate a value from the node that computes it, or from one that reads it."""
        node = value.producer
        if node is None or not self._includes(node, value):
            return True
        return value.is_output or not all(n.graph is value.graph and self._includes(n, value) for n in value.consumers)

    def _includes(self, node: Node, value: Value) -> bool:
        """True if a node can read or compute a value with its axes swapped: one that changes, a Transpose, which gets another
        permutation, or a Reshape, if one of the axes has a single element.
        """
        if node in self.moves or self._is_transpose(node):
            return True
        return node.is_op("Reshape") and 1 in (value.shape or ())[:2] and self.context.may_touch(node)

    def _is_transpose(self, node: Node) -> bool:
        return node.is_op("Transpose") and self.context.may_touch(node)

    def _perm(self, node: Node) -> Perm:
        """The permutation of a Transpose when the axes are swapped."""
        perm, x = transpose_perm(node) or (), node.present_inputs[0]
        if x in self.values:
            perm = compose(swap_rows(len(perm)), perm)
        return compose(perm, swap_rows(len(perm))) if node.out in self.values else perm


def swap_rows(rank: int) -> Perm:
    """The permutation that swaps the first two axes; empty if there are not that many."""
    return (1, 0, *range(2, rank)) if rank > 1 else ()


def _around(value: Value) -> Iterator[Node]:
    """The nodes of the same graph that compute and read a value."""
    nodes = (value.producer, *value.consumers)
    return (node for node in nodes if node is not None and node.graph is value.graph)


def _move(node: Node, value: Value) -> tuple[Push, Perm] | None:
    """How a node changes when a Transpose moves past it that swaps the first two axes of a value which it computes or reads, and
    the permutation of that Transpose; None if it cannot move.
    """
    for slot, x in enumerate(node.inputs):
        swap = swap_rows(0 if x is None else x.rank or 0)
        found = push(node, slot, swap, ROW_HANDLERS) if x is not None and x.constant is None and len(swap) > 1 else None
        if found is not None and value in _moved(node, found):
            moved = found._replace(slots=_with_rows(node, found, len(swap)))
            return (moved, swap) if _swaps_rows(node, found) else None
    return None


def _with_rows(node: Node, found: Push, rank: int) -> tuple[int, ...]:
    """The inputs that have one of the first two axes of the result."""
    return tuple(slot for slot in found.slots if (v := node.inputs[slot]) is not None and (v.rank or 0) > rank - 2)


def _swaps_rows(node: Node, found: Push) -> bool:
    pairs = zip(node.outputs, found.perms, strict=True)
    return all(v is None or perm in (None, swap_rows(v.rank or 0)) for v, perm in pairs)


def _moved(node: Node, found: Push) -> list[Value]:
    """The values around a node, constants aside, whose axes change places when it changes so."""
    read = [v for slot in found.slots if (v := node.inputs[slot]) is not None and v.constant is None]
    computed = [v for v, perm in zip(node.outputs, found.perms, strict=True) if v is not None and perm is not None]
    return [*read, *computed]


# ---------------------------------------------------------------------- nodes


def _each_row(node: Node, slot: int, perm: Perm) -> Push | None:
    return Push((0,), (perm,) * len(node.outputs), node.attrs) if perm == swap_rows(len(perm)) else None


def _product(node: Node, slot: int, perm: Perm) -> Push | None:
    weights = node.inputs[1]
    return _each_row(node, slot, perm) if weights is not None and weights.rank == 2 else None


def _normalized(node: Node, slot: int, perm: Perm) -> Push | None:
    axis = node.attr("axis", -1)
    return _each_row(node, slot, perm) if axis % len(perm) > 1 else None


def _reshaped_rows(node: Node, slot: int, perm: Perm) -> Push | None:
    """A Reshape that keeps the first two axes."""
    wanted, rest = target(node), numbers(*(node.out.shape or ())[2:])
    if wanted is None or not rest or not all(keeps_dim(node, wanted, i) for i in range(2)):
        return None
    attrs = {name: attribute for name, attribute in node.attrs.items() if name != "allowzero"}
    moved = Push((0,), (swap_rows(len(wanted)),), attrs, {1: np.array((0, 0, *rest), np.int64)})
    return moved if perm == swap_rows(len(perm)) else None


ROW_HANDLERS: Handlers = {
    **HANDLERS,
    ("", "Gather"): pick,
    ("", "MatMul"): _product,
    ("", "Reshape"): _reshaped_rows,
    **dict.fromkeys(
        [("", op) for op in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")], _normalized
    ),
    **dict.fromkeys([(MICROSOFT, op) for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")], _each_row),
}
"""As HANDLERS, for Transposes that only swap the first two axes."""


# ---------------------------------------------------------------------- a batch of one


@rule("BatchFirstFusion", P("Reshape", P("Transpose", "x", name="merge"), ...))
def merge_heads_of_one(m: Match) -> Replacement:
    """Reshape(Transpose<2, 0, 1, 3>(x))  ->  Reshape(Transpose<0, 2, 1, 3>(x)), for a batch of one"""
    merge, wanted = m.node("merge"), target(m.root)
    if transpose_perm(merge) != _MERGE or m.x.dim(0) != 1 or wanted is None or may_be_empty(m.x):
        return None
    rows = dim_of(m.x, 2)
    spec = [e if isinstance(e, int) else 0 if (i, e) == (1, rows) else -1 for i, e in enumerate(wanted)]
    if spec.count(-1) > 1 or 0 in wanted:
        return None
    merged = New("Transpose", [m.x], {"perm": Ints(SPLIT)}, like=merge, types=[permuted_type(m.x.type, SPLIT)])
    return New("Reshape", [merged, np.array(spec, np.int64)], {}, like=m.root)
