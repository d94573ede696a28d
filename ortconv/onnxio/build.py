"""Builds the graph from ONNX's protobuf messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import numpy as np

from ortconv.errors import FormatError, GraphError, UnsafeInputError, UnsupportedError
from ortconv.ir.graph import Attribute, Floats, Graph, Graphs, Ints, Node, Strings, Tensors, Types, Value, graphs_in
from ortconv.ir.graph_reader import GraphReader
from ortconv.ir.model import Model
from ortconv.ir.schema import plain_domain
from ortconv.ir.symbols import more_exact
from ortconv.ir.tensor import Array, SparseTensor, Tensor
from ortconv.ir.types import DType, MapType, OptionalType, SequenceType, Shape, SparseTensorType, TensorType, ValueType
from ortconv.onnxio.messages import domain_of, label
from ortconv.onnxproto import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

Resolve = Callable[[TensorProto], memoryview]
"""Returns the payload of a tensor with data_location EXTERNAL."""

Symbol = Callable[[str], int | str | None]
"""Maps the name of a symbolic dimension in the message to its name in the graph, or to its size; None for an unknown dimension."""


class PackedNodes:
    """The serialized nodes of a graph, which need a fifth of the memory of their messages. Each iteration parses them again."""

    def __init__(self, nodes: Iterable[NodeProto]) -> None:
        self._nodes = [node.SerializeToString() for node in nodes]

    def __iter__(self) -> Iterator[NodeProto]:
        return map(NodeProto.FromString, self._nodes)


def begin(proto: ModelProto, resolve: Resolve, symbol: Symbol) -> tuple[Model, GraphBuilder]:
    """Build the model that a message describes, without its nodes. The builder adds them, and needs the message no more.

    Functions must be inlined already. Raises GraphError for an invalid graph.
    """
    check_text(proto.producer_name, proto.producer_version, proto.domain, proto.doc_string)
    for entry in proto.metadata_props:
        check_text(entry.key, entry.value)
    graph = Graph(proto.graph.name)
    for entry in proto.opset_import:
        graph.opsets[plain_domain(entry.domain)] = entry.version
    builder = GraphBuilder(graph, {}, resolve, overridable=proto.ir_version >= 4, read_type=TypeReader(symbol))
    builder.start(proto.graph)
    model = Model(
        graph,
        ir_version=proto.ir_version,
        producer_name=proto.producer_name,
        producer_version=proto.producer_version,
        domain=proto.domain,
        model_version=proto.model_version if proto.HasField("model_version") else None,
        doc=proto.doc_string,
        metadata={p.key: p.value for p in proto.metadata_props},
    )
    return model, builder


class GraphBuilder(GraphReader):
    """Fills one graph."""

    def __init__(
        self,
        graph: Graph,
        outer: MutableMapping[str, Value],
        resolve: Resolve,
        *,
        overridable: bool,
        read_type: TypeReader,
    ) -> None:
        super().__init__(graph, outer)
        self.resolve = resolve
        self.overridable = overridable
        self.read_type = read_type
        self.types: dict[str, ValueType] = {}
        """Declared types of the values that are still to be made, by name."""
        self.returned: list[str] = []
        """Names of the graph's outputs."""

    def fill(self, proto: GraphProto) -> None:
        """Read the whole graph."""
        self.start(proto)
        self.finish(proto.node)

    def start(self, proto: GraphProto) -> None:
        """Read inputs, constants and types, and the names of the outputs."""
        check_text(proto.name, proto.doc_string)
        self.graph.doc = proto.doc_string
        constants = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
        for info in proto.input:
            if self.overridable or info.name not in constants:
                self.declare(self.graph.add_input(self.scoped(info.name), self.read_type(info.type)), info.name)
        for tensor in proto.initializer:
            self.add_constant(tensor.name, self.tensor(tensor))
        for sparse in proto.sparse_initializer:
            self.add_constant(sparse.values.name, self.sparse(sparse))
        self.types = self._declared(proto)
        self.returned = [info.name for info in proto.output]

    def finish(self, nodes: Iterable[NodeProto]) -> None:
        """Add the nodes, and set the outputs."""
        made = [None if self._lift_constant(message) else self._node(message) for message in nodes]
        for node, message in zip(made, nodes, strict=True):
            if node is not None:
                self._connect(node, message)
        self.set_outputs(self.returned)
        self.graph.sort()

    def _declared(self, proto: GraphProto) -> dict[str, ValueType]:
        """The declared types of values other than inputs, by name."""
        found = {v.name: t for v in proto.value_info if (t := self.read_type(v.type)) is not None}
        for name, type in {v.name: self.read_type(v.type) for v in proto.output}.items():
            if type is not None and (name not in found or type != found[name]):
                found[name] = merge(found.get(name), type) or type
        return found

    def scoped(self, name: str) -> str:
        check_text(name)
        return super().scoped(name)

    # ------------------------------------------------------------------ nodes

    def _node(self, message: NodeProto) -> Node:
        op, domain, title = message.op_type, message.domain, message.name
        doc, names = message.doc_string, list(message.output)
        check_text(op, domain, title, doc, *names)
        types = [self.types.pop(name, None) for name in names]
        return self.add_node(sys.intern(op), sys.intern(plain_domain(domain)), title, doc, names, types)

    def _connect(self, node: Node, message: NodeProto) -> None:
        own, inputs = self.own, list(message.input)
        try:
            self.graph.set_inputs(node, [own[name] if name else None for name in inputs])
        except KeyError:
            self.graph.set_inputs(node, [self.read(name, node) for name in inputs])
        for attribute in message.attribute:
            title = attribute.name
            check_text(title)
            if title in node.attrs:
                raise GraphError(f"attribute '{title}' is given twice", node=node.label)
            value = self._attribute(attribute, node)
            node.attrs[sys.intern(title)] = value
            for sub in graphs_in(value):
                sub.owner = node

    def _lift_constant(self, message: NodeProto) -> bool:
        """Turn a Constant node into an initializer with the name of its output. A second one of this name replaces the first."""
        if message.op_type != "Constant" or domain_of(message) != "":
            return False
        if len(message.attribute) != 1 or len(message.output) != 1 or not message.output[0]:
            raise GraphError(
                f"{len(message.attribute)} attributes and {len(message.output)} outputs, expected one of each",
                node=label(message),
            )
        attribute, output = message.attribute[0], message.output[0]
        kind, read = _CONSTANTS.get(attribute.name, (None, None))
        if read is None or attribute.type not in (AttributeProto.UNDEFINED, kind):
            return False
        const = read(self, attribute)
        known = self.own.get(output)
        if known is not None and (known.is_input or known.producer is not None):
            raise GraphError(f"'{output}' is defined twice", node=label(message))
        self.add_constant(output, const)
        return True

    def _attribute(self, message: AttributeProto, node: Node) -> Attribute:
        read = _ATTRIBUTES.get(message.type)
        value = None if read is None else read(self, message, node)
        if value is not None:
            return value
        kinds = AttributeProto.AttributeType
        name = kinds.Name(message.type) if message.type in kinds.values() else message.type
        raise UnsupportedError(f"attribute '{message.name}' has type {name}", node=node.label)

    def _subgraph(self, proto: GraphProto, node: Node) -> Graph:
        sub = Graph(proto.name, parent=self.graph)
        builder = GraphBuilder(sub, self.visible, self.resolve, overridable=True, read_type=self.read_type)
        builder.keep(node, (value.name for value in (*proto.input, *proto.output)))
        builder.fill(proto)
        return sub

    # ------------------------------------------------------------------ constants

    def tensor(self, proto: TensorProto) -> Tensor:
        return tensor(proto, self.resolve)

    def sparse(self, proto: Any) -> SparseTensor:
        return SparseTensor(self.tensor(proto.values), self.tensor(proto.indices), proto.dims, proto.values.name)


