"""What a run will compute, as far as constants or the shapes of its inputs tell."""

from __future__ import annotations

from collections.abc import Iterable

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import is_deterministic


def shape_dataflow(nodes: Iterable[Node], inputs: Iterable[Value]) -> tuple[set[Node], set[Node]]:
    """Of nodes in topological order: those that compute constants, and those whose results follow from the inputs' shapes alone."""
    constant: set[Value] = set()
    known: set[Value] = set()
    shaped: set[Value] = set(inputs)
    folding, following = set(), set()

    def is_constant(v: Value | None) -> bool:
        return v is None or v in constant or (v.const is not None and not v.is_input)

    def is_known(v: Value | None) -> bool:
        return is_constant(v) or v in known

    for node in nodes:
        facts = traits(node)
        if facts.has(Trait.SHAPED_BY_DATA) or node.subgraphs or not is_deterministic(node):
            continue
        made = [v for v in node.outputs if v is not None]
        if all(map(is_constant, node.inputs)):
            folding.add(node)
            constant.update(made)
            continue
        if not all(is_known(v) or v in shaped for v in node.inputs):
            continue
        if node.op in ("Shape", "Size") or all(map(is_known, node.inputs)):
            following.add(node)
            known.update(made)
            shaped.update(made)
        elif all(is_known(node.inputs[i]) for i in facts.shaped_by if i < len(node.inputs)):
            shaped.update(made)
    return folding, following
