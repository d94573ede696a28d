"""The two modules of the onnx package that every conversion needs: its messages and its C++ library.

`import onnx` imports the whole package with its model hub and helpers, which is slower than converting a small model. So both
modules are loaded alone, under their own names. A later `import onnx` finds and uses them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _load(name: str) -> Any:
    full = f"onnx.{name}"
    package = None if "onnx" in sys.modules or full in sys.modules else find_spec("onnx")
    if package is None:
        return import_module(full)
    spec = PathFinder.find_spec(full, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return import_module(full)
    module: ModuleType = module_from_spec(spec)
    sys.modules[full] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[full]
        raise
    return module


native: Any = _load("onnx_cpp2py_export")

_MESSAGES = (
    "AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto", "OperatorSetIdProto", "SparseTensorProto",
    "TensorProto", "TypeProto", "ValueInfoProto",
)  # fmt: skip

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

    messages: Any
    IR_VERSION: int
    """The newest IR version that the package knows."""
else:

    def __getattr__(name: str) -> Any:
        """The messages, loaded when the first of them is needed: .ort files run without them."""
        if name not in ("messages", "IR_VERSION", *_MESSAGES):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        messages = _load("onnx_ml_pb2")
        globals().update({known: getattr(messages, known) for known in ("IR_VERSION", *_MESSAGES)}, messages=messages)
        return globals()[name]


SchemaError: type[Exception] = native.defs.SchemaError
InferenceError: type[Exception] = native.shape_inference.InferenceError


__all__ = [
    "IR_VERSION", "AttributeProto", "FunctionProto", "GraphProto", "InferenceError", "ModelProto", "NodeProto",
    "OperatorSetIdProto",
    "SchemaError", "SparseTensorProto", "TensorProto", "TypeProto", "ValueInfoProto", "get_schema", "infer_shapes",
    "messages", "native", "newest_opsets",
]  # fmt: skip


def get_schema(op: str, opset: int, domain: str) -> Any:
    """The OpSchema of an operator in a version of its operator set. SchemaError if there is none."""
    return native.defs.get_schema(op, opset, domain)


def newest_opsets() -> dict[str, int]:
    """The newest version of each operator set that the package knows."""
    return {domain: versions[1] for domain, versions in native.defs.schema_version_map().items()}


def infer_shapes(message: bytes, *, data_prop: bool, strict: bool = False) -> bytes:
    """A serialized model with inferred types filled in.

    If `strict`, an exception lists all nodes that break the rules of their operators or contradict declared types.
    """
    inferred: bytes = native.shape_inference.infer_shapes(message, False, strict, data_prop)
    return inferred
