"""Values: the edges of the graph."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType, ValueType

if TYPE_CHECKING:
    from ortconv.ir.graph import Graph, Node

Use = tuple["Node", int]
"""A node, and the slot in which it reads a value."""

FEW_USES = 8
"""Up to this number, uses are a tuple, which has half the size of a dict. A longer tuple would be slow to shorten."""


class Value:
    """An edge of the graph. Only Graph creates and changes values."""

    __slots__ = ("const", "graph", "index", "is_input", "is_output", "name", "producer", "type", "uses")

    def __init__(self, name: str, type: ValueType | None, graph: Graph | None) -> None:
        self.name = name
        self.type = type
        self.graph = graph
        self.const: Tensor | SparseTensor | None = None
        self.producer: Node | None = None
        self.index = 0
        self.is_input = False
        self.is_output = False
        self.uses: tuple[Use, ...] | dict[Use, None] = ()

    @property
    def constant(self) -> Tensor | None:
        """The dense constant that this value always has: an initializer that no caller can override. Else None."""
        const = self.const
        return const if isinstance(const, Tensor) and not self.is_input else None

    @property
    def is_constant(self) -> bool:
        """True if this value always has a constant, dense or sparse."""
        return self.const is not None and not self.is_input

    @property
    def is_used(self) -> bool:
        """True if a node reads this value, or the graph returns it."""
        return bool(self.uses) or self.is_output

    def is_read_outside(self, nodes: Container[Node]) -> bool:
        """True if the graph returns this value, or a node other than these reads it."""
        return self.is_output or any(node not in nodes for node, _ in self.uses)

    @property
    def original(self) -> Value:
        """The value that Identity nodes copy to this one; this one if there are none."""
        value = self
        while value.producer is not None and value.producer.is_op("Identity"):
            value = value.producer.present_inputs[0]
        return value

    @property
    def consumers(self) -> list[Node]:
        """The distinct nodes that read this value, in order of first use."""
        return list(dict.fromkeys(node for node, _ in self.uses))

    @property
    def dtype(self) -> DType | None:
        """The element type; None if the value is no tensor or its type is unknown."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> Shape | None:
        """The shape; None if the value is no tensor or its rank is unknown."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape; None unless all dimensions are known."""
        return self.type.static_shape if isinstance(self.type, TensorType) else None

    @property
    def rank(self) -> int | None:
        shape = self.shape
        return None if shape is None else len(shape)

    def dim(self, axis: int) -> Dim:
        """One dimension; None if unknown or out of range."""
        shape = self.shape
        return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None

    def add_use(self, node: Node, slot: int) -> None:
        """Append a use. Only Graph calls this."""
        if isinstance(self.uses, dict):
            self.uses[node, slot] = None
        else:
            uses = (*self.uses, (node, slot))
            self.uses = uses if len(uses) <= FEW_USES else dict.fromkeys(uses)

    def drop_use(self, node: Node, slot: int) -> None:
        """Remove a use, which must exist. Only Graph calls this."""
        if isinstance(self.uses, dict):
            del self.uses[node, slot]
        else:
            at = self.uses.index((node, slot))
            self.uses = self.uses[:at] + self.uses[at + 1 :]

    def retype(self, type: ValueType | None) -> None:
        """Set the type."""
        self.type = type
        if self.graph is not None and self.graph.journal is not None:
            self.graph.journal.values_changed((self,))

    def __repr__(self) -> str:
        return f"%{self.name}"
