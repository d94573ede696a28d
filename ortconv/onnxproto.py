"""The messages of the onnx package. An .ort file runs without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ortconv.onnxlib import load_alone

messages: Any = load_alone("onnx_ml_pb2")

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        OperatorSetIdProto,
        SparseTensorProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )
else:
    AttributeProto = messages.AttributeProto
    FunctionProto = messages.FunctionProto
    GraphProto = messages.GraphProto
    ModelProto = messages.ModelProto
    NodeProto = messages.NodeProto
    OperatorSetIdProto = messages.OperatorSetIdProto
    SparseTensorProto = messages.SparseTensorProto
    TensorProto = messages.TensorProto
    TypeProto = messages.TypeProto
    ValueInfoProto = messages.ValueInfoProto

IR_VERSION: int = messages.IR_VERSION
"""The newest IR version that the package knows."""

__all__ = [
    "IR_VERSION", "AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto", "OperatorSetIdProto",
    "SparseTensorProto", "TensorProto", "TypeProto", "ValueInfoProto",
]  # fmt: skip
