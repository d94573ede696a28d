"""Facts in an .ort file that follow from the graph. A minimal build trusts them without checks.

Each fact is computed by one function here, so that the writer and the check of foreign files cannot disagree.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.ir.schema import Formal, Schema, schema_of
from ortconv.ir.symbols import is_stated
from ortconv.ir.tensor import Array, SparseTensor, Tensor
from ortconv.ir.types import DType, TensorType


def argument_counts(schema: Schema, actual: int) -> tuple[int, ...]:
    """Number of a node's inputs that belong to each formal input; the last formal input gets all the rest."""
    formals = len(schema.inputs)
    if formals == actual:
        return (1,) * actual
    if formals == 0:
        return (actual,)
    counts = [1 if i < actual else 0 for i in range(formals - 1)]
    return (*counts, max(0, actual - (formals - 1)))


def resolved_schema(node: Node) -> Schema:
    """The schema of a node. An unknown operator gets the schema that onnxruntime assumes for a custom library: version 1, inputs
    named Input0, Input1, ... and outputs named Output0, Output1, ... of any type.
    """
    found = schema_of(node)
    if found is not None:
        return found
    inputs = tuple(Formal(f"Input{i}", "", "single") for i in range(len(node.inputs)))
    outputs = tuple(Formal(f"Output{i}", "", "single") for i in range(len(node.outputs)))
    return Schema(node.domain, node.op, 1, inputs, outputs, frozenset(), {})


def stored_type(value: Value, type: TensorType) -> TensorType:
    """The type of a value as the file states it: unknown dimensions of a Slice of opset KEEPS_SYMBOLS get names of their own.

    When onnxruntime loads a file, it gives them the names of the dimensions before the Slice. Values of different sizes then share
    memory, and the run fails.
    """
    from ortconv.onnxio.shield import KEEPS_SYMBOLS

    node, graph = value.producer, value.graph
    if node is None or not node.is_op("Slice") or type.shape is None:
        return type
    if graph is None or graph.opset() != KEEPS_SYMBOLS:
        return type
    dims = (dim if is_stated(dim) else f"{value.name}[{axis}]" for axis, dim in enumerate(type.shape))
    return TensorType(type.dtype, tuple(dims))


class GraphEdges(NamedTuple):
    """The edges of one graph as rows of (producer, its output slot, consumer, its input slot), in two orders.

    `incoming` is sorted by consumer and producer, `outgoing` by producer and consumer. The incoming rows of node i are
    `incoming[starts_in[i]:starts_in[i + 1]]`; `starts_out` indexes `outgoing` in the same way.
    """

    incoming: Array
    starts_in: list[int]
    outgoing: Array
    starts_out: list[int]
    implicit: Mapping[Node, Sequence[str]]
    """Sorted names of the outer-scope values that a node's subgraphs read, for nodes that have any. They are implicit inputs, and
    follow the explicit ones.
    """


def edges(graph: Graph, order: Mapping[Node, int]) -> GraphEdges:
    """The edges between the nodes of a graph, numbered by `order`. Raises GraphError if a consumer comes before its producer."""
    flat = array("I")
    implicit: dict[Node, list[str]] = {}
    for node, position in order.items():
        reads = node.inputs
        if node.subgraphs and (outer := sorted(captures(node), key=lambda value: value.name)):
            implicit[node] = [value.name for value in outer]
            reads = (*reads, *outer)
        for slot, value in enumerate(reads):
            if value is not None and value.producer is not None and value.graph is graph:
                flat.extend((order[value.producer], value.index, position, slot))
    rows: Array = np.frombuffer(flat, np.uint32).reshape(-1, 4)
    backwards = np.flatnonzero(rows[:, 0] >= rows[:, 2])
    if len(backwards):
        node = list(order)[rows[backwards[0], 2]]
        raise GraphError("the node stands before one that it reads from", node=node.label)
    bounds = np.arange(len(order) + 1)
    incoming = rows[np.lexsort((rows[:, 3], rows[:, 1], rows[:, 0], rows[:, 2]))]
    outgoing = rows[np.lexsort((rows[:, 3], rows[:, 1], rows[:, 2], rows[:, 0]))]
    starts_in, starts_out = np.searchsorted(incoming[:, 2], bounds), np.searchsorted(outgoing[:, 0], bounds)
    return GraphEdges(incoming, starts_in.tolist(), outgoing, starts_out.tolist(), implicit)


def linear_indices(sparse: SparseTensor) -> Tensor:
    """The positions of a sparse constant's values in row-major order, in the smallest integer type that can hold them."""
    index = sparse.positions()
    largest = int(index.max(initial=0))
    smallest = next(t for t in (DType.INT8, DType.INT16, DType.INT32, DType.INT64) if largest < 1 << (t.bits - 1))
    return Tensor.of(index.astype(smallest.numpy), smallest)
