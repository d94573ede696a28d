"""Expanded values: operators that broadcast read the value before it, and elementwise nodes move before the Expand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, named
from ortconv.ir.symbols import broadcast_shapes
from ortconv.ir.types import Shape, TensorType
from ortconv.optimizer.conditions import are_numbers, equal_shapes, uniform
from ortconv.optimizer.engine import Context, New, Replacement, rule
from ortconv.optimizer.insertion import insert
from ortconv.optimizer.pattern import C, Match, P

BROADCASTING = tuple(named(Trait.BROADCASTS, but=("PRelu",)))
"""Operators whose result has the shape that all their operands broadcast to; PRelu has that of its input."""


def from_operand(inner: P) -> tuple[P, ...]:
    """Such an operator with one of its first three operands from another node."""
    return P(BROADCASTING, inner, ...), P(BROADCASTING, "a", inner, ...), P("Where", "a", "b", inner)


def keeps_shape(reader: Node, operands: Collection[Value], shape: Shape | None) -> bool:
    """True if such an operator returns a result of the same shape when these operands have another shape."""
    if reader.op not in BROADCASTING or reader.domain != "" or any(reader.graph is not v.graph for v in operands):
        return False
    shapes = [None if v is None else shape if v in operands else v.shape for v in reader.inputs]
    return equal_shapes(broadcast_shapes(shapes), reader.out.shape)


@rule("ExpandElimination", *from_operand(P("Expand", "x", ..., name="expand", shared=True)))
def eliminate_expanded_operand(m: Match) -> Replacement:
    """op(Expand(x), y)  ->  op(x, y), where every reader of the Expand broadcasts x to the same shape by itself

    Differs: ONNX Runtime keeps it.
    """
    x = m.x
    expanded = m.node("expand").out
    if expanded.is_output or not all(keeps_shape(reader, [expanded], x.shape) for reader in expanded.consumers):
        return None
    inputs = [x if v is expanded else v for v in m.root.inputs]
    return New(m.root.op, inputs, like=m.root)


@rule("UniformGatherElimination", *from_operand(P("Gather", C("table"), "index", name="gather", shared=True)))
def eliminate_gathered_operand(m: Match) -> Replacement:
    """op(x, Gather(table, index))  ->  op(x, row of the table), if the index has equal elements, and that has the same shape"""
    table, gather = m.tensor("table"), m.node("gather")
    place = None if m.index.is_constant else uniform(m.index)  # constant rows may be added to other constants
    if not table.rank or place is None or gather.attr("axis", 0) != 0 or not -table.shape[0] <= place < table.shape[0]:
        return None
    if not keeps_shape(m.root, [gather.out], table.shape[1:]):
        return None
    row = table.numpy()[int(place)]
    return New(m.root.op, [row if v is gather.out else v for v in m.root.inputs], like=m.root)


MOVABLE = frozenset((*named(Trait.ELEMENTWISE, but=("BitCast", "CastLike")), *BROADCASTING)) - {"Div", "Mod"}
"""Operators that may move before an Expand. A division of integers could fail for an element of which an Expand makes no copies."""


def propagate_expands(graph: Graph, context: Context) -> int:
    """f(Expand(x))  ->  Expand(f(x)), for all elementwise nodes f that compute one result from x and constant numbers

    Also for several results, without an Expand, if all their readers broadcast.

    Counterpart: none: ONNX Runtime computes f for each copy
    """
    return sum(_propagate(node, context) for node in context.nodes(graph, (("", "Expand"),)))


def _propagate(expand: Node, context: Context) -> bool:
    nodes = _elementwise_after(expand)
    results = _results(expand.out, nodes)
    x, shape = expand.present_inputs
    broadcast = _all_broadcast(results, x.shape, nodes)
    if expand.out in results or not (len(results) == 1 or broadcast) or not context.may_touch(expand, *nodes):
        return False
    graph, label, count = expand.parent, expand.label, len(expand.parent)
    before = _computed_before(expand.out, x, nodes)
    for result in results:
        last, after = result.producer, before[result]
        assert last is not None
        if not broadcast:
            after = insert("Expand", [after, shape], result.type, last, name=expand.name)
        graph.replace(result, after)
        graph.remove_dead(last)
    context.record("ExpandPropagation", label, 1 + count - len(graph) if broadcast else 1, 1)
    return True


def _computed_before(expanded: Value, x: Value, nodes: Iterable[Node]) -> dict[Value, Value]:
    """New results of the nodes, computed from x instead of the expanded value, by the old ones."""
    before = {expanded: x}
    for node in nodes:
        inputs = [v and before.get(v, v) for v in node.inputs]
        type = None if node.out.dtype is None else TensorType(node.out.dtype, x.shape)
        before[node.out] = insert(node.op, inputs, type, node, node.attrs, name=node.name)
    return before


def _elementwise_after(expand: Node) -> dict[Node, None]:
    """The elementwise nodes that read only an expanded value, constant numbers and results of each other, in topological order."""
    values, nodes = [expand.out], dict[Node, None]()
    for value in values:
        for node in value.consumers:
            if node not in nodes and _is_movable(node, expand, nodes):
                nodes[node] = None
                values.append(node.out)
    return nodes


def _is_movable(node: Node, expand: Node, nodes: Collection[Node]) -> bool:
    """True for an elementwise node of the same graph whose operands are the Expand, results of these nodes and constant numbers."""
    if node.graph is not expand.graph or node.domain or node.op not in MOVABLE or len(node.outputs) != 1:
        return False
    others = [v for v in node.present_inputs if v.producer is not expand and v.producer not in nodes]
    return are_numbers(others, expand.present_inputs[0].rank)


def _results(expanded: Value, nodes: dict[Node, None]) -> list[Value]:
    """The expanded value and the results of the nodes, as far as others read them or the graph returns them."""
    values = [expanded, *(node.out for node in nodes)]
    return [v for v in values if v.is_output or not nodes.keys() >= set(v.consumers)]


def _all_broadcast(results: Sequence[Value], shape: Shape | None, nodes: Collection[Node]) -> bool:
    """True if all other readers of results return the same shape when all results have this shape."""
    readers = dict.fromkeys(user for value in results for user in value.consumers if user not in nodes)
    return not any(v.is_output for v in results) and all(keeps_shape(user, results, shape) for user in readers)
