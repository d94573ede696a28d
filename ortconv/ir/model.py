"""A model: the main graph and what surrounds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortconv.ir.graph import Graph


@dataclass
class Model:
    """What an .onnx or .ort file holds. The operator set versions are `graph.opsets`."""

    graph: Graph
    ir_version: int = 8
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int | None = None
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    path: str = ""
    """The file it came from, for messages."""
