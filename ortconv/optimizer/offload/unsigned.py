"""Converts int8 activations to uint8: tensors and zero points increase by 128, which leaves the reals the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import quantized_slots
from ortconv.ir.operators import Trait, named, traits
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.optimizer.conditions import array_of
from ortconv.optimizer.engine import Context, constant
from ortconv.optimizer.quantizers import OPS, raised_to_uint8

NAME = "SignedToUnsigned"

PASSING = frozenset((*named(Trait.MOVES, Trait.JOINS), "MaxPool"))
"""Operators whose results are elements of their first input, of any type; for Concat, of all inputs."""


WITH_WEIGHTS = ("QLinearConv", "QLinearMatMul", "QGemm")
"""Operators whose second operand, if it is constant, may be signed although the first one is not."""


class Edge(NamedTuple):
    """A tensor that a node makes or reads, the slot of its zero point, and that of a constant tensor; None for no such input."""

    value: Value
    zero: int | None
    constant: int | None = None


class Shift(NamedTuple):
    """What was changed: the former types of tensors, and the former zero points and constant operands, by node and slot."""

    types: dict[Value, ValueType | None]
    constants: dict[tuple[Node, int], Value]


def _edges(node: Node) -> list[Edge] | None:
    """The tensors that must change type together at a node; None if a node does not support the change."""
    if node.op in OPS:
        value = node.out if node.op == "QuantizeLinear" else node.inputs[0]
        return None if value is None or node.attr("output_dtype", 0) else [Edge(value, 2)]
    if node.op in PASSING and node.domain == "":
        return _passing_edges(node)
    return _quantized_edges(node) or None


def _passing_edges(node: Node) -> list[Edge] | None:
    data = node.inputs if node.op == "Concat" else node.inputs[:1]
    if None in data or (len(node.outputs) > 1 and node.op == "MaxPool"):
        return None
    return [Edge(v, None) for v in (*data, *node.outputs) if v is not None]


def _quantized_edges(node: Node) -> list[Edge]:
    """The result and the operands of an operator with scales and zero points; none for other operators."""
    slots = quantized_slots(node)
    if slots is None or node.input(slots.result + 1) is None:
        return []
    read = [Edge(v, i + 2, None if v.const is None else i) for i in slots.operands if (v := node.input(i)) is not None]
    if node.op in WITH_WEIGHTS and read[-1].value.const is not None:
        del read[-1]
    return [*read, Edge(node.out, slots.result + 1)] if read else []


def _is_signed(value: Value) -> bool:
    return value.dtype is DType.INT8


def _neighbors(value: Value, graph: Graph) -> Iterator[Node | None]:
    """The nodes at both ends of a tensor; None for an end outside this graph's nodes."""
    yield value.producer
    for user, _ in value.uses:
        yield user if user.graph is graph else None
    if value.is_input or value.is_output:
        yield None


def _edges_around(value: Value, graph: Graph) -> list[tuple[Node, Edge]] | None:
    """The edges of the nodes at both ends of a tensor; None if one of these does not support the change."""
    found: list[tuple[Node, Edge]] = []
    for node in _neighbors(value, graph):
        edges = None if node is None else _edges(node)
        if node is None or edges is None or all(e.value is not value for e in edges):
            return None
        found += [(node, edge) for edge in edges]
    return found if all(map(_may_rise, found)) else None


def _may_rise(end: tuple[Node, Edge]) -> bool:
    """True for an int8 tensor whose zero point at this node is a constant of that type, if it needs one."""
    node, (value, slot, constant_slot) = end
    zero = None if slot is None else node.input(slot)
    has_zero = zero is not None and zero.constant is not None and _is_signed(zero)
    is_fixed = (value.const is not None) == (constant_slot is not None) == (value.constant is not None)
    return _is_signed(value) and is_fixed and (slot is None or has_zero)


def _component(start: Value, graph: Graph) -> tuple[list[Value], dict[tuple[Node, int], Value]] | None:
    """The tensors that must change with `start`, and the constants by node and slot; None if a node around them forbids it."""
    values, constants, stack = {start: None}, dict[tuple[Node, int], Value](), [start]
    while stack:
        around = _edges_around(stack.pop(), graph)
        if around is None:
            return None
        for node, edge in around:
            constants |= {
                (node, slot): v for slot in edge[1:] if slot is not None and (v := node.input(slot)) is not None
            }
            if edge.constant is None and edge.value not in values:
                values[edge.value] = None
                stack.append(edge.value)
    return list(values), constants


def shift(graph: Graph) -> Shift:
    """Change all int8 activations to uint8 that can change, and constant operands beside them. Return what `undo` needs."""
    done = Shift({}, {})
    raised: dict[Value, Value] = {}

    def raise_constants(constants: Mapping[tuple[Node, int], Value]) -> None:
        for (reader, slot), old in constants.items():
            if old not in raised:
                raised[old] = constant(reader, raised_to_uint8(array_of(old)))
            done.constants[reader, slot] = old
            graph.set_input(reader, slot, raised[old])

    for value in (v for node in graph for v in node.present_outputs):
        if not _is_signed(value) or (found := _component(value, graph)) is None:
            continue
        values, constants = found
        for v in values:
            done.types[v] = v.type
            v.retype(TensorType(DType.UINT8, v.shape))
        raise_constants(constants)
    for node in graph:
        raise_constants(_constant_operand(node))
    return done


def _constant_operand(node: Node) -> dict[tuple[Node, int], Value]:
    """The constants of a DequantizeLinear of an int8 constant that only operators read whose other operands are uint8."""
    weight, zero = node.input(0), node.input(2)
    if node.op != "DequantizeLinear" or weight is None or zero is None or not (weight.is_constant and zero.is_constant):
        return {}
    readers = node.out.consumers
    if not (_is_signed(weight) and _is_signed(zero) and readers and all(map(_is_unsigned, readers))):
        return {}
    return {(node, 0): weight, (node, 2): zero}


def _is_unsigned(node: Node) -> bool:
    """True if an operator of several equal operands computes with uint8 activations."""
    sources = {v.producer for v in node.present_inputs if v.constant is None}
    types = {_activation_type(source) for source in sources} - {None}
    return types == {DType.UINT8} and traits(node).has(Trait.BROADCASTS, Trait.JOINS)


def _activation_type(source: Node | None) -> DType | None:
    """The type of what a DequantizeLinear reads, None for a constant; UNDEFINED for a value in float."""
    if source is None or source.op != "DequantizeLinear":
        return DType.UNDEFINED
    return source.dtype(0) if source.constant(0) is None else None


def undo(done: Shift) -> None:
    """Undo the changes of `shift`."""
    for (node, slot), old in done.constants.items():
        if node.graph is not None:
            node.graph.set_input(node, slot, old)
    for value, type in done.types.items():
        value.retype(type)


def trace_shift(done: Shift, context: Context) -> int:
    """Add each changed tensor to the trace. Return their number."""
    makers = [value.producer for value in done.types if value.producer is not None]
    makers += [reader for reader, slot in done.constants if reader.op == "DequantizeLinear" and slot == 0]
    for node in makers:
        context.record(NAME, node.label, 0)
    return len(makers)


def make_unsigned(graph: Graph, context: Context) -> int:
    """int8 activations  ->  uint8, with zero points increased by 128, if their producers and readers support both

    Counterpart: QDQS8ToU8Transformer
    Differs: tensors between any quantized operators, not only those after constants; weights are unchanged.
    Opt-in: kernels of ARM processors are faster on int8; useful only if an accelerator supports only uint8.
    """
    return 0 if context.exhausted or graph.owner is not None else trace_shift(shift(graph), context)
