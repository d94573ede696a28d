"""Reads an .ort file into a model. Weights stay in the mapped file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from ortconv.errors import GraphError, located
from ortconv.files import map_file
from ortconv.ir.graph import Attribute, Floats, Graph, Ints, Node, Strings, Tensors, Value
from ortconv.ir.graph_reader import GraphReader
from ortconv.ir.model import Model, SavedFusion
from ortconv.ir.schema import plain_domain
from ortconv.ir.signature import check_signatures
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import Dim, DType, MapType, SequenceType, TensorType, ValueType
from ortconv.ortformat import runtime
from ortconv.ortformat.decode import Record
from ortconv.ortformat.layout import CPU, NO_MODEL_VERSION
from ortconv.ortformat.verify import decode
from ortconv.process import without_collections


def load(path: str | Path) -> Model:
    """Load and verify an .ort file. Raises FormatError, GraphError or UnsupportedError if it is not valid."""
    with located(path), without_collections():
        data = map_file(path)
        model = parse(data)
        model.warnings += check_signatures(model.graph)
    model.path, model.file_bytes = str(path), data.nbytes
    return model


def format_version(path: str | Path) -> str:
    """The format version stated in an .ort file."""
    version: str = decode(map_file(path)).ort_version
    return version


def parse(buffer: Any) -> Model:
    """Parse a buffer into a model whose weights refer to the buffer."""
    return model_of(decode(buffer))


def model_of(root: Record) -> Model:
    """Build the model that a decoded file describes."""
    message = root.model
    graph = Graph()
    graph.doc = message.graph_doc_string or ""
    for entry in message.opset_import:
        graph.opsets[plain_domain(entry.domain)] = entry.version
    saved: list[SavedFusion] = []
    _Reader(graph, {}, saved, overridable=message.ir_version >= 4).fill(message.graph)
    version = message.model_version
    return Model(
        graph,
        ir_version=message.ir_version,
        producer_name=message.producer_name or "",
        producer_version=message.producer_version or "",
        domain=message.domain or "",
        model_version=None if version == NO_MODEL_VERSION else version,
        doc=message.doc_string or "",
        metadata={pair.key: pair.value or "" for pair in message.metadata_props or ()},
        saved=saved,
    )


class _Reader(GraphReader):
    """Fills one graph. Saved fusions are appended to `saved`."""

    def __init__(
        self, graph: Graph, outer: MutableMapping[str, Value], saved: list[SavedFusion], *, overridable: bool
    ) -> None:
        super().__init__(graph, outer)
        self.saved = saved
        self.overridable = overridable
        self.types: dict[str, ValueType] = {}

    def fill(self, record: Record) -> None:
        self.types = _types(record.node_args or ())
        constants = _constants(record)
        for name in record.inputs or ():
            if self.overridable or name not in constants:
                self.declare(self.graph.add_input(self.scoped(name), self.types[name]), name)
        for name, const in constants.items():
            self.add_constant(name, const)
        made = [(self.node(r), r) for r in record.nodes or ()]
        for node, r in made:
            self.connect(node, r)
        self.saved += runtime.read(record, {r.index: node for node, r in made})
        self.set_outputs(record.outputs or ())
        self.graph.sort()

    def connect(self, node: Node, record: Record) -> None:
        self.graph.set_inputs(node, [self.read(name, node) for name in record.inputs])
        for attribute in record.attributes or ():
            node.attrs[attribute.name] = self.attribute(attribute, node)

    # ------------------------------------------------------------------ nodes

    def node(self, record: Record) -> Node:
        domain, types = plain_domain(record.domain or ""), [self.types.get(name) for name in record.outputs]
        doc = record.doc_string or ""
        node = self.add_node(record.op_type, domain, record.name or "", doc, record.outputs, types)
        provider = record.execution_provider_type or ""
        node.ep = "" if provider == CPU else provider
        return node

    def attribute(self, record: Record, node: Node) -> Attribute:
        kind = record.type
        if kind == 5:
            sub = Graph(parent=self.graph)
            sub.owner = node
            reader = _Reader(sub, self.visible, self.saved, overridable=True)
            reader.keep(node, record.g.inputs or (), record.g.outputs or ())
            reader.fill(record.g)
            return sub
        return _ATTRIBUTES[kind](record)


def _constants(record: Record) -> dict[str, Tensor | SparseTensor]:
    found: dict[str, Tensor | SparseTensor] = {t.name: tensor(t) for t in record.initializers or ()}
    return found | {s.values.name: sparse_tensor(s) for s in record.sparse_initializers or ()}


_ATTRIBUTES: dict[int, Callable[[Record], Attribute]] = {
    1: lambda a: a.f,
    2: lambda a: a.i,
    3: lambda a: a.s.decode("utf-8", "surrogateescape"),
    4: lambda a: tensor(a.t),
    6: lambda a: Floats(a.floats),
    7: lambda a: Ints(a.ints),
    8: lambda a: Strings(s.decode("utf-8", "surrogateescape") for s in a.strings),
    9: lambda a: Tensors(map(tensor, a.tensors)),
}
"""The function that builds a value, by AttributeType; subgraphs are handled elsewhere."""


# ---------------------------------------------------------------------- constants and types


def tensor(record: Record) -> Tensor:
    """A constant that refers to its payload in the buffer."""
    dtype = DType(record.data_type)
    if dtype is DType.STRING:
        return Tensor(dtype, record.dims, tuple(record.string_data or ()))
    return Tensor(dtype, record.dims, record.raw_data)


def sparse_tensor(record: Record) -> SparseTensor:
    return SparseTensor(tensor(record.values), tensor(record.indices), record.dims, record.values.name)


def _types(values: Iterable[Record]) -> dict[str, ValueType]:
    """The types of values by name; equal ones share an object."""
    made: dict[int, ValueType] = {}
    types = {}
    for value in values:
        if value.type is not None:
            key = id(value.type)
            if key not in made:
                made[key] = value_type(value.type, value.name)
            types[value.name] = made[key]
    return types


def value_type(record: Record, name: str) -> ValueType:
    """The type in a TypeInfo. Raises GraphError, with the value's name, if it holds none."""
    content = record.value
    if content is None:
        raise GraphError(f"the type of value '{name}' is empty")
    if record.value_type == 2:
        return SequenceType(value_type(content.elem_type, name))
    if record.value_type == 3:
        return MapType(_element(content.key_type, name), value_type(content.value_type, name))
    shape = content.shape
    dims = None if shape is None else tuple(_dim(d.value) for d in shape.dim or ())
    return TensorType(_element(content.elem_type, name), dims)


def _element(number: int, name: str) -> DType:
    if number == 0:
        raise GraphError(f"value '{name}' has no element type")
    return DType(number)


def _dim(record: Record) -> Dim:
    if record is None or record.dim_type == 0:
        return None
    if record.dim_type == 2:
        return record.dim_param or None
    return record.dim_value if record.dim_value >= 0 else None
