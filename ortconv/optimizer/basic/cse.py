"""Nodes that compute the same become one; nodes that nothing reads go."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ortconv.ir.graph import Graph, Graphs, Node, Tensors
from ortconv.ir.schema import default_attributes, is_deterministic
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.optimizer.engine import Context, FunctionPass

COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"})
PURE_DOMAINS = frozenset({"", "ai.onnx.ml"})
REMOVABLE_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})


def merge_common(graph: Graph, context: Context) -> int:
    """Merge nodes with the same operator, attributes and inputs, other than random ones and those with subgraphs.

    DequantizeLinear stays as it is: each reader of a quantized value wants one of its own.
    """
    seen: dict[Hashable, list[Node]] = {}
    changes = 0
    for node in graph:
        if node.domain not in PURE_DOMAINS or node.op == "DequantizeLinear":
            continue
        inputs: Hashable = node.inputs
        if node.op in COMMUTATIVE and len(node.inputs) == 2:
            inputs = frozenset(node.inputs)
        twins = seen.setdefault((node.op, node.domain, inputs), [])
        for twin in twins:
            if _same(twin, node) and context.may_touch(twin, node) and _merge(graph, twin, node):
                context.record("CommonSubexpressionElimination", node.label)
                changes += 1
                break
        else:
            twins.append(node)
    return changes


def _same(a: Node, b: Node) -> bool:
    """True if two nodes of one operator with the same inputs compute the same."""
    if a.subgraphs or b.subgraphs or not is_deterministic(a):
        return False
    if a.attrs.keys() == b.attrs.keys():
        return all(_equal(v, b.attrs[k]) for k, v in a.attrs.items())
    one, other = ({**default_attributes(n), **n.attrs} for n in (a, b))
    return one.keys() == other.keys() and all(_equal(v, other[k]) for k, v in one.items())


def _equal(a: Any, b: Any) -> bool:
    """True if two attributes agree, tensors in every bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.same(b)
    if isinstance(a, SparseTensor):
        return (
            isinstance(b, SparseTensor)
            and a.shape == b.shape
            and a.values.same(b.values)
            and a.indices.same(b.indices)
        )
    if isinstance(a, Tensors):
        return isinstance(b, Tensors) and len(a) == len(b) and all(map(Tensor.same, a, b))
    return not isinstance(a, (Graph, Graphs)) and type(a) is type(b) and bool(a == b)


def _merge(graph: Graph, kept: Node, node: Node) -> bool:
    """Let `kept` stand for `node`, whose outputs that are returned hand their names over. False if that cannot be."""
    pairs = []
    for slot, old in enumerate(node.outputs):
        if old is None or not (old.uses or old.is_output):
            continue
        new = kept.output(slot)
        if new is None or (old.is_output and new.is_output):
            return False
        pairs.append((old, new))
    for old, new in pairs:
        graph.replace(old, new)
    graph.remove_dead(node)
    return True


def remove_unused(graph: Graph, context: Context) -> int:
    """Remove the nodes whose outputs nothing reads, other than those of operators that might do something besides."""
    changes = 0
    for node in reversed(graph):
        if any(v is not None and (v.uses or v.is_output) for v in node.outputs) or not _is_pure(node):
            continue
        if context.exhausted:
            break
        label = node.label
        graph.remove(node)
        context.record("UnusedNodeElimination", label)
        changes += 1
    return changes


def _is_pure(node: Node) -> bool:
    return node.domain in REMOVABLE_DOMAINS and all(_is_pure(inner) for sub in node.subgraphs for inner in sub)


PASSES = (FunctionPass("CommonSubexpressionElimination", merge_common),)
UNUSED = (FunctionPass("UnusedNodeElimination", remove_unused),)
