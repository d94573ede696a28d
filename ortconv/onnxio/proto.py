"""Writes graphs as ONNX's protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence

from ortconv.ir.graph import (
    Attribute,
    Floats,
    Graph,
    Graphs,
    Node,
    Strings,
    Tensors,
    Types,
    Value,
    captures,
)
from ortconv.ir.model import Model
from ortconv.ir.tensor import SparseTensor, Tensor
from ortconv.ir.types import MapType, OptionalType, SequenceType, Shape, SparseTensorType, TensorType, ValueType
from ortconv.onnxlib import (
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
    proto = ModelProto(
        ir_version=max(model.ir_version, 4),
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        doc_string=model.doc,
    )
    if model.model_version is not None:
        proto.model_version = model.model_version
    for domain, version in model.graph.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    for key, value in model.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    _fill(proto.graph, model.graph)
    return proto


def _fill(proto: GraphProto, graph: Graph) -> None:
    proto.name = graph.name or "graph"
    proto.doc_string = graph.doc
    proto.input.extend(map(value_info, graph.inputs))
    proto.output.extend(map(value_info, graph.outputs))
    for name, value in graph.initializers.items():
        if isinstance(value.const, SparseTensor):
            proto.sparse_initializer.append(_sparse(value.const, name))
        elif value.const is not None:
            proto.initializer.append(tensor_proto(value.const, name))
    for node in graph:
        proto.node.append(node_proto(node))
        proto.value_info.extend(
            value_info(v) for v in node.outputs if v is not None and v.type is not None and not v.is_output
        )


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
    kinds = AttributeProto
    made = AttributeProto(name=name)
    if isinstance(value, Floats):
        made.type, made.floats[:] = kinds.FLOATS, value
    elif isinstance(value, Strings):
        made.type, made.strings[:] = kinds.STRINGS, [_bytes(s) for s in value]
    elif isinstance(value, Tensors):
        made.type = kinds.TENSORS
        made.tensors.extend(tensor_proto(t) for t in value)
    elif isinstance(value, Graphs):
        made.type = kinds.GRAPHS
        for sub in value:
            _fill(made.graphs.add(), sub)
    elif isinstance(value, Types):
        made.type = kinds.TYPE_PROTOS
        made.type_protos.extend(map(type_proto, value))
    elif isinstance(value, tuple):
        made.type, made.ints[:] = kinds.INTS, value
    elif isinstance(value, bool | int):
        made.type, made.i = kinds.INT, int(value)
    elif isinstance(value, float):
        made.type, made.f = kinds.FLOAT, value
    elif isinstance(value, str):
        made.type, made.s = kinds.STRING, _bytes(value)
    elif isinstance(value, Tensor):
        made.type = kinds.TENSOR
        made.t.CopyFrom(tensor_proto(value))
    elif isinstance(value, SparseTensor):
        made.type = kinds.SPARSE_TENSOR
        made.sparse_tensor.CopyFrom(_sparse(value))
    elif isinstance(value, Graph):
        made.type = kinds.GRAPH
        _fill(made.g, value)
    else:
        made.type = kinds.TYPE_PROTO
        made.tp.CopyFrom(type_proto(value))
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
    made = ValueInfoProto(name=value.name)
    if value.type is not None:
        made.type.CopyFrom(type_proto(value.type))
    return made


def type_proto(type: ValueType) -> TypeProto:
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


def region_proto(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], ir_version: int = 8
) -> ModelProto:
    """A model of some nodes of a graph, with the constants that they read."""
    proto = ModelProto(ir_version=ir_version)
    for domain, version in graph.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.graph.name = graph.name or "graph"
    proto.graph.input.extend(map(value_info, inputs))
    proto.graph.output.extend(map(value_info, outputs))
    fed = set(inputs)
    constants: dict[Value, None] = {}
    for node in nodes:
        proto.graph.node.append(node_proto(node))
        for value in (*node.inputs, *captures(node)):
            if value is not None and value.const is not None and value not in fed:
                constants[value] = None
    for value in constants:
        if isinstance(value.const, SparseTensor):
            proto.graph.sparse_initializer.append(_sparse(value.const, value.name))
        elif value.const is not None:
            proto.graph.initializer.append(tensor_proto(value.const, value.name))
    return proto
