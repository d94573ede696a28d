"""Models in ONNX's text form, without its header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import parser

MICROSOFT = {"com.microsoft": 1}


def parse(graph: str, opset: int = 17, domains: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """The model of a graph. `opset` is the version of ONNX's operators, `domains` has those of others."""
    imports = ", ".join(f'"{name}": {version}' for name, version in {"": opset, **(domains or {})}.items())
    proto: onnx.ModelProto = parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\n{graph}")
    return proto


def save(path: Path, graph: str, opset: int = 17, domains: Mapping[str, int] | None = None) -> Path:
    """Write the model of a graph, and return the path."""
    path.write_bytes(parse(graph, opset, domains).SerializeToString())
    return path


def save_nodes(path: Path, nodes: str, inputs: str = "float[batch,4] x", outputs: str = "y", **domains: int) -> Path:
    """Write the model of a graph with these nodes, and return the path."""
    return save(path, f"g ({inputs}) => ({outputs}) {{ {nodes} }}", domains=domains)
