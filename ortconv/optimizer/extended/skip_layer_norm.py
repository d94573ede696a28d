"""Fuses the sum of two branches and its normalization into com.microsoft:SkipLayerNormalization."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import equal_shapes, producer_of, without_absent
from ortconv.optimizer.engine import Context, import_operators
from ortconv.optimizer.insertion import insert_node
from ortconv.optimizer.passes import FunctionPass

SUM_OUTPUT = 3
"""The output in which SkipLayerNormalization also returns the sum."""


class _Summands(NamedTuple):
    """The summands x, skip and, if `bias_add` adds one to x before, a bias."""

    x: Value
    skip: Value
    bias: Value | None = None
    bias_add: Node | None = None


def fuse(graph: Graph, context: Context) -> int:
    """LayerNormalization(x + skip)  ->  SkipLayerNormalization(x, skip), which also returns the sum if it has other
    readers

    Counterpart: SkipLayerNormFusion, BiasSkipLayerNormFusion (on by default there, as part of extended)
    Differs: the sum may have other readers, rank 2 is supported, and a bias may be on either side of its addition.
    Opt-in: fewer nodes, but slower: two to six times the time of Add and LayerNormalization in ONNX Runtime 1.31.
    Also: BiasSkipLayerNormFusion
    """
    return sum(_fuse(node, context) for node in graph if node.is_op("LayerNormalization"))


def _fuse(norm: Node, context: Context) -> bool:
    add = producer_of(norm.inputs[0], "Add")
    if add is None or add.graph is not norm.graph or not context.may_touch(norm, add):
        return False
    x, skip = add.inputs
    if x is None or skip is None or not _is_supported(norm, add.out) or not equal_shapes(x.shape, skip.shape):
        return False
    summands = _with_bias(add, x, other=skip) or _with_bias(add, skip, other=x) or _Summands(x, skip)
    _replace(norm, add, summands, context)
    return True


def _is_supported(norm: Node, total: Value) -> bool:
    """True if SkipLayerNormalization supports this normalization: of float rows along the last of 2 or 3 axes."""
    shape, parameters = total.shape or (), norm.present_inputs[1:]
    return (
        len(shape) in (2, 3)
        and attribute(norm, "axis") in (-1, len(shape) - 1)
        and attribute(norm, "stash_type") == DType.FLOAT
        and all(v.dtype is DType.FLOAT for v in (total, *parameters))
        and all(v.shape == shape[-1:] and v.producer is None for v in parameters)
        and without_absent(norm.outputs) == [norm.out]
    )


def _with_bias(add: Node, biased: Value, other: Value) -> _Summands | None:
    """The summands of `add` if it adds `other` to a value with a bias; None if `biased` is no such value."""
    inner = producer_of(biased, "Add")
    if inner is None or biased is other or biased.is_output or biased.consumers != [add]:
        return None
    if (inner.graph, inner.ep) != (add.graph, add.ep):
        return None
    operands = inner.present_inputs
    value, bias = operands if operands[1].constant is not None else operands[::-1]
    if bias.constant is None or bias.shape != (biased.dim(-1),):
        return None
    return _Summands(value, other, bias, inner) if equal_shapes(value.shape, other.shape) else None


def _replace(norm: Node, add: Node, summands: _Summands, context: Context) -> None:
    graph = norm.parent
    import_operators(graph, MICROSOFT)
    shared = add.out.is_output or len(add.out.consumers) > 1
    outputs: list[str | None] = [graph.fresh(f"{norm.out.name}_out")]
    outputs += [None, None, graph.fresh(f"{add.out.name}_out")] if shared else []
    inputs = without_absent([summands.x, summands.skip, norm.input(1), norm.input(2), summands.bias])
    attrs: dict[str, Attribute] = {"epsilon": attribute(norm, "epsilon")}
    types = [norm.out.type, None, None, add.out.type]
    op = "SkipLayerNormalization"
    fused = insert_node(op, inputs, outputs, types, add, attrs, domain=MICROSOFT, name=norm.name)
    before, label = len(graph), norm.label
    graph.replace(norm.out, fused.out)
    graph.remove(norm)
    if shared:
        total = fused.outputs[SUM_OUTPUT]
        assert total is not None
        graph.replace(add.out, total)
    graph.remove_dead(add)
    name = "SkipLayerNormFusion" if summands.bias_add is None else "BiasSkipLayerNormFusion"
    context.record(name, label, before - len(graph), 1)


PASSES = (FunctionPass("SkipLayerNormFusion", fuse, operators=(("", "LayerNormalization"),)),)
