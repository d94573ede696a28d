"""Reduces a model's declared input sizes, for validation on numpy when the declared inputs do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortconv.ir.graph import Graph
from ortconv.ir.types import TensorType

LONG = 64
"""Input dimensions above this size are made free."""


def can_shrink(graph: Graph) -> bool:
    """True if an input has a dimension that `shrink` would make free, and no node reads sizes: a conversion folds these."""
    if any(node.is_op("Shape") or node.is_op("Size") for node in graph.walk()):
        return False
    return any(isinstance(d, int) and d > LONG for v in graph.inputs if v.const is None for d in v.shape or ())


def shrink(graph: Graph) -> None:
    """Make long input dimensions free, in place. Declared dimensions of inner values are removed."""
    for value in graph.inputs:
        if value.dtype is not None and value.shape is not None and value.const is None:
            dims = (f"{value.name}[{i}]" if isinstance(d, int) and d > LONG else d for i, d in enumerate(value.shape))
            value.type = TensorType(value.dtype, tuple(dims))
    for value in (v for node in graph.walk() for v in node.present_outputs):
        if value.dtype is not None and value.shape is not None:
            value.type = TensorType(value.dtype, (None,) * len(value.shape))


@contextmanager
def shrunk(graph: Graph) -> Iterator[None]:
    """Shrinks a graph for a while."""
    values = (*graph.inputs, *(v for node in graph.walk() for v in node.present_outputs))
    declared = [(value, value.type) for value in values]
    shrink(graph)
    try:
        yield
    finally:
        for value, type in declared:
            value.type = type
