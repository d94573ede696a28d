"""Helpers for the tables of type rules. A rule returns the types of a node's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortconv.ir.graph import Node
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, Shape, TensorType, ValueType

TypeRule = Callable[[Node], Iterable[ValueType | None]]
"""The types of a node's outputs, and possibly more; None for one that follows from the schema alone."""


def shape_of(node: Node, slot: int) -> Shape | None:
    """The shape of an input; None if the input is absent or its rank unknown."""
    value = node.input(slot)
    if value is None:
        return None
    if value.shape is None and isinstance(value.const, Tensor):
        return value.const.shape
    return value.shape


def tensor(dtype: DType | None, shape: Shape | None) -> TensorType | None:
    return None if dtype is None else TensorType(dtype, shape)


def einsum_labels(term: str, rank: int) -> list[str | int]:
    """The labels of an operand's axes in an Einsum. The last axis of the ellipsis is -1, the one before it -2, and so on."""
    before, dots, after = term.partition("...")
    return [*before, *(range(len(before) + len(after) - rank, 0) if dots else ()), *after]


def shaped(shape: Callable[[Node], Shape | None], dtype_slot: int = 0, default: DType | None = None) -> TypeRule:
    """Rule: output 0 has this shape and the element type of an input, or the default if there is no such input."""
    return lambda node: [tensor(node.dtype(dtype_slot) or default, shape(node))]


def like(slot: int, dtype_slot: int | None = None, default: DType | None = None) -> TypeRule:
    """The same rule, with the shape of an input. By default, this input also has the element type."""
    return shaped(lambda node: shape_of(node, slot), slot if dtype_slot is None else dtype_slot, default)
