"""Merges equal constants."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import constant_of, quantized_slots
from ortconv.ir.schema import overwritten_inputs
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType
from ortconv.optimizer.engine import Context

NOT_QUANTIZED = (DType.FLOAT, DType.INT64)
"""Types of most constants. No node reads them with a scale."""

SMALL = 64
"""Payloads of at most this number of bytes are compared directly; of larger ones, first a sample is compared, then a digest."""


def share_constants(graph: Graph, context: Context) -> int:
    """Merge equal initializers, with the same type, shape and bits: their readers read the first of them.

    Constants of different graphs are not merged, nor those that are dequantized in other ways, since NNAPI knows one scale of a
    tensor. Overridable ones, graph outputs and those that onnxruntime overwrites stay.

    Counterpart: ConstantSharing
    Differs: all types and sizes; there at most 8 elements, and neither 8- and 16-bit integers nor bool. There, a running mean in
    training mode may become one with a bias, which changes with it.
    """
    overwritten = {value for node in graph.walk() for value in overwritten_inputs(node)}
    groups: dict[Hashable, list[Value]] = {}
    for value in graph.initializers.values():
        const = value.constant
        if const is not None and value.uses and not value.is_output and value not in overwritten:
            groups.setdefault((_sample(const), _dequantization(value)), []).append(value)
    return sum(_share(graph, values, context) for values in groups.values() if len(values) > 1)


def _dequantization(value: Value) -> Hashable:
    """The scales and zero points with which nodes read a constant; only integers have any."""
    if value.dtype in NOT_QUANTIZED:
        return None
    parameters = (tuple(map(constant_of, _parameters(node, slot))) for node, slot in value.uses)
    return frozenset(tuple(const and const.digest() for const in found) for found in parameters if found)


def _parameters(node: Node, slot: int) -> Sequence[Value | None]:
    """Scale and zero point of an operand; () if the node reads it as it is."""
    slots = quantized_slots(node)
    is_quantized = slot == 0 if node.op == "DequantizeLinear" else slots is not None and slot in slots.operands
    return node.inputs[slot + 1 : slot + 3] if is_quantized else ()


def _sample(const: Tensor) -> Hashable:
    """A key that is equal for equal constants; for small constants, only for those."""
    data = const.data
    if isinstance(data, tuple):
        return const.dtype, const.shape, data
    if data.nbytes <= SMALL:
        return const.dtype, const.shape, bytes(data)
    middle = data.nbytes // 2
    return const.dtype, const.shape, bytes(data[middle : middle + SMALL])


def _share(graph: Graph, values: list[Value], context: Context) -> int:
    first: dict[Hashable, Value] = {}
    changes = 0
    for value in values:
        const = value.constant
        assert const is not None
        sampled = isinstance(const.data, memoryview) and const.data.nbytes > SMALL
        kept = first.setdefault(const.digest() if sampled else b"", value)
        if kept is value or context.exhausted:
            continue
        graph.replace_uses(value, kept)
        context.record("ConstantSharing", value.name, 0, 0)
        changes += 1
    return changes