_CONSTANTS: dict[str, tuple[int, Callable[[GraphBuilder, AttributeProto], Tensor | SparseTensor]]] = {
    "value": (AttributeProto.TENSOR, lambda b, a: b.tensor(a.t)),
    "sparse_value": (AttributeProto.SPARSE_TENSOR, lambda b, a: b.sparse(a.sparse_tensor)),
    "value_int": (AttributeProto.INT, lambda b, a: Tensor.of(a.i, DType.INT64)),
    "value_ints": (AttributeProto.INTS, lambda b, a: Tensor.of(list(a.ints), DType.INT64)),
    "value_float": (AttributeProto.FLOAT, lambda b, a: Tensor.of(a.f, DType.FLOAT)),
    "value_floats": (AttributeProto.FLOATS, lambda b, a: Tensor.of(list(a.floats), DType.FLOAT)),
    "value_string": (AttributeProto.STRING, lambda b, a: Tensor(DType.STRING, (), (a.s,))),
    "value_strings": (AttributeProto.STRINGS, lambda b, a: Tensor(DType.STRING, (len(a.strings),), tuple(a.strings))),
}
"""The attributes of a Constant node: type, and the function that reads the constant."""

_ATTRIBUTES: dict[int, Callable[[GraphBuilder, AttributeProto, Node], Attribute | None]] = {
    AttributeProto.INT: lambda b, a, node: int(a.i),
    AttributeProto.INTS: lambda b, a, node: Ints(a.ints),
    AttributeProto.FLOAT: lambda b, a, node: float(a.f),
    AttributeProto.FLOATS: lambda b, a, node: Floats(a.floats),
    AttributeProto.STRING: lambda b, a, node: _text(a.s),
    AttributeProto.STRINGS: lambda b, a, node: Strings(map(_text, a.strings)),
    AttributeProto.TENSOR: lambda b, a, node: b.tensor(a.t),
    AttributeProto.TENSORS: lambda b, a, node: Tensors(map(b.tensor, a.tensors)),
    AttributeProto.SPARSE_TENSOR: lambda b, a, node: b.sparse(a.sparse_tensor),
    AttributeProto.GRAPH: lambda b, a, node: b._subgraph(a.g, node),
    AttributeProto.GRAPHS: lambda b, a, node: Graphs(b._subgraph(graph, node) for graph in a.graphs),
    AttributeProto.TYPE_PROTO: lambda b, a, node: b.read_type(a.tp),
    AttributeProto.TYPE_PROTOS: lambda b, a, node: Types(t for t in map(b.read_type, a.type_protos) if t is not None),
}
"""The functions that read attributes, by type. They return None for an empty type."""


