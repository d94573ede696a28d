"""Writes graphs as ONNX's protobuf messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ortconv.ir.graph import Attribute, Floats, Graph, Graphs, Node, Strings, Tensors, Types, Value
from ortconv.ir.model import Model
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import MapType, OptionalType, SequenceType, Shape, SparseTensorType, TensorType, ValueType
from ortconv.onnxproto import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)


def model_proto(model: Model) -> ModelProto:
    """The whole model as one message, weights included."""
    proto = empty_model(model.graph, max(model.ir_version, 4))
    proto.producer_name, proto.producer_version = model.producer_name, model.producer_version
    proto.domain, proto.doc_string = model.domain, model.doc
    if model.model_version is not None:
        proto.model_version = model.model_version
    for key, value in model.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    _fill(proto.graph, model.graph)
    return proto


def _fill(proto: GraphProto, graph: Graph) -> None:
    proto.name = graph.name or "graph"
    proto.doc_string = graph.doc
    proto.input.extend(map(value_info, graph.inputs))
    proto.output.extend(map(value_info, graph.outputs))
    _add_constants(proto, graph.initializers.values())
    for node in graph:
        proto.node.append(node_proto(node))
        proto.value_info.extend(value_info(v) for v in node.present_outputs if v.type is not None and not v.is_output)


def node_proto(node: Node) -> NodeProto:
    """One node with its subgraphs."""
    proto = NodeProto(
        op_type=node.op,
        domain=node.domain,
        name=node.name,
        doc_string=node.doc,
        input=["" if v is None else v.name for v in node.inputs],
        output=["" if v is None else v.name for v in node.outputs],
    )
    for name, value in node.attrs.items():
        proto.attribute.append(attribute_proto(name, value))
    return proto


def attribute_proto(name: str, value: Attribute) -> AttributeProto:
    forms = (_ATTRIBUTES[kind] for kind in type(value).__mro__ if kind in _ATTRIBUTES)
    kind, field, convert = next(forms, (AttributeProto.TYPE_PROTO, "tp", type_proto))
    return AttributeProto(name=name, type=kind, **{field: convert(value)})  # type: ignore[arg-type]


def _graph(graph: Graph) -> GraphProto:
    made = GraphProto()
    _fill(made, graph)
    return made


def tensor_proto(tensor: Tensor, name: str = "") -> TensorProto:
    made = TensorProto(name=name, data_type=int(tensor.dtype), dims=tensor.shape)
    if isinstance(tensor.data, tuple):
        made.string_data.extend(tensor.data)
    else:
        made.raw_data = bytes(tensor.data)
    return made


def _sparse(sparse: SparseTensor, name: str = "") -> SparseTensorProto:
    return SparseTensorProto(
        values=tensor_proto(sparse.values, name), indices=tensor_proto(sparse.indices), dims=sparse.shape
    )


def value_info(value: Value) -> ValueInfoProto:
    """The name and type of a value; without a type if it is unknown."""
    made = ValueInfoProto(name=value.name)
    if value.type is not None:
        made.type.CopyFrom(type_proto(value.type))
    return made


def type_proto(type: ValueType) -> TypeProto:
    """ONNX's message of a type."""
    made = TypeProto()
    if isinstance(type, TensorType):
        made.tensor_type.elem_type = int(type.dtype)
        _set_shape(made.tensor_type, type.shape)
    elif isinstance(type, SparseTensorType):
        made.sparse_tensor_type.elem_type = int(type.dtype)
        _set_shape(made.sparse_tensor_type, type.shape)
    elif isinstance(type, SequenceType):
        made.sequence_type.elem_type.CopyFrom(type_proto(type.element))
    elif isinstance(type, OptionalType):
        made.optional_type.elem_type.CopyFrom(type_proto(type.element))
    elif isinstance(type, MapType):
        made.map_type.key_type = int(type.key)
        made.map_type.value_type.CopyFrom(type_proto(type.value))
    return made


def _set_shape(proto: TypeProto.Tensor | TypeProto.SparseTensor, shape: Shape | None) -> None:
    if shape is None:
        return
    proto.shape.SetInParent()
    for dim in shape:
        if isinstance(dim, int):
            proto.shape.dim.add(dim_value=dim)
        elif dim is None:
            proto.shape.dim.add()
        else:
            proto.shape.dim.add(dim_param=dim)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


_ATTRIBUTES: dict[type, tuple[int, str, Callable[[Any], object]]] = {
    int: (AttributeProto.INT, "i", int),
    float: (AttributeProto.FLOAT, "f", float),
    str: (AttributeProto.STRING, "s", _bytes),
    Tensor: (AttributeProto.TENSOR, "t", tensor_proto),
    SparseTensor: (AttributeProto.SPARSE_TENSOR, "sparse_tensor", _sparse),
    Graph: (AttributeProto.GRAPH, "g", _graph),
    tuple: (AttributeProto.INTS, "ints", list),
    Floats: (AttributeProto.FLOATS, "floats", list),
    Strings: (AttributeProto.STRINGS, "strings", lambda texts: list(map(_bytes, texts))),
    Tensors: (AttributeProto.TENSORS, "tensors", lambda tensors: list(map(tensor_proto, tensors))),
    Graphs: (AttributeProto.GRAPHS, "graphs", lambda graphs: list(map(_graph, graphs))),
    Types: (AttributeProto.TYPE_PROTOS, "type_protos", lambda types: list(map(type_proto, types))),
}
"""By the type of an attribute's value: ONNX's type, the field of the message, and its conversion. All others are types."""


def empty_model(graph: Graph, ir_version: int) -> ModelProto:
    """A model without content that imports the operator sets of a graph."""
    proto = ModelProto(ir_version=ir_version)
    for domain, version in graph.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    return proto


def region_proto(graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> ModelProto:
    """A model of some nodes of a graph, with the constants that they read."""
    proto = empty_model(graph, 8)
    proto.graph.name = graph.name or "graph"
    proto.graph.input.extend(map(value_info, inputs))
    proto.graph.output.extend(map(value_info, outputs))
    proto.graph.node.extend(map(node_proto, nodes))
    fed = set(inputs)
    read = dict.fromkeys(value for node in nodes for value in node.reads)
    _add_constants(proto.graph, (value for value in read if value is not None and value not in fed))
    return proto


def _add_constants(proto: GraphProto, values: Iterable[Value]) -> None:
    """Add the values that are constants."""
    for value in values:
        if isinstance(value.const, SparseTensor):
            proto.sparse_initializer.append(_sparse(value.const, value.name))
        elif value.const is not None:
            proto.initializer.append(tensor_proto(value.const, value.name))
