"""A model: the main graph and its metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node

OLDEST_OPSET = 7
"""Oldest operator set version in models for ONNX Runtime."""


class Arity(NamedTuple):
    """The number of formal inputs or outputs, and, if the last one is variadic, the number of actual ones that it has."""

    formal: int
    variadic: int | None = None

    @property
    def actual(self) -> int:
        return self.formal if self.variadic is None else self.formal - 1 + self.variadic


NODES_MADE: dict[tuple[str, str], int] = {
    **{("QDQSelectorActionTransformer", action): 0 for action in (
        "drop", "drop_no_int16_support", "drop_no_int16_support_and_positive_scale", "dropDQ")},
    **{("QDQSelectorActionTransformer", action): 1 for action in (
        "dropSplitQDQ", "1DQ", "1DQ_CPU", "1DQ_CPU_Softmax", "2DQ", "*DQ", "Where", "Conv", "Gemm", "MatMul",
        "DQMatMulToMatMulNBits")},
    ("ConvActivationFusion", "ConvAct"): 1,
    ("MatMulNBitsFusion", "FuseBias"): 0,
}  # fmt: skip
"""Nodes created, by (optimizer of onnxruntime, action). For 0, the target stays and its neighbors are removed."""


class SavedFusion(NamedTuple):
    """A fusion that onnxruntime may apply when it loads the model: an action of one of its optimizers, and its nodes.

    `nodes` lists the nodes before the target, the target, the nodes after it, and an extra one if the action has it; None is an
    absent optional node. `produced` lists the operators of the created nodes as domain:operator:since_version.
    """

    optimizer: str
    action: str
    nodes: tuple[Node | None, ...]
    inputs: Arity
    outputs: Arity
    produced: tuple[str, ...]

    @property
    def target(self) -> Node:
        node = self.nodes[self.inputs.actual]
        assert node is not None
        return node


@dataclass(repr=False)
class Model:
    """The content of an .onnx or .ort file. The operator set versions are in `graph.opsets`."""

    graph: Graph
    ir_version: int = 8
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int | None = None
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    saved: list[SavedFusion] = field(default_factory=list)
    """Fusions left to onnxruntime, in all graphs."""
    path: str = ""
    """The file that the model was loaded from, for messages."""
    file_bytes: int = 0
    """The size of that file plus its files of external weights."""
    external: tuple[str, ...] = ()
    """The files of external weights, relative to the model's folder."""
    warnings: list[str] = field(default_factory=list)
    """Repairs made when the file was read, one sentence each."""

    @property
    def producer(self) -> str:
        """Name and version of the program that made the model, as far as stated."""
        return " ".join(filter(None, (self.producer_name, self.producer_version)))

    def __repr__(self) -> str:
        return f"<Model of {self.path or self.graph.name or 'a graph'}: {len(self.graph)} nodes, opset {self.graph.opset()}>"
