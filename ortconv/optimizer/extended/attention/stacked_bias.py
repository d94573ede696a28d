"""A bias that is added while batch and heads are one axis, as in BLOOM: added to the mask instead, once for all layers."""

from __future__ import annotations

from ortconv.ir.graph import Graph, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.symbols import broadcast_shapes, quotient
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import SLICE_BY_INPUTS, numbers
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.attention.mask import Masks
from ortconv.optimizer.insertion import insert, integers
from ortconv.optimizer.pattern import Match, P, matches

_SUM = P("Add", "scores", "bias", commutative=True, name="inner")
_STACKED = P("Softmax", P("Add", P("Reshape", _SUM, ..., name="reshape"), "mask", commutative=True, name="outer"))


def fuse(graph: Graph, context: Context) -> int:
    """Reshape(scores + bias) + mask  ->  Reshape(scores) + (Reshape(bias) + mask), before a Softmax"""
    softmaxes = [node for node in graph if node.op == "Softmax"] if graph.opset() >= SLICE_BY_INPUTS else []
    masks = Masks(graph)
    sums: dict[tuple[Value, Value], Value] = {}
    done = 0
    for softmax in softmaxes:
        m = next(filter(_fits, matches(_STACKED, softmax)), None)
        if m is None or not context.may_touch(softmax, *(node for node, _ in m.nodes)):
            continue
        inner, reshape, outer = (m.node(name) for name in ("inner", "reshape", "outer"))
        before = len(graph)
        if (m.bias, m.mask) not in sums:
            sums[m.bias, m.mask] = _sum(m, masks)
        graph.set_input(reshape, 0, m.scores)
        graph.set_inputs(outer, [reshape.out, sums[m.bias, m.mask]])
        removed = graph.remove_dead(inner)
        context.record("StackedBiasFusion", outer.label, removed, len(graph) + removed - before)
        done += 1
    return done


def _fits(m: Match) -> bool:
    """True if the Reshape splits (batch * heads, queries, keys) of float32 scores to which a bias for all queries is added."""
    product, split, scores, bias = m.scores.producer, m.node("reshape").out, m.scores.shape, m.bias.shape
    heads, outer = split.dim(1), m.node("outer").out
    if product is None or product.op not in ("MatMul", "FusedMatMul", "Mul", "Div") or not numbers(heads):
        return False
    if scores is None or len(scores) != 3 or (outer.rank, outer.dtype) != (4, DType.FLOAT):
        return False
    if None in (only_reader(node.out) for node, _ in m.nodes):
        return False
    stacks, queries, keys = scores
    dims = (quotient([stacks], [heads]), heads, queries, keys)
    return None not in dims and dims == split.shape and bias == (stacks, 1, keys)


def _sum(m: Match, masks: Masks) -> Value:
    """The bias, (batch, heads, 1, keys), and the mask together."""
    outer, bias, mask, graph = m.node("outer"), m.bias, m.mask, m.graph
    batch, heads = (m.node("reshape").out.dim(i) for i in range(2))
    parts = [integers(graph, (-1, *numbers(heads), 1), bias), masks.extent(bias, 2, outer)]
    shape = insert("Concat", parts, TensorType(DType.INT64, (4,)), outer, {"axis": 0})
    apart = insert("Reshape", [bias, shape], TensorType(DType.FLOAT, (batch, heads, 1, bias.dim(2))), outer)
    dims = broadcast_shapes([apart.shape, mask.shape]) or (None,) * 4
    return insert("Add", [apart, mask], TensorType(DType.FLOAT, dims), outer)