def _text(data: bytes) -> str:
    return str(data, "utf-8", "surrogateescape")


def check_text(*strings: str) -> None:
    """Raise FormatError unless all strings are str: protobuf returns bytes for text that is not UTF-8."""
    try:
        "".join(strings)
    except TypeError:
        broken = next(s for s in strings if not isinstance(s, str))
        raise FormatError(f"the text {broken!r} is not UTF-8") from None


def tensor(proto: TensorProto, resolve: Resolve) -> Tensor:
    """Build a constant. `resolve` returns a payload outside the message. Raises GraphError if the payload has the wrong size."""
    dtype, shape = _form(proto)
    if dtype is DType.STRING:
        made = Tensor(dtype, shape, tuple(proto.string_data))
        if len(proto.string_data) != made.size:
            raise GraphError(f"tensor '{proto.name}': {len(proto.string_data)} strings for shape {list(shape)}")
        return made
    if proto.data_location == TensorProto.EXTERNAL:
        data = resolve(proto)
    elif proto.HasField("raw_data"):
        data = memoryview(proto.raw_data)
    else:
        return _typed(proto, dtype, shape)
    made = Tensor(dtype, shape, data)
    needed = (made.size * dtype.bits + 7) // 8
    if data.nbytes != needed:
        raise GraphError(
            f"tensor '{proto.name}': {data.nbytes} bytes for {dtype.name.lower()}{list(shape)}, which needs {needed}"
        )
    return made


def array(proto: TensorProto) -> Any:
    """The elements of a constant. Raises UnsafeInputError if another file holds them, GraphError if they have the wrong size."""
    return tensor(proto, _refuse).numpy()


def _refuse(proto: TensorProto) -> memoryview:
    raise UnsafeInputError("keeps its elements in another file", hint="write the tensor with its data inside")


