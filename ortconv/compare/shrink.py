"""A model with smaller inputs than it declares, for proofs on numpy where the declared ones do not fit into memory."""

from __future__ import annotations

from ortconv.ir.graph import Graph
from ortconv.ir.types import TensorType

LONG = 64
"""Input dimensions above this are free to be smaller."""


def can_shrink(graph: Graph) -> bool:
    """Whether an input has a dimension that `shrink` makes free."""
    return any(isinstance(d, int) and d > LONG for v in graph.inputs if v.const is None for d in v.shape or ())


def shrink(graph: Graph) -> None:
    """Make long input dimensions free, in place. What inner values declare of their dimensions is dropped."""
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
