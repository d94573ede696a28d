"""Fuses the sum of two branches and its normalization into com.microsoft:SkipLayerNormalization."""

from __future__ import annotations

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import constant_of, equal_shapes, producer_of, without_absent
from ortconv.optimizer.engine import Context, import_operators
from ortconv.optimizer.passes import FunctionPass

SUM_OUTPUT = 3
"""The output in which SkipLayerNormalization also returns the sum."""


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
    inner, x, skip, bias = _with_bias(add, x, skip) or _with_bias(add, skip, x) or (None, x, skip, None)
    _replace(norm, add, [x, skip, norm.input(1), norm.input(2), bias], context, inner)
    return True


def _is_supported(norm: Node, total: Value) -> bool:
    """True if SkipLayerNormalization supports this normalization: of float rows along the last of 2 or 3 axes."""
    shape, parameters = total.shape or (), [v for v in norm.inputs[1:] if v is not None]
    return (
        len(shape) in (2, 3)
        and attribute(norm, "axis") in (-1, len(shape) - 1)
        and attribute(norm, "stash_type") == DType.FLOAT
        and all(v.dtype is DType.FLOAT for v in (total, *parameters))
        and all(v.shape == shape[-1:] and v.producer is None for v in parameters)
        and without_absent(norm.outputs) == [norm.out]
    )


def _with_bias(add: Node, x: Value, skip: Value) -> tuple[Node, Value, Value, Value] | None:
    """The addition of a bias that computes x, then x without it, skip and the bias; None if x is no such sum."""
    inner = producer_of(x, "Add")
    if inner is None or x is skip or x.is_output or x.consumers != [add]:
        return None
    if inner.graph is not add.graph or inner.ep != add.ep:
        return None
    value, bias = inner.inputs if constant_of(inner.inputs[1]) is not None else inner.inputs[::-1]
    if value is None or bias is None or bias.constant is None or bias.shape != (x.dim(-1),):
        return None
    return (inner, value, skip, bias) if equal_shapes(value.shape, skip.shape) else None


def _replace(norm: Node, add: Node, inputs: list[Value | None], context: Context, inner: Node | None) -> None:
    graph = norm.graph
    assert graph is not None
    import_operators(graph, MICROSOFT)
    shared = add.out.is_output or len(add.out.consumers) > 1
    outputs: list[str | None] = [graph.fresh(f"{norm.out.name}_out")]
    outputs += [None, None, graph.fresh(f"{add.out.name}_out")] if shared else []
    attrs: dict[str, Attribute] = {"epsilon": attribute(norm, "epsilon")}
    fused = graph.add_node(
        "SkipLayerNormalization",
        without_absent(inputs),
        outputs,
        attrs,
        domain=MICROSOFT,
        name=norm.name,
        types=[norm.out.type, None, None, add.out.type],
        before=add,
    )
    fused.ep = norm.ep
    before, label = len(graph), norm.label
    graph.replace(norm.out, fused.out)
    graph.remove(norm)
    if shared:
        total = fused.outputs[SUM_OUTPUT]
        assert total is not None
        graph.replace(add.out, total)
    graph.remove_dead(add)
    name = "SkipLayerNormFusion" if inner is None else "BiasSkipLayerNormFusion"
    context.record(name, label, before - len(graph), 1)


PASSES = (FunctionPass("SkipLayerNormFusion", fuse, operators=(("", "LayerNormalization"),)),)
