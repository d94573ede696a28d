"""The C++ library of the onnx package: schemas and inference.

`import onnx` imports the whole package with its model hub and helpers, which is slower than converting a small model. So its C++
library and its messages (`onnxproto`) are loaded alone, under their own names. A later `import onnx` finds and uses them.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def load_alone(name: str) -> Any:
    """A module of the onnx package, without the package."""
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


native: Any = load_alone("onnx_cpp2py_export")

InferenceError: type[Exception] = native.shape_inference.InferenceError


@cache
def get_schema(op: str, opset: int, domain: str) -> Any:
    """The OpSchema of an operator in a version of its operator set; None if there is none."""
    try:
        return native.defs.get_schema(op, opset, domain)
    except native.defs.SchemaError:
        return None


def newest_opsets() -> dict[str, int]:
    """The newest version of each operator set that the package knows."""
    return {domain: versions[1] for domain, versions in native.defs.schema_version_map().items()}


def infer_shapes(message: bytes, *, data_prop: bool, strict: bool = False) -> bytes:
    """A serialized model with inferred types filled in.

    If `strict`, an exception lists all nodes that break the rules of their operators or contradict declared types.
    """
    inferred: bytes = native.shape_inference.infer_shapes(message, False, strict, data_prop)
    return inferred
