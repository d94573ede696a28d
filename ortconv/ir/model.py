"""A model: the main graph and what surrounds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ortconv.ir.graph import Graph, Node


class Arity(NamedTuple):
    """How many formal inputs or outputs there are, and how many actual ones the last takes, where it is variadic."""

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
"""The optimizers of onnxruntime that replay saved fusions, their actions, and how many nodes each makes; where it makes none,
the target stays and loses its neighbors."""


@dataclass(frozen=True, slots=True)
class SavedFusion:
    """A fusion that onnxruntime may make when it loads the model: an action of one of its optimizers, and its nodes.

    `nodes` are those before the target, the target, those behind it, and one that goes with them; None where an optional one is
    left out. `produced` are the operators of the nodes that the action makes, as domain:operator:since_version.
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
    saved: list[SavedFusion] = field(default_factory=list)
    """Fusions left to onnxruntime, of all graphs."""
    path: str = ""
    """The file it came from, for messages."""
    file_bytes: int = 0
    """The size of that file and of those with weights of it."""
    external: tuple[str, ...] = ()
    """The files with weights of it, relative to its folder."""
    warnings: list[str] = field(default_factory=list)
    """What was repaired when the file was read, one sentence each."""