def _form(proto: TensorProto) -> tuple[DType, tuple[int, ...]]:
    """The element type and shape of a constant. Raises an error if ONNX does not allow them."""
    try:
        dtype = DType(proto.data_type)
    except ValueError:
        raise UnsupportedError(
            f"tensor '{proto.name}' has element type {proto.data_type}, which ONNX does not define"
        ) from None
    shape = tuple(proto.dims)
    if dtype is DType.UNDEFINED:
        raise GraphError(f"tensor '{proto.name}' has no element type")
    if shape and min(shape) < 0:
        raise GraphError(f"tensor '{proto.name}' has a negative dimension: {list(shape)}")
    if proto.HasField("segment"):
        raise UnsupportedError(f"tensor '{proto.name}' is stored in segments")
    return dtype, shape


_TYPED_FIELDS = {
    DType.FLOAT: "float_data", DType.DOUBLE: "double_data", DType.INT64: "int64_data", DType.UINT64: "uint64_data",
    DType.UINT32: "uint64_data", DType.INT32: "int32_data", DType.INT16: "int32_data", DType.UINT16: "int32_data",
    DType.INT8: "int32_data", DType.UINT8: "int32_data", DType.BOOL: "int32_data",
}  # fmt: skip


FEW = 32
"""Numbers of a message up to which numpy takes less time for a list of them."""


def _typed_array(proto: TensorProto, dtype: DType) -> Array:
    field = _TYPED_FIELDS.get(dtype)
    if field is not None:
        values = getattr(proto, field)
        return np.array(values[:] if len(values) < FEW else values, dtype=dtype.numpy)
    from onnx.numpy_helper import to_array

    return np.asarray(to_array(proto))


def _typed(proto: TensorProto, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    size = Tensor(dtype, shape, memoryview(b"")).size
    if size == 0:
        return Tensor(dtype, shape, memoryview(b""))
    try:
        return Tensor.of(_typed_array(proto, dtype).reshape(shape), dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphError(
            f"tensor '{proto.name}': its data does not fit {dtype.name.lower()}{list(shape)} ({error})"
        ) from error


# ---------------------------------------------------------------------- types


class TypeReader:
    """Reads types from messages; equal types share one object. `symbol` renames symbolic dimensions."""

    def __init__(self, symbol: Symbol = str) -> None:
        self.symbol = symbol
        self._known: dict[bytes, ValueType | None] = {}

    def __call__(self, proto: TypeProto) -> ValueType | None:
        """The type in a message, None for an empty message. Raises UnsupportedError for an unknown element type."""
        key = proto.SerializeToString()
        try:
            return self._known[key]
        except KeyError:
            return self._known.setdefault(key, self._read(proto))

    def _read(self, proto: TypeProto) -> ValueType | None:
        kind = proto.WhichOneof("value")
        if kind == "tensor_type":
            dense = proto.tensor_type
            return None if dense.elem_type == 0 else TensorType(_element(dense.elem_type), self._shape(dense))
        if kind == "sequence_type":
            element = self._read(proto.sequence_type.elem_type)
            return None if element is None else SequenceType(element)
        if kind == "optional_type":
            element = self._read(proto.optional_type.elem_type)
            return None if element is None else OptionalType(element)
        if kind == "map_type":
            value = self._read(proto.map_type.value_type)
            return None if value is None else MapType(_element(proto.map_type.key_type), value)
        if kind == "sparse_tensor_type":
            sparse = proto.sparse_tensor_type
            return SparseTensorType(_element(sparse.elem_type), self._shape(sparse))
        return None

    def _shape(self, proto: Any) -> Shape | None:
        return tuple(map(self._dim, proto.shape.dim)) if proto.HasField("shape") else None

    def _dim(self, dim: Any) -> int | str | None:
        kind = dim.WhichOneof("value")
        if kind == "dim_value":
            value: int = dim.dim_value
            return value if value >= 0 else None
        if kind != "dim_param" or not dim.dim_param:
            return None
        check_text(dim.dim_param)
        return self.symbol(dim.dim_param)


value_type = TypeReader()._read
"""The type in a message, None for an empty message. Raises UnsupportedError for an unknown element type."""


def _element(number: int) -> DType:
    try:
        return DType(number)
    except ValueError:
        raise UnsupportedError(f"element type {number} is not defined by ONNX") from None


def merge(a: ValueType | None, b: ValueType | None) -> ValueType | None:
    """Combine the knowledge in both types. If they disagree on a dimension, the first one is used."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
        return a or b
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return a if a.shape is not None else b
    return TensorType(a.dtype, tuple(map(more_exact, a.shape, b.shape)))
