"""Reduces a model's declared input sizes, for validation on numpy when the declared inputs do not fit into memory."""

from __future__ import annotations

from ortconv.ir.graph import Graph
from ortconv.ir.types import TensorType

LONG = 64
"""Input dimensions above this size are made free."""


def can_shrink(graph: Graph) -> bool:
    """True if an input has a dimension that `shrink` would make free."""
    return any(isinstance(d, int) and d > LONG for v in graph.inputs if v.const is None for d in v.shape or ())


def shrink(graph: Graph) -> None:
    """Make long input dimensions free, in place. Declared dimensions of inner values are removed."""
    for value in graph.inputs:
        type = value.type
        if isinstance(type, TensorType) and type.shape is not None and value.const is None:
            dims = (f"{value.name}[{i}]" if isinstance(d, int) and d > LONG else d for i, d in enumerate(type.shape))
            value.type = TensorType(type.dtype, tuple(dims))
    for part in graph.graphs():
        for node in part:
            for output in node.outputs:
                if output is not None and isinstance(output.type, TensorType) and output.type.shape is not None:
                    output.type = TensorType(output.type.dtype, (None,) * len(output.type.shape))
