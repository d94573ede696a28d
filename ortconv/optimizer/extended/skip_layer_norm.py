"""Fuses the sum of two branches and its normalization into com.microsoft:SkipLayerNormalization."""

from __future__ import annotations

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import equal_shapes, without_absent
from ortconv.optimizer.engine import Context, insert_node
from ortconv.optimizer.pattern import C, Match, P, matches

SUM_OUTPUT = 3
"""The output in which SkipLayerNormalization also returns the sum."""


_BIASED = P("Add", "x", C("bias"), commutative=True, name="biased")
_SUMS = (P("Add", _BIASED, "skip", commutative=True, name="sum"), P("Add", "x", "skip", name="sum"))
_FORMS = tuple(P("LayerNormalization", total, ...) for total in _SUMS)


def fuse(graph: Graph, context: Context) -> int:
    """LayerNormalization(x + skip)  ->  SkipLayerNormalization(x, skip), which also returns the sum if it has other readers

    Counterpart: SkipLayerNormFusion, BiasSkipLayerNormFusion (on by default there, as part of extended)
    Differs: the sum may have other readers, rank 2 is supported, and a bias may be on either side of its addition.
    Opt-in: fewer nodes, but slower: two to six times the time of Add and LayerNormalization in ONNX Runtime 1.31.
    Also: BiasSkipLayerNormFusion
    """
    found = 0
    for norm in graph:
        m = next((m for form in _FORMS for m in matches(form, norm) if _fits(m)), None)
        if m is not None and context.may_touch(norm, m.node("sum")):
            _replace(m, context)
            found += 1
    return found


def _fits(m: Match) -> bool:
    """True if the summands have one shape, and a bias is one for each column of one of them, which nothing else reads."""
    add, biased = m.node("sum"), m.optional_node("biased")
    shapes = [v.shape for v in add.present_inputs]
    if not _is_supported(m.root, add.out) or not equal_shapes(*shapes):
        return False
    if biased is None:
        return True
    alone = biased.ep == add.ep and only_reader(biased.out) is add
    return alone and m.bias.shape == (biased.out.dim(-1),) and equal_shapes(m.x.shape, m.skip.shape)


def _is_supported(norm: Node, total: Value) -> bool:
    """True if SkipLayerNormalization supports this normalization: of float rows along the last of 2 or 3 axes."""
    shape, parameters = total.shape or (), norm.present_inputs[1:]
    return (
        len(shape) in (2, 3)
        and attribute(norm, "axis") in (-1, len(shape) - 1)
        and attribute(norm, "stash_type") == DType.FLOAT
        and attribute(norm, "epsilon") >= 0
        and all(v.dtype is DType.FLOAT for v in (total, *parameters))
        and all(v.shape == shape[-1:] and v.producer is None for v in parameters)
        and without_absent(norm.outputs) == [norm.out]
    )


def _replace(m: Match, context: Context) -> None:
    norm, add, graph = m.root, m.node("sum"), m.graph
    shared = add.out.is_output or len(add.out.consumers) > 1
    outputs: list[str | None] = [graph.fresh(f"{norm.out.name}_out")]
    outputs += [None, None, graph.fresh(f"{add.out.name}_out")] if shared else []
    inputs = without_absent([m.x, m.skip, norm.input(1), norm.input(2), m.optional("bias")])
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
    name = "SkipLayerNormFusion" if "biased" not in m.bound else "BiasSkipLayerNormFusion"
    context.record(name, label, before - len(graph), 1)
