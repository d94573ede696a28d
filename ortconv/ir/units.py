"""Node units: nodes that a backend runs together or not at all. `ortconv.partition.units` finds those of a graph."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType


class UnitOperand(NamedTuple):
    """A tensor that enters or leaves a unit, with its quantization parameters if it has any."""

    value: Value
    scale: Value | None = None
    zero_point: Value | None = None

    @property
    def parts(self) -> tuple[Value, ...]:
        """The tensor and its parameters, as far as present."""
        return tuple(v for v in self if v is not None)


class NodeUnit:
    """A node or QDQ group. `nodes` holds the DQ nodes, the target, a redundant Clip or Relu, and the Q nodes, in this order.

    `inputs` and `outputs` follow the slots of the target; quantized ones carry their scale and zero point.
    """

    __slots__ = ("inputs", "nodes", "outputs", "since", "target")

    def __init__(
        self,
        target: Node,
        nodes: tuple[Node, ...],
        inputs: tuple[UnitOperand | None, ...],
        outputs: tuple[UnitOperand | None, ...],
    ) -> None:
        self.target = target
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self.since = since_version(target)

    @property
    def op(self) -> str:
        return self.target.op

    @property
    def is_group(self) -> bool:
        """True for a QDQ group."""
        return len(self.nodes) > 1

    def input(self, slot: int) -> Value | None:
        """The tensor at an input slot, in its stored type; None if it is absent."""
        operand = self.inputs[slot] if slot < len(self.inputs) else None
        return None if operand is None else operand.value

    def dtype(self, slot: int) -> DType | None:
        value = self.input(slot)
        return None if value is None else value.dtype

    def rank(self, slot: int) -> int | None:
        value = self.input(slot)
        return None if value is None else value.rank

    def shape(self, slot: int) -> tuple[int, ...] | None:
        """The shape of an input; None unless all dimensions are known."""
        value = self.input(slot)
        return None if value is None else value.static_shape

    def constant(self, slot: int) -> Tensor | None:
        value = self.input(slot)
        return None if value is None else value.constant

    def __repr__(self) -> str:
        return f"NodeUnit({', '.join(n.op for n in self.nodes)})"
