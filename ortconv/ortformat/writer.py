"""Writes a model as an .ort file."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ortconv.errors import GraphError, OrtconvError, UnsupportedError, not_written
from ortconv.files import created, drop_pages, replacing
from ortconv.ir.graph import Attribute, Floats, Graph, Graphs, Node, Strings, Tensors, Types, Value
from ortconv.ir.kernels import later_attributes
from ortconv.ir.model import Model
from ortconv.ir.schema import Schema, schema_of, schema_of_id, type_arguments
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import MapType, OptionalType, SequenceType, SparseTensorType, TensorType
from ortconv.ortformat import runtime
from ortconv.ortformat.derived import GraphEdges, argument_counts, edges, resolved_schema
from ortconv.ortformat.emit import Segment
from ortconv.ortformat.layout import ALWAYS_IMPORTED, CPU, LARGEST_NESTING, LARGEST_VISITS, NO_MODEL_VERSION
from ortconv.ortformat.values import ValueWriter

PIECE = 1 << 20
"""Bytes of a large payload that are written at once."""


def save(model: Model, path: str | Path) -> None:
    """Write a model as an .ort file, whole or not at all. Raises UsageError if the path cannot be written."""
    with replacing(Path(path)) as draft:
        write(model, draft)


def write(model: Model, path: Path) -> None:
    """Write a model to a draft file."""
    try:
        segments = serialize(model)
        with created(path) as file:
            for segment in segments:
                _stream(segment, file)
    except OSError as error:
        raise not_written(error, path) from error
    except OrtconvError as error:
        error.at(file=model.path or None)
        raise


def _stream(segment: Segment, file: BinaryIO) -> None:
    """Write a segment piece by piece. Pages of a mapped file are released once they have been written."""
    view = memoryview(segment)
    for start in range(0, len(view), PIECE):
        file.write(view[start : start + PIECE])
        if len(view) > PIECE:
            drop_pages(view)


def serialize(model: Model) -> list[Segment]:
    """The bytes of an .ort file as segments in order; large payloads are the memoryviews of their tensors.

    Raises UnsupportedError for features that the format lacks, and GraphError for an invalid model.
    """
    writer = _Writer(model, shapes=True)
    root = writer.root()
    if writer.visits > LARGEST_VISITS:
        writer = _Writer(model, shapes=False)
        root = writer.root()
    if writer.visits > LARGEST_VISITS:
        raise UnsupportedError(
            f"the model needs {writer.visits} tables, and onnxruntime loads at most {LARGEST_VISITS}",
            hint="split the model",
        )
    return writer.segments(root)


class _Operator(NamedTuple):
    """Data shared by all nodes of one operator."""

    schema: Schema
    domain: int
    op: int
    defaults: dict[str, tuple[int, int]]
    unstated: Mapping[str, int]
    """Attributes that are omitted if they have their default: releases refuse unknown attributes, and newer releases accept older
    files without them.
    """
    most_inputs: int
    """The maximum number of inputs by the schema; for an unknown operator, the largest number seen so far."""


class _Writer(ValueWriter):
    """Writes one model, with or without the `shapes` of inner values."""

    def __init__(self, model: Model, *, shapes: bool) -> None:
        super().__init__()
        self.model = model
        self.shapes = shapes
        self.operators: dict[tuple[str, str], _Operator] = {}
        self.saved = runtime.by_graph(model.saved)
        self.empty = self.out.references(())
        self.no_text = self.out.string("")
        out = self.out
        self.node_shape = out.shape(
            "Node", "name", "doc_string", "domain", "since_version", "index", "op_type", "execution_provider_type",
            "inputs", "outputs", "attributes", "input_arg_counts", "implicit_inputs")  # fmt: skip
        self.value_shape = out.shape("ValueInfo", "name", "type")
        self.edge_shape = out.shape("NodeEdge", "node_index", "input_edges", "output_edges")

    # ------------------------------------------------------------------ the model

    def root(self) -> int:
        """Write the metadata and return its root table."""
        out, model = self.out, self.model
        graph = self.graph(model.graph, 0)
        resolver = self.kernel_types()
        domains = ALWAYS_IMPORTED | {op.schema.domain: 1 for op in self.operators.values()} | model.graph.opsets
        id_shape = out.shape("OperatorSetId", "domain", "version")
        pair_shape = out.shape("StringStringEntry", "key", "value")
        opsets = [out.table(id_shape, self.text(domain), version) for domain, version in sorted(domains.items())]
        metadata = [out.table(pair_shape, self.text(k), self.text(v)) for k, v in sorted(model.metadata.items())]
        self.visits += 2 + len(opsets) + len(metadata)
        version = NO_MODEL_VERSION if model.model_version is None else model.model_version
        fields = {
            "ir_version": model.ir_version,
            "opset_import": out.references(opsets),
            "producer_name": self.optional_text(model.producer_name),
            "producer_version": self.optional_text(model.producer_version),
            "domain": self.text(model.domain),
            "model_version": version,
            "doc_string": self.optional_text(model.doc),
            "graph": graph,
            "graph_doc_string": self.optional_text(model.graph.doc),
            "metadata_props": out.references(metadata) if metadata else None,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        return out.table(
            out.shape("InferenceSession", "ort_version", "model", "kernel_type_str_resolver"),
            out.string("6" if self.float8 else "5"),
            out.table(out.shape("Model", *present), *present.values()),
            resolver,
        )

    def segments(self, root: int) -> list[Segment]:
        """The finished file. Nothing may be written afterward."""
        head = self.out.finish(root)
        self.check_size(head.nbytes + self.payloads.nbytes)
        return [head, *self.payloads.segments]

    def kernel_types(self) -> int:
        """Write, for every operator of the model, the inputs and outputs that the type strings of its kernels refer to."""
        out = self.out
        argument = out.shape("ArgTypeAndIndex", "arg_type", "index")
        entry = out.shape("KernelTypeStrArgsEntry", "kernel_type_str", "args")
        schemas = {op.schema.id: op.schema for op in self.operators.values()}
        for op_id in {op_id for fusions in self.saved.values() for fusion in fusions for op_id in fusion.produced}:
            found = schema_of_id(op_id)
            if found is not None:
                schemas.setdefault(op_id, found)
        tables = []
        for op_id in sorted(schemas, key=str.encode):
            entries = []
            for key, places in type_arguments(schemas[op_id]).items():
                args = out.pooled_references(tuple(out.pooled(argument, *place) for place in places))
                entries.append(out.pooled(entry, self.text(key), args))
                self.visits += 1 + len(places)
            row = out.shape("OpIdKernelTypeStrArgsEntry", "op_id", "kernel_type_str_args")
            tables.append(out.table(row, self.text(op_id), out.pooled_references(tuple(entries))))
        self.visits += 1 + len(tables)
        return out.table(out.shape("KernelTypeStrResolver", "op_kernel_type_str_args"), out.references(tables))

    # ------------------------------------------------------------------ graphs

    def graph(self, graph: Graph, nesting: int) -> int:
        if nesting > LARGEST_NESTING:
            raise UnsupportedError(
                f"subgraphs are nested more than {LARGEST_NESTING} deep, which onnxruntime refuses to load",
                node=None if graph.owner is None else graph.owner.label,
            )
        out = self.out
        order = {node: i for i, node in enumerate(graph)}
        found = edges(graph, order)
        nodes = array("q", [self.node(node, i, found, nesting) for node, i in order.items()])
        dense, sparse = [], []
        for value in _constants(graph):
            self.where = f"initializer '{value.name}'"
            if isinstance(value.const, SparseTensor):
                sparse.append(self.sparse_tensor(value.const, value.name))
            elif value.const is not None:
                dense.append(self.tensor(value.const, value.name))
        values = self.values(graph)
        ends = self.edge_tables(found, len(order))
        self.visits += 1 + len(dense)
        fields = {
            "initializers": out.references(dense),
            "node_args": values,
            "nodes": out.references(nodes),
            "max_node_index": len(order),
            "node_edges": ends,
            "inputs": self.names(graph.inputs),
            "outputs": self.names(graph.outputs),
            "sparse_initializers": out.references(sparse),
        }
        if graph in self.saved:
            fields["runtime_optimizations"], below = runtime.emit(out, self.saved[graph], order)
            self.visits += below
        return out.table(out.shape("Graph", *fields), *fields.values())

    def values(self, graph: Graph) -> int:
        """Write the types of all values that the graph's inputs, constants and nodes refer to."""
        out, shape = self.out, self.value_shape
        rows = array("q")
        reads = dict.fromkeys(chain.from_iterable(node.inputs for node in graph))
        outer = ((value, False) for value in reads if value is not None and value.graph is not graph)
        for value, is_kept in chain(_own_values(graph), outer):
            type, below = self.value_type(value, keep_shape=self.shapes or is_kept)
            rows.append(out.table(shape, self.text(value.name), type))
            self.visits += 1 + below
        if None in reads or any(None in node.outputs for node in graph):
            rows.append(out.table(out.shape("ValueInfo", "name"), self.no_text))
            self.visits += 1
        return out.references(rows)

    def edge_tables(self, found: GraphEdges, count: int) -> int:
        """Write one table per node with its edges. An edge is a struct of the other node, the producer's slot and the consumer's
        slot.
        """
        out, shape, words = self.out, self.edge_shape, self.out.words
        incoming, outgoing = array("I"), array("I")
        incoming.frombytes(found.incoming[::-1, [3, 1, 0]].tobytes())
        outgoing.frombytes(found.outgoing[::-1, [3, 1, 2]].tobytes())
        starts_in, starts_out, last = found.starts_in, found.starts_out, len(found.incoming)
        tables = array("q")
        for i in range(count):
            ends = []
            for flat, lo, hi in (
                (incoming, starts_in[i], starts_in[i + 1]), (outgoing, starts_out[i], starts_out[i + 1])
            ):  # fmt: skip
                if lo == hi:
                    ends.append(self.empty)
                    continue
                words.extend(flat[3 * (last - hi) : 3 * (last - lo)])
                words.append(hi - lo)
                ends.append(len(words) - 1)
            tables.append(out.table(shape, i, *ends))
        self.visits += count
        return out.references(tables)

    # ------------------------------------------------------------------ nodes

    def node(self, node: Node, index: int, found: GraphEdges, nesting: int) -> int:
        out = self.out
        operator = self.operators.get((node.domain, node.op))
        if operator is None or len(node.inputs) > operator.most_inputs:
            operator = self.operator(node)
        schema = operator.schema
        attributes = dict(operator.defaults)
        for name, value in sorted(node.attrs.items()):
            if name not in operator.unstated or value != schema.defaults.get(name):
                attributes[name] = self.attribute(name, value, node, nesting)
        rows = tuple([attributes[name][0] for name in sorted(attributes)])
        self.visits += 1 + sum([below for _, below in attributes.values()])
        implicit = found.implicit.get(node)
        return out.table(
            self.node_shape,
            self.text(node.name),
            self.text(node.doc),
            operator.domain,
            schema.since,
            index,
            operator.op,
            out.string(node.ep or CPU),
            self.names(node.inputs),
            self.names(node.outputs),
            out.pooled_references(rows),
            out.scalars("i", argument_counts(schema, len(node.inputs))),
            out.references([self.text(name) for name in implicit]) if implicit else self.empty,
        )

    def operator(self, node: Node) -> _Operator:
        schema = resolved_schema(node)
        later = later_attributes(schema)
        defaults = {k: self.attribute(k, value, node, 0) for k, value in schema.defaults.items() if k not in later}
        most = len(schema.inputs) if schema_of(node) is None else sys.maxsize
        made = _Operator(schema, self.text(node.domain), self.text(node.op), defaults, later, most)
        self.operators[node.domain, node.op] = made
        return made

    def attribute(self, name: str, value: Attribute, node: Node, nesting: int) -> tuple[int, int]:
        out = self.out
        text = self.text(name)
        if isinstance(value, (Graph, Tensor)):
            self.where = node.label
            shape = out.shape("Attribute", "name", "type", "g" if isinstance(value, Graph) else "t")
            if isinstance(value, Graph):
                return out.table(shape, text, 5, self.graph(value, nesting + 1)), 1
            return out.table(shape, text, 4, self.tensor(value)), 2
        if isinstance(value, Tensors):
            self.where = node.label
            tensors = out.references([self.tensor(tensor) for tensor in value])
            return out.table(out.shape("Attribute", "name", "type", "tensors"), text, 9, tensors), 1 + len(value)
        field, kind, payload = self.plain_attribute(name, value, node)
        return out.pooled(out.shape("Attribute", "name", "type", field), text, kind, payload), 1

    def plain_attribute(self, name: str, value: Attribute, node: Node) -> tuple[str, int, int]:
        """(field, AttributeType, content) of an attribute that needs no tables."""
        out = self.out
        try:
            if isinstance(value, float):
                return "f", 1, int.from_bytes(_float_bytes(value), "little")
            if isinstance(value, int):
                return "i", 2, int(value)
            if isinstance(value, str):
                return "s", 3, out.string(value)
            if isinstance(value, Floats):
                return "floats", 6, out.vector(b"".join(map(_float_bytes, value)), len(value))
            if isinstance(value, Strings):
                return "strings", 8, out.pooled_references(tuple([out.string(item) for item in value]))
            if isinstance(value, tuple) and not isinstance(value, (Tensors, Graphs, Types)):
                return "ints", 7, out.scalars("q", value)  # type: ignore[arg-type]
        except struct.error:
            raise GraphError(f"attribute '{name}' has a number beyond 64 bits", node=node.label) from None
        what = next((text for kind, text in _REFUSED_ATTRIBUTES if isinstance(value, kind)), type(value).__name__)
        raise UnsupportedError(
            f"attribute '{name}' is {what}, which the ORT format cannot hold",
            node=node.label,
            hint="only the .onnx form of this model can be run",
        )

    def names(self, values: Sequence[Value | None]) -> int:
        if not values:
            return self.empty
        string = self.out.string
        return self.out.references([self.no_text if v is None else string(v.name) for v in values])


_REFUSED_ATTRIBUTES = (
    (Graphs, "a list of graphs"), (Types, "a list of types"), (SparseTensor, "a sparse tensor"),
    ((TensorType, SparseTensorType, SequenceType, OptionalType, MapType), "a type"),
)  # fmt: skip


def _constants(graph: Graph) -> list[Value]:
    """Dense constants before sparse ones: the order in which they are read back."""
    return sorted(graph.initializers.values(), key=lambda value: isinstance(value.const, SparseTensor))


def _own_values(graph: Graph) -> Iterator[tuple[Value, bool]]:
    """The values of a graph itself, each with True if its shape must be kept, False if it is only a size hint."""
    for value in graph.inputs:
        yield value, True
    for value in _constants(graph):
        if not value.is_input:
            yield value, True
    for node in graph:
        for output in node.outputs:
            if output is not None:
                yield output, output.is_output


def _float_bytes(value: float) -> bytes:
    """A number as float32 bytes; a number beyond its range becomes infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
