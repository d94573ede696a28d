"""Reading .onnx files."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto
from onnx.inliner import inline_local_functions

from ortconv.errors import OrtconvError
from ortconv.ir.model import Model
from ortconv.onnxio.build import build
from ortconv.onnxio.infer import infer_missing, infer_model


def load(path: str | Path) -> Model:
    """The model of an .onnx file, checked, its functions inlined, types and shapes inferred, weights left in the mapped file."""
    try:
        return from_proto(ModelProto.FromString(Path(path).read_bytes()))
    except OrtconvError as error:
        raise error.at(file=path) from error


def from_proto(proto: ModelProto) -> Model:
    """The model of a message that holds its weights itself."""

    def resolve(tensor: TensorProto) -> memoryview:
        raise NotImplementedError

    if proto.functions:
        proto = inline_local_functions(proto)
    model = build(infer_model(proto), resolve)
    infer_missing(model.graph)
    return model
