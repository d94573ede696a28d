"""A bias that is added while batch and heads are one axis, as in BLOOM: added to the mask instead, once for all layers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.engine import Context, FunctionPass
from ortconv.optimizer.extended.attention.heads import alone
from ortconv.optimizer.extended.attention.mask import SLICE_BY_INPUTS, Masks
from ortconv.optimizer.symbols import broadcast_shapes, quotient


class Stacked(NamedTuple):
    """Reshape(scores + bias) + mask: the three nodes, and their operands."""

    inner: Node
    reshape: Node
    outer: Node
    scores: Value
    bias: Value
    mask: Value


def fuse(graph: Graph, context: Context) -> int:
    """Reshape(scores + bias) + mask  ->  Reshape(scores) + (Reshape(bias) + mask), before a Softmax

    Counterpart: none: beyond ONNX Runtime
    """
    softmaxes = [node for node in graph if node.op == "Softmax"] if graph.opset() >= SLICE_BY_INPUTS else []
    masks = Masks(graph)
    sums: dict[tuple[Value, Value], Value] = {}
    done = 0
    for softmax in softmaxes:
        found = None if context.exhausted else _find(softmax)
        if found is None or not context.may_touch(softmax, found.inner, found.reshape, found.outer):
            continue
        before = len(graph)
        if (found.bias, found.mask) not in sums:
            sums[found.bias, found.mask] = _sum(found, masks)
        graph.set_input(found.reshape, 0, found.scores)
        graph.set_inputs(found.outer, [found.reshape.out, sums[found.bias, found.mask]])
        graph.remove_dead(found.inner)
        context.record("StackedBiasFusion", found.outer.label, before - len(graph), 0)
        done += 1
    return done


def _find(softmax: Node) -> Stacked | None:
    total = softmax.inputs[0]
    outer = _alone_from(total, "Add")
    if outer is None or outer.out.rank != 4 or outer.out.dtype is not DType.FLOAT:
        return None
    for whole, mask in (outer.inputs, outer.inputs[::-1]):
        reshape = _alone_from(whole, "Reshape")
        inner = None if reshape is None else _alone_from(reshape.inputs[0], "Add")
        if reshape is None or inner is None or mask is None:
            continue
        for scores, bias in (inner.inputs, inner.inputs[::-1]):
            if scores is not None and bias is not None and _fits(scores, bias, reshape):
                return Stacked(inner, reshape, outer, scores, bias, mask)
    return None


def _alone_from(value: Value | None, op: str) -> Node | None:
    """The node of that operator that makes a value for a single reader."""
    node = None if value is None or alone(value) is None else value.producer
    return node if node is not None and node.is_op(op) else None


def _fits(scores: Value, bias: Value, reshape: Node) -> bool:
    """Whether a Reshape splits (batch * heads, queries, keys) of scores that a bias for all queries is added to."""
    product, heads = scores.producer, reshape.out.dim(1)
    if product is None or product.op not in ("MatMul", "FusedMatMul", "Mul", "Div") or not isinstance(heads, int):
        return False
    if scores.rank != 3 or bias.rank != 3 or bias.dim(1) != 1 or reshape.out.rank != 4 or heads < 1:
        return False
    stacks, queries, keys = scores.shape or ()
    split = (quotient([stacks], [heads]), heads, queries, keys)
    return None not in split and split == reshape.out.shape and bias.shape == (stacks, 1, keys)


def _sum(found: Stacked, masks: Masks) -> Value:
    """The bias, (batch, heads, 1, keys), and the mask together."""
    outer, bias, mask, graph = found.outer, found.bias, found.mask, masks.graph
    batch, heads = (found.reshape.out.dim(i) for i in range(2))

    def node(op: str, inputs: list[Value], type: TensorType, **attrs: int) -> Value:
        made = graph.add_node(op, inputs, 1, attrs, types=[type], before=outer)
        made.ep = outer.ep
        return made.out

    lead = graph.constant(Tensor.of(np.array([-1, heads, 1], np.int64)), f"{bias.name}_const")
    parts = [lead, masks.extent(bias, 2, outer)]
    shape = node("Concat", parts, TensorType(DType.INT64, (4,)), axis=0)
    apart = node("Reshape", [bias, shape], TensorType(DType.FLOAT, (batch, heads, 1, bias.dim(2))))
    dims = broadcast_shapes([apart.shape, mask.shape]) or (None,) * 4
    return node("Add", [apart, mask], TensorType(DType.FLOAT, dims))


PASSES = (FunctionPass("StackedBiasFusion", fuse, operators=(("", "Softmax"),)),)
