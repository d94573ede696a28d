"""What a model is partitioned for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ortconv.errors import UsageError
from ortconv.ir.graph import Graph
from ortconv.partition.reasons import Objection, Objections


class Provider(NamedTuple):
    """An execution provider: the string that ONNX Runtime stores on its nodes, the beginning of its partitions' names, and
    the module whose `objections(unit, target, in_group)` judges a unit."""

    ep_type: str
    prefix: str
    rules: str


PROVIDERS = {"nnapi": Provider("NnapiExecutionProvider", "Nnapi", "ortconv.partition.nnapi.rules")}
"""What a model can be partitioned for, by short name."""

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
    stay on the CPU, and so do nodes whose op is in `refused_ops`, which the driver of the device at hand does not run.
    `use_nchw` keeps the layout that ONNX uses. UsageError for anything else.
    """

    ep: str = "nnapi"
    feature_level: int = 31
    stop_ops: tuple[str, ...] = DEFAULT_STOP_OPS
    use_nchw: bool = False
    refused_ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ep not in PROVIDERS:
            raise UsageError(f"unknown execution provider '{self.ep}'", hint=f"choose from {', '.join(PROVIDERS)}")
        if self.feature_level not in FEATURE_LEVELS:
            low, high = FEATURE_LEVELS[0], FEATURE_LEVELS[-1]
            raise UsageError(
                f"NNAPI feature level {self.feature_level} is not supported", hint=f"choose one from {low} to {high}"
            )

    @property
    def provider(self) -> Provider:
        return PROVIDERS[self.ep]

    @property
    def ep_type(self) -> str:
        """What is stored on a node that this target takes."""
        return self.provider.ep_type


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
