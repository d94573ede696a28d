"""What a model is partitioned for."""

from __future__ import annotations

from dataclasses import dataclass

from ortconv.errors import UsageError
from ortconv.ir.graph import Graph
from ortconv.partition.reasons import Objection, Objections

EP_TYPES = {"nnapi": "NnapiExecutionProvider"}
"""Execution providers by short name, with the string that ONNX Runtime stores on their nodes."""

EP_PREFIXES = {"nnapi": "Nnapi"}
"""How the names of their partitions begin."""

FEATURE_LEVELS = range(27, 32)

DEFAULT_STOP_OPS = ("NonMaxSuppression",)

MIN_OPSET = 7
"""Oldest ONNX opset that ONNX Runtime's transpose optimizer accepts."""

MAX_OPSET = 26
"""Newest one. It rises with every release: 18 in ONNX Runtime 1.14, 21 and 22 later, 26 in 2026, probably 27 next."""


@dataclass(frozen=True, slots=True)
class Target:
    """An execution provider and its options.

    `feature_level` is the Android API level, 27 to 31. Nodes whose op is in `stop_ops`, and all nodes downstream of them,
    stay on the CPU. `use_nchw` keeps the layout that ONNX uses. UsageError for anything else.
    """

    ep: str = "nnapi"
    feature_level: int = 31
    stop_ops: tuple[str, ...] = DEFAULT_STOP_OPS
    use_nchw: bool = False

    def __post_init__(self) -> None:
        if self.ep not in EP_TYPES:
            raise UsageError(f"unknown execution provider '{self.ep}'", hint=f"choose from {', '.join(EP_TYPES)}")
        if self.feature_level not in FEATURE_LEVELS:
            low, high = FEATURE_LEVELS[0], FEATURE_LEVELS[-1]
            raise UsageError(
                f"NNAPI feature level {self.feature_level} is not supported", hint=f"choose one from {low} to {high}"
            )

    @property
    def ep_type(self) -> str:
        """What is stored on a node that this target takes."""
        return EP_TYPES[self.ep]


def gate(graph: Graph, target: Target) -> Objections:
    """Reasons for which the whole graph gets no node of the target."""
    if graph.owner is not None:
        yield Objection("subgraph", f"the graph is a body of {graph.owner.label}: only the main graph is partitioned")
    opset = graph.opset()
    if not target.use_nchw and not MIN_OPSET <= opset <= MAX_OPSET:
        yield Objection(
            "opset",
            f"the model has opset {opset}: the change to NHWC layout takes {MIN_OPSET} to {MAX_OPSET}",
            f"convert the model to an opset from {MIN_OPSET} to {MAX_OPSET}",
        )
