"""Custom operators from a shared library: only onnxruntime can infer the types of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ortconv.backends.onnxruntime_cpu import runtime, session_options
from ortconv.ir.graph import Graph, Node
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.onnxio.infer import infer_missing
from ortconv.onnxio.proto import region_proto


def infer_types(graph: Graph, library: Path) -> None:
    """Set the types of the library's results, and all that follow from them. UsageError if onnxruntime cannot use the library."""
    options = session_options(library, 1, {})
    infer_missing(graph, lambda node: _output_types(node, options))


def _output_types(node: Node, options: Any) -> list[ValueType | None]:
    """The types that onnxruntime infers for a model of this node alone; empty if it refuses the node."""
    reads = list(dict.fromkeys(node.present_inputs))
    proto = region_proto(node.parent, [node], reads, node.present_outputs)
    for info in proto.graph.output:
        info.ClearField("type")
    try:
        session = runtime().InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # the C++ code may raise any class; the types are unknown then
        return [None] * len(node.outputs)
    found = {info.name: _type(info) for info in session.get_outputs()}
    return [None if v is None else found.get(v.name) for v in node.outputs]


def _type(info: Any) -> ValueType | None:
    """The type in onnxruntime's description of an output."""
    name = str(info.type).removeprefix("tensor(").removesuffix(")").upper()
    if name not in DType.__members__:
        return None
    shape = tuple(d or None if isinstance(d, str) else d for d in info.shape)
    return TensorType(DType[name], shape or None)  # onnxruntime also reports () for an unknown rank
