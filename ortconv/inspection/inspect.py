"""Inspection of a model: its interface, operators, costs, memory, quantization, and notes on what stands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ortconv.documents import Document
from ortconv.errors import UsageError
from ortconv.executor.guard import guarded
from ortconv.gates import release_number
from ortconv.inspection.costs import OperatorRow, PeakMemory, activation_memory, operator_rows
from ortconv.inspection.notes import bytes_of, constants, elements_of, notes
from ortconv.inspection.quantization import GroupVerdict, ModelQuantization, quantization
from ortconv.inspection.quantization import lint as judged
from ortconv.ir.graph import Value
from ortconv.ir.model import OLDEST_OPSET, Model
from ortconv.ir.symbols import symbols_of
from ortconv.models import ModelSource, as_file, is_ort, load
from ortconv.ortformat.reader import format_version
from ortconv.ortformat.releases import oldest_release
from ortconv.pipeline.export_notes import Note
from ortconv.pipeline.stages import optimize
from ortconv.public import public
from ortconv.wording import counted

SHOWN_CONSTANTS = 5
LEVELS = ("basic", "extended")
"""Levels that an inspection tests: does the model have all their rewrites already?"""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model."""

    name: str
    type: str
    """Such as float[batch,3,224,224]; ? for an unknown dimension, ... for an unknown rank."""
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant and its share of all constants' bytes."""

    name: str
    type: str
    bytes: int
    share: float


@dataclass
class Inspection(Document):
    """The result of `inspect`. Nodes and constants include those of subgraphs; Constant nodes count as constants."""

    model: str
    format: Literal["onnx", "ort"]
    format_version: str | None
    """Format version; None for an .onnx file."""
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[Port]
    outputs: list[Port]
    symbols: list[str]
    """Symbolic dimensions of the inputs."""
    nodes: int
    graphs: int
    constants: int
    parameters: int
    """Number of elements of all constants."""
    constant_bytes: int
    largest_constants: list[Constant]
    multiply_adds: int
    memory: PeakMemory
    operators: list[OperatorRow]
    quantization: ModelQuantization
    oldest_onnxruntime: str
    oldest_reason: str
    saved_fusions: int
    notes: list[Note] = field(default_factory=list)
    lint: list[GroupVerdict] | None = None
    """Whether NNAPI and CoreML support each QDQ group, on request."""

    def __repr__(self) -> str:
        return f"<Inspection of {self.model}: {counted(self.nodes, 'node')}, {self.file_bytes} bytes>"

    def metrics(self) -> dict[str, float]:
        """The metrics that conditions can name."""
        return {
            "nodes": self.nodes,
            "size": self.file_bytes,
            "constants": self.constant_bytes,
            "parameters": self.parameters,
            "multiply_adds": self.multiply_adds,
            "activations": self.memory.peak_bytes,
            "onnxruntime": release_number(self.oldest_onnxruntime),
            "operators": len(self.operators),
        }


@public
def inspect(
    source: ModelSource, *, fix_dims: Mapping[str, int] | None = None, lint: Literal["quantization"] | None = None
) -> Inspection:
    """Inspect an .onnx or .ort model.

    `fix_dims` gives numbers for symbolic dimensions, which otherwise count as 1 in costs. With `lint`, the result lists whether
    NNAPI and CoreML support each QDQ group after the rewrites of level basic.
    """
    if lint not in (None, "quantization"):
        raise UsageError(f"there is no lint '{lint}'", hint="quantization is the only one")
    with as_file(source) as (path, label):
        model = load(path, fix_dims, only_to_run=True)
        with guarded(model.graph, "inspecting"):
            found = _inspected(model, label, path)
            found.notes = notes(model, found.quantization)
            if lint is not None:
                found.lint = judged(_prepared(path, fix_dims).graph)
        reached = _optimized_at(model)
    if reached is not None:
        message = f"already optimized at {reached}: converting at that level rewrites nothing"
        found.notes.insert(0, Note("optimized", message))
    return found


def _inspected(model: Model, label: str, path: Path) -> Inspection:
    graph = model.graph
    oldest = oldest_release(model)
    rows = operator_rows(graph)
    held = constants(graph)
    sizes = list(map(bytes_of, held))
    total = sum(sizes)
    return Inspection(
        model=label,
        format="ort" if is_ort(path) else "onnx",
        format_version=format_version(path) if is_ort(path) else None,
        file_bytes=model.file_bytes,
        ir_version=model.ir_version,
        opsets=dict(graph.opsets),
        producer=model.producer,
        inputs=list(map(_port, graph.inputs)),
        outputs=list(map(_port, graph.outputs)),
        symbols=symbols_of(graph.inputs),
        nodes=sum(1 for _ in graph.walk()),
        graphs=sum(1 for _ in graph.graphs()),
        constants=len(held),
        parameters=sum(map(elements_of, held)),
        constant_bytes=total,
        largest_constants=[
            Constant(v.name, str(v.type), size, size / max(total, 1))
            for v, size in zip(held[:SHOWN_CONSTANTS], sizes, strict=False)
        ],
        multiply_adds=sum(row.multiply_adds for row in rows),
        memory=activation_memory(graph),
        operators=rows,
        quantization=quantization(graph),
        oldest_onnxruntime=oldest.name,
        oldest_reason=oldest.reason,
        saved_fusions=len(model.saved),
    )


def _port(value: Value) -> Port:
    return Port(value.name, str(value.type or "?"), value.const is not None)


def _optimized_at(model: Model) -> str | None:
    """The highest of LEVELS at which the optimizer changes nothing. The model is optimized in place."""
    reached = None
    for node in model.graph.walk():
        node.ep = ""
    for level in LEVELS if model.graph.opset() >= OLDEST_OPSET else ():
        if optimize(model, level).trace:
            break
        reached = level
    return reached


def _prepared(path: Path, fix_dims: Mapping[str, int] | None) -> Model:
    """The model after the rewrites of level basic, as partitioning gets it."""
    model = load(path, fix_dims)
    if not is_ort(path):
        optimize(model, "basic")
    return model
