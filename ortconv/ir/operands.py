"""Operands of nodes: their constant elements, and the nodes that compute and read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT, traits
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType

# ---------------------------------------------------------------------- constants


def constant_of(value: Value | None) -> Tensor | None:
    """The constant that a value always has; None if it has none, or is absent."""
    return None if value is None else value.constant


def ints(value: Value | None, absent: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
    """The elements of an integer constant of rank 0 or 1, else None; `absent` for an absent operand."""
    if value is None:
        return absent
    const = value.constant
    if const is None or const.rank > 1 or const.dtype not in (DType.INT64, DType.INT32):
        return None
    return tuple(const.numpy().reshape(-1).tolist())


def scalar(value: Value | None, absent: float | None = None) -> float | int | None:
    """The element of a numeric constant that has exactly one, else None; `absent` for an absent operand."""
    if value is None:
        return absent
    const = value.constant
    if const is None or const.size != 1 or const.dtype in (DType.STRING, DType.COMPLEX64, DType.COMPLEX128):
        return None
    number = const.item()
    return number if isinstance(number, int) else float(number)


def stated_ints(node: Node, name: str) -> tuple[int, ...] | None:
    """The integers of an attribute that is input 1 in later operator sets. () if absent; None if not constant."""
    return tuple(node.attr(name, ())) if name in node.attrs else ints(node.input(1), ())


def axes_of(node: Node) -> tuple[int, ...] | None:
    """The axes of a node. () if absent; None if not constant."""
    return stated_ints(node, "axes")


def clip_bounds(node: Node, largest: float = math.inf) -> tuple[float, float]:
    """The (lower, upper) bound of a Clip or Relu. Absent bounds of a Clip are -largest and largest, those not constant NaN."""
    if node.op == "Relu":
        return 0, math.inf
    if node.opset < 11:
        return node.attr("min", -largest), node.attr("max", largest)
    low, high = scalar(node.input(1), -largest), scalar(node.input(2), largest)
    return math.nan if low is None else low, math.nan if high is None else high


# ---------------------------------------------------------------------- neighbors


def only_reader(value: Value) -> Node | None:
    """The only reader of a value, if it reads the value once, in the same graph, and the value is not returned."""
    use = only_use(value)
    return None if use is None else use[0]


def is_only_quantized(node: Node) -> bool:
    """True if only a QuantizeLinear reads a result, perhaps through a Clip or Relu, and no operand is dequantized."""
    makers = (value.producer for value in node.present_inputs)
    dequantized = any(maker is not None and maker.op == "DequantizeLinear" for maker in makers)
    return quantizer_of_result(node) is not None and not dequantized


def quantizer_of_result(node: Node) -> Node | None:
    """The QuantizeLinear that alone reads a result, perhaps through a Clip or Relu; None if there is none."""
    reader = only_reader(node.out)
    if reader is not None and reader.op in ("Clip", "Relu"):
        reader = only_reader(reader.out)
    return reader if reader is not None and reader.op == "QuantizeLinear" else None


class QuantizedSlots(NamedTuple):
    """Inputs of an operator on integers: its operands, each before its scale and zero point, and the result's scale, likewise."""

    operands: Sequence[int]
    result: int


def quantized_slots(node: Node) -> QuantizedSlots | None:
    """The slots of integers and scales of a QLinear operator, QGemm included; None for other operators."""
    count = traits(node).quantized
    if count:
        return QuantizedSlots(range(0, 3 * count, 3), 3 * count)
    if node.domain != MICROSOFT:
        return None
    match node.op:
        case "QLinearConcat":
            return QuantizedSlots(range(2, len(node.inputs), 3), 0)
        case "QLinearWhere":
            return QuantizedSlots((1, 4), 7)
        case "QGemm":
            return QuantizedSlots((0, 3), 7)
    return None


def reader_of(value: Value, *ops: str) -> Node | None:
    """The only reader of a value, if it has one of these operators of the default domain; else None."""
    node = only_reader(value)
    return node if node is not None and node.op in ops and node.domain == "" else None


def only_use(value: Value) -> tuple[Node, int] | None:
    """The reader of a value, and its slot, if there is only one, in the same graph, and the value is not returned."""
    if len(value.uses) != 1 or value.is_output:
        return None
    ((reader, slot),) = value.uses
    return (reader, slot) if reader.graph is value.graph else None


def producer_of(value: Value | None, *ops: str) -> Node | None:
    """The node of the default domain, with one of these operators, that computes a value; None if there is none."""
    node = None if value is None else value.producer
    return node if node is not None and node.op in ops and node.domain == "" else None


def source_of(value: Value | None, *ops: str) -> Value | None:
    """A value before the nodes of these operators, of the default domain, that led to it through their first inputs."""
    while (node := producer_of(value, *ops)) is not None:
        value = node.inputs[0]
    return value


def own_producer(value: Value | None, *ops: str) -> Node | None:
    """The same as `producer_of`, but only if the value has one reader, as by `only_reader`."""
    node = producer_of(value, *ops)
    return node if value is not None and node is not None and only_reader(value) is not None else None
