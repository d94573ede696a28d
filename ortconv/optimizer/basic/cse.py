"""Merges nodes that compute the same values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping

from ortconv.ir.attributes import content
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import default_attributes, is_deterministic
from ortconv.optimizer.conditions import without_absent
from ortconv.optimizer.engine import Context

PURE_DOMAINS = frozenset({"", "ai.onnx.ml"})


def merge_common(graph: Graph, context: Context) -> int:
    """Merge nodes with the same operator, attributes and inputs, except random ones and those with subgraphs.

    DequantizeLinear nodes are not merged: each reader of a quantized value needs one of its own.

    Counterpart: CommonSubexpressionElimination
    Differs: operands of commutative operators in either order; equal tensors as attributes, which are never equal
        there; DequantizeLinear stays.
    """
    return merge_nodes(graph, context, lambda node: node.domain in PURE_DOMAINS and node.op != "DequantizeLinear")


def merge_nodes(graph: Graph, context: Context, may_merge: Callable[[Node], bool]) -> int:
    """Merge nodes with the same operator, attributes and inputs that may be merged. Return the number of nodes removed."""
    seen: Seen = {}
    merged: dict[Value, Value] = {}
    twins: list[Node] = []
    limit = context.settings.limit
    allowed = math.inf if limit is None else limit - len(context.trace)
    for node in graph:
        if merged:
            _read(node, merged)
        twin = _first_like(node, seen) if may_merge(node) else node
        if twin is node or len(twins) >= allowed or not context.may_touch(twin, node):
            continue
        if _merge(graph, twin, node, merged):
            twins.append(node)
    for node in reversed(twins):
        label = node.label
        graph.remove_dead(node)
        context.record("CommonSubexpressionElimination", label)
    return len(twins)


Seen = dict[Hashable, Node | dict[Hashable, Node]]
"""Nodes by operator and inputs: a single node, or several by their attributes."""


def _first_like(node: Node, seen: Seen) -> Node:
    """The first node that computes the same as this one, which may be the node itself. Nodes are noted in `seen`."""
    inputs: Hashable = tuple(without_absent(node.inputs)) if None in node.inputs else node.inputs
    if len(node.inputs) == 2 and traits(node).has(Trait.COMMUTATIVE):
        inputs = frozenset(node.inputs)
    key = (node.op, node.domain, node.ep, inputs)
    known = seen.setdefault(key, node)
    if known is node or not is_deterministic(node):
        return node
    if isinstance(known, Node):
        known = seen[key] = {_attributes(known): known}
    return known.setdefault(_attributes(node), node)


def _read(node: Node, merged: Mapping[Value, Value]) -> None:
    """Replace the inputs of a node and of its subgraphs by the kept values, all at once: there may be thousands."""
    for reader in (node, *(inner for sub in node.subgraphs for inner in sub.walk())) if node.attrs else (node,):
        if not merged.keys().isdisjoint(reader.inputs):
            reader.parent.set_inputs(reader, [None if v is None else merged.get(v, v) for v in reader.inputs])


def _attributes(node: Node) -> Hashable:
    """A key that is equal for the same attributes, defaults included, and unique for nodes with subgraphs."""
    attrs = {**default_attributes(node), **node.attrs}
    return tuple((name, content(attrs[name])) for name in sorted(attrs))


def _merge(graph: Graph, kept: Node, node: Node, merged: dict[Value, Value]) -> bool:
    """Replace `node` by `kept`, also as a graph output; `_read` changes the readers. Return False if that is impossible.

    A slot that both return stays; readers of other slots change.
    """
    pairs = []
    for slot, old in enumerate(node.outputs):
        if old is None or not old.is_used:
            continue
        new = kept.output(slot)
        if new is None:
            return False
        if not (old.is_output and new.is_output):
            pairs.append((old, new))
    for old, new in pairs:
        if old.is_output:
            graph.replace(old, new)
        else:
            merged[old] = new
    return bool(pairs)
