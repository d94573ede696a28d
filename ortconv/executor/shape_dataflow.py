"""Finds values of a run that are determined by constants or by the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import draws


def shape_dataflow(nodes: Iterable[Node], inputs: Iterable[Value]) -> tuple[set[Node], set[Node]]:
    """Of nodes in topological order: those that compute constants, and those whose results depend only on the inputs' shapes."""
    constant: set[Value] = set()
    known: set[Value] = set()  # the elements follow from constants and the inputs' shapes
    shaped: set[Value] = set(inputs)  # the shape does
    folding, following = set(), set()
    for node in filter(_follows_from_inputs, nodes):
        facts = traits(node)
        reads, made = _variables(node.inputs), _variables(node.outputs)
        if constant.issuperset(reads):
            folding.add(node)
            constant.update(made)
            known.update(made)
        elif not shaped.issuperset(reads):
            continue
        elif node.op in ("Shape", "Size") or known.issuperset(reads):
            following.add(node)
            known.update(made)
        elif facts.shaped_by and not known.issuperset(_variables(map(node.input, facts.shaped_by))):
            continue
        shaped.update(made)
    return folding, following


def _follows_from_inputs(node: Node) -> bool:
    """False for a node whose results depend on more than its inputs, or whose output shapes depend on data."""
    return not (traits(node).has(Trait.SHAPED_BY_DATA) or node.subgraphs or draws(node))


def _variables(values: Iterable[Value | None]) -> list[Value]:
    """The values that are present and are not constants of the model."""
    return [v for v in values if v is not None and (v.const is None or v.is_input)]
