"""Operators of the user's own, from a shared library: only onnxruntime knows what types their results have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ortconv.ir.graph import Graph, Node
from ortconv.ir.types import DType, TensorType, ValueType
from ortconv.onnxio.infer import infer_missing
from ortconv.onnxio.proto import region_proto


def infer_types(graph: Graph, library: Path) -> None:
    """Give the results of the library's operators, and all that follows from them, their types. UsageError as above."""
    from ortconv.backends.onnxruntime_cpu import session_options

    options = session_options(library)
    infer_missing(graph, lambda node: _output_types(node, options))


def _output_types(node: Node, options: Any) -> list[ValueType | None]:
    """What onnxruntime infers for a model of this one node; nothing if it refuses the node."""
    from ortconv.backends.onnxruntime_cpu import runtime

    onnxruntime = runtime()
    assert node.graph is not None
    outputs = [v for v in node.outputs if v is not None]
    reads = list(dict.fromkeys(v for v in node.inputs if v is not None))
    proto = region_proto(node.graph, [node], reads, outputs)
    for info in proto.graph.output:
        info.ClearField("type")
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # whatever class of its own the C++ code raises, nothing is known
        return [None] * len(node.outputs)
    found = {info.name: _type(info) for info in session.get_outputs()}
    return [None if v is None else found.get(v.name) for v in node.outputs]


def _type(info: Any) -> ValueType | None:
    """The type that onnxruntime's description of an output states."""
    name = str(info.type).removeprefix("tensor(").removesuffix(")").upper()
    if name not in DType.__members__:
        return None
    shape = tuple(d or None if isinstance(d, str) else d for d in info.shape)
    return TensorType(DType[name], shape or None)  # () as well is what it says where the rank is unknown
