"""A bias that is added while batch and heads are one axis, as in BLOOM: added to the mask instead, once for all layers."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.broadcast import broadcast_shapes
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import SLICE_BY_INPUTS, numbers, own_producer
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.attention.mask import Masks
from ortconv.optimizer.insertion import insert, integers
from ortconv.optimizer.passes import FunctionPass
from ortconv.optimizer.symbols import quotient


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
    outer = own_producer(softmax.inputs[0], "Add")
    if outer is None or outer.out.rank != 4 or outer.out.dtype is not DType.FLOAT:
        return None
    sides = outer.present_inputs
    for whole, mask in (sides, sides[::-1]):
        reshape = own_producer(whole, "Reshape")
        inner = None if reshape is None else own_producer(reshape.inputs[0], "Add")
        if reshape is None or inner is None:
            continue
        a, b = inner.present_inputs
        for scores, bias in ((a, b), (b, a)):
            if _fits(scores, bias, reshape.out):
                return Stacked(inner, reshape, outer, scores, bias, mask)
    return None


def _fits(scores: Value, bias: Value, split: Value) -> bool:
    """Whether a Reshape splits (batch * heads, queries, keys) of scores that a bias for all queries is added to."""
    product, heads = scores.producer, split.dim(1)
    if product is None or product.op not in ("MatMul", "FusedMatMul", "Mul", "Div") or not numbers(heads):
        return False
    if scores.shape is None or bias.shape is None or len(scores.shape) != 3:
        return False
    stacks, queries, keys = scores.shape
    dims = (quotient([stacks], [heads]), heads, queries, keys)
    return None not in dims and dims == split.shape and bias.shape == (stacks, 1, keys)


def _sum(found: Stacked, masks: Masks) -> Value:
    """The bias, (batch, heads, 1, keys), and the mask together."""
    outer, bias, mask, graph = found.outer, found.bias, found.mask, masks.graph
    batch, heads = (found.reshape.out.dim(i) for i in range(2))
    parts = [integers(graph, (-1, *numbers(heads), 1), bias), masks.extent(bias, 2, outer)]
    shape = insert("Concat", parts, TensorType(DType.INT64, (4,)), outer, {"axis": 0})
    apart = insert("Reshape", [bias, shape], TensorType(DType.FLOAT, (batch, heads, 1, bias.dim(2))), outer)
    dims = broadcast_shapes([apart.shape, mask.shape]) or (None,) * 4
    return insert("Add", [apart, mask], TensorType(DType.FLOAT, dims), outer)


PASSES = (FunctionPass("StackedBiasFusion", fuse, operators=(("", "Softmax"),)),)
