"""Verifies an .ort file: first every byte that is read, then the consistency of the tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ortconv.choices import natural
from ortconv.errors import FormatError, GraphError, UnsupportedError
from ortconv.ir.types import DType
from ortconv.ortformat import runtime
from ortconv.ortformat.decode import Decoder, Record
from ortconv.ortformat.layout import VERSIONS

PAYLOADS = {1: None, 2: None, 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors"}
"""The required field for each AttributeType. Graphs (10) and sparse tensors (11, 12) have no loadable form."""


def decode(buffer: Any) -> Record:
    """The InferenceSession record of an .ort file. Raises FormatError, GraphError or UnsupportedError unless it can be loaded."""
    root = Decoder(buffer).root()
    version = root.ort_version
    number = natural(version) if version.isascii() else None
    if number is None or number not in VERSIONS:
        raise UnsupportedError(f"format version {version[:20]!r} is not one of {VERSIONS[0]} to {VERSIONS[-1]}")
    if number >= 5 and root.kernel_type_str_resolver is None:
        raise FormatError("InferenceSession.kernel_type_str_resolver: is missing, which version 5 and later need")
    for entry in root.model.opset_import:
        if not 0 <= entry.version < 2**31:
            raise GraphError(f"version {entry.version} of operator set '{entry.domain}' is impossible")
    _check_graph(root.model.graph, frozenset(), "the graph")
    return root


def _check_graph(graph: Record, outer: frozenset[str], where: str) -> None:
    names = _value_names(graph, where)
    _check_interface(graph, names, where)
    _check_constants(graph, names, where)
    nodes: dict[int, Record] = {}
    for node in graph.nodes or ():
        if not node.index < graph.max_node_index or node.index in nodes:
            raise GraphError(
                f"node index {node.index} is beyond {graph.max_node_index} or given twice", node=node_label(node)
            )
        nodes[node.index] = node
        _check_node(node, names, outer)
    _check_edges(graph, nodes, where)
    runtime.check(graph, nodes.keys(), where)
    visible = outer | names
    for node in nodes.values():
        for attribute in node.attributes or ():
            _check_attribute(attribute, visible, node)


def _check_interface(graph: Record, names: frozenset[str], where: str) -> None:
    for field in ("inputs", "outputs"):
        for name in getattr(graph, field) or ():
            if name not in names or not name:
                raise GraphError(f"{where}: '{name}' in {field} has no ValueInfo")


def _check_constants(graph: Record, names: frozenset[str], where: str) -> None:
    for tensor in graph.initializers or ():
        check_tensor(tensor, where)
        if not tensor.name or tensor.name not in names:
            raise GraphError(f"{where}: initializer '{tensor.name}' has no ValueInfo")
    for sparse in graph.sparse_initializers or ():
        _check_sparse(sparse, names, where)


def _value_names(graph: Record, where: str) -> frozenset[str]:
    values = graph.node_args or ()
    for value in values:
        if (value.name == "") != (value.type is None):
            raise GraphError(f"{where}: value '{value.name}' has {'no' if value.name else 'a'} type")
        if value.type is not None and value.type.value is None:
            raise GraphError(f"{where}: the type of value '{value.name}' is empty")
    names = frozenset(value.name for value in values)
    if len(names) != len(values):
        raise GraphError(f"{where}: a value has more than one ValueInfo")
    return names


def operator_of(node: Record) -> str:
    return f"{node.domain}:{node.op_type}" if node.domain else str(node.op_type)


def node_label(node: Record) -> str:
    """A node as messages call it."""
    return f"{operator_of(node)} '{node.name or next(filter(None, node.outputs), '?')}'"


def _check_node(node: Record, names: frozenset[str], outer: frozenset[str]) -> None:
    for name in (*node.inputs, *node.outputs):
        if name not in names:
            raise GraphError(f"'{name}' has no ValueInfo", node=node_label(node))
    for name in node.implicit_inputs:
        if name not in names and name not in outer:
            raise GraphError(f"the implicit input '{name}' is not defined", node=node_label(node))
    counts = node.input_arg_counts
    if sum(counts) != len(node.inputs) or min(counts, default=0) < 0:
        raise GraphError(f"input_arg_counts {list(counts)} do not sum up to {len(node.inputs)}", node=node_label(node))


def _check_attribute(attribute: Record, visible: frozenset[str], node: Record) -> None:
    if attribute.type not in PAYLOADS or not attribute.name:
        raise UnsupportedError(
            f"attribute '{attribute.name}' has type {attribute.type}, which cannot be loaded", node=node_label(node)
        )
    field = PAYLOADS[attribute.type]
    if field is not None and getattr(attribute, field) is None:
        raise FormatError(f"attribute '{attribute.name}' has no {field}", node=node_label(node))
    where = f"attribute '{attribute.name}' of {node_label(node)}"
    if field == "g":
        _check_graph(attribute.g, visible, where)
    for tensor in [attribute.t] if field == "t" else attribute.tensors if field == "tensors" else ():
        check_tensor(tensor, where)


# ---------------------------------------------------------------------- tensors


def check_tensor(tensor: Record, where: str) -> None:
    """Check that the payload has the size that follows from element type and dims."""
    what = f"{where}: tensor '{tensor.name or ''}'"
    dtype = DType(tensor.data_type)
    if dtype in (DType.UNDEFINED, DType.COMPLEX64, DType.COMPLEX128):
        raise UnsupportedError(f"{what} has element type {dtype.name.lower()}")
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{what} has a negative dimension: {list(tensor.dims)}")
    is_text = dtype is DType.STRING
    payload, unit, each = (tensor.string_data, "strings", 1) if is_text else (tensor.raw_data, "bytes", dtype.bits // 8)
    needed = math.prod(tensor.dims) * each
    if payload is not None and len(payload) != needed:
        raise GraphError(f"{what} has {len(payload)} {unit} where its shape {list(tensor.dims)} needs {needed}")
    if payload is None and tensor.external_data_offset >= 0:
        raise UnsupportedError(f"{what} keeps its data in another file, as only training checkpoints may")
    if payload is None and not (is_text and needed == 0):
        raise FormatError(f"{what} has no data")


def _check_sparse(sparse: Record, names: frozenset[str], where: str) -> None:
    values, indices = sparse.values, sparse.indices
    what = f"{where}: sparse initializer '{values.name}'"
    if not values.name or values.name not in names:
        raise GraphError(f"{what} has no ValueInfo")
    check_tensor(values, where)
    check_tensor(indices, where)
    if any(d < 0 for d in sparse.dims):
        raise GraphError(f"{what} has a negative dimension: {list(sparse.dims)}")
    if DType(indices.data_type) not in (DType.INT8, DType.INT16, DType.INT32, DType.INT64):
        raise GraphError(f"{what} has indices that are not signed integers")
    _check_indices(sparse, what)


def _check_indices(sparse: Record, what: str) -> None:
    """Check that each value has an index within the shape."""
    values, indices, rank = sparse.values, sparse.indices, len(sparse.dims)
    if indices.dims not in (values.dims, (*values.dims, rank)) or len(values.dims) != 1:
        raise GraphError(f"{what}: {list(indices.dims)} indices do not fit {list(values.dims)} values")
    index = np.frombuffer(indices.raw_data, DType(indices.data_type).numpy)
    bounds = np.array(sparse.dims) if len(indices.dims) == 2 else math.prod(sparse.dims)
    index = index.reshape(indices.dims)
    if not ((index < bounds) & (index >= 0)).all():
        raise GraphError(f"{what} has an index out of range")


# ---------------------------------------------------------------------- edges


def _check_edges(graph: Record, nodes: dict[int, Record], where: str) -> None:
    """Check that each edge joins two existing nodes, and that both of them list it."""
    incoming, outgoing = edge_rows(graph)
    for rows in (incoming, outgoing):
        unknown = {*rows[:, 0].tolist(), *rows[:, 2].tolist()} - nodes.keys()
        if unknown:
            raise GraphError(f"{where}: an edge refers to node {min(unknown)}, which does not exist")
    listed = [edge.node_index for edge in graph.node_edges or ()]
    if len(set(listed)) != len(listed) or not nodes.keys() >= set(listed):
        raise GraphError(f"{where}: a NodeEdge is given twice or for a node that does not exist")
    order: Callable[[Any], Any] = lambda rows: rows[np.lexsort(rows.T)]  # noqa: E731
    if not np.array_equal(order(incoming), order(outgoing)):
        raise GraphError(f"{where}: the input edges and output edges of the nodes contradict each other")


def edge_rows(graph: Record) -> tuple[Any, Any]:
    """Input edges and output edges, as rows of (producer, its slot, consumer, its slot)."""
    return _rows(graph, "input_edges", (1, 2, 0, 3)), _rows(graph, "output_edges", (0, 2, 1, 3))


def _rows(graph: Record, field: str, columns: tuple[int, ...]) -> Any:
    listed = [(edge.node_index, ends) for edge in graph.node_edges or () if (ends := getattr(edge, field))]
    ends = np.frombuffer(b"".join([e for _, e in listed]), "<u4").reshape(-1, 3)
    owner = np.repeat(
        np.array([index for index, _ in listed], np.uint32), np.array([len(e) // 12 for _, e in listed], np.int64)
    )
    return np.column_stack([owner, ends])[:, columns]
