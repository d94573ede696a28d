"""Targets of partitioning: execution providers and their options, and the objections of their rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ortconv.choices import COREML_FORMATS, COREML_VERSION, FEATURE_LEVEL, FEATURE_LEVELS, feature_level
from ortconv.errors import UsageError
from ortconv.ir.graph import Graph


class Objection(NamedTuple):
    """One reason against a node: a stable rule id, a message with the limit and the actual value, and advice."""

    rule: str
    message: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


Objections = Iterator[Objection]
"""The result of a support rule; without objections, the node is supported."""


class Provider(NamedTuple):
    """An execution provider.

    `ep_type` is the string that ONNX Runtime stores on its nodes, `prefix` the start of its partitions' names, and `rules` the
    module whose `objections(unit, target, in_group)` judges a unit. If `qdq_units`, a QDQ group is judged as one unit. If
    `reads_constants`, constants count as inputs of a partition.
    A single `alone` node, or a group of only `trivial` nodes, makes no partition.
    """

    ep_type: str
    prefix: str
    rules: str
    name: str
    qdq_units: bool = True
    reads_constants: bool = True
    alone: frozenset[str] = frozenset({"Reshape", "Flatten", "Identity"})
    trivial: frozenset[str] = frozenset()


PROVIDERS = {
    "nnapi": Provider("NnapiExecutionProvider", "Nnapi", "ortconv.partition.nnapi.rules", "NNAPI"),
    "coreml": Provider(
        "CoreMLExecutionProvider",
        "CoreML",
        "ortconv.partition.coreml.rules",
        "CoreML",
        qdq_units=False,
        reads_constants=False,
        alone=frozenset(),
        trivial=frozenset(
            {"Cast", "Ceil", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
        ),
    ),
}
"""The providers by short name, in the order in which ONNX Runtime queries them."""

DEFAULT_STOP_OPS = ("NonMaxSuppression",)

RUNTIME = "runtime"
"""The rule of objections to nodes that ONNX Runtime's provider accepts, and on which its session or run then fails."""

NUMBERS = "numbers"
"""The rule of objections to nodes that ONNX Runtime's provider accepts, and then computes with other results."""

MIN_OPSET = 7
"""Oldest ONNX opset that ONNX Runtime's transpose optimizer accepts."""

MAX_OPSET = 26
"""Newest ONNX opset that ONNX Runtime's transpose optimizer accepts. It rises with releases: 18 in ONNX Runtime 1.14,
21 and 22 later, 26 in 2026, probably 27 next.
"""


LEAST_COREML = 3
"""CoreML version of iOS 13 and macOS 10.15. For older versions, ONNX Runtime's execution provider supports no node."""

LEAST_MLPROGRAM = 5
"""CoreML version of iOS 15 and macOS 12. For older versions, ONNX Runtime falls back from MLProgram to NeuralNetwork."""


@dataclass(frozen=True, slots=True)
class Target:
    """An execution provider and its options. Raises UsageError for invalid options.

    `feature_level` is 1 to 8 or NNAPI's number for it, and is stored as that number. Nodes with an op in `stop_ops`, and all nodes
    downstream of them, stay on the CPU. So do nodes with an op in `refused_ops`, which the device's driver does not run. `use_nchw`
    keeps ONNX's layout.

    CoreML's options are its version and model format, whether inputs must have static shapes, and whether nodes in bodies of If,
    Loop and Scan are assigned. It has no stop ops.
    """

    ep: str = "nnapi"
    feature_level: int = FEATURE_LEVEL
    stop_ops: tuple[str, ...] = DEFAULT_STOP_OPS
    use_nchw: bool = False
    refused_ops: tuple[str, ...] = ()
    coreml_format: str = "NeuralNetwork"
    coreml_version: int = COREML_VERSION
    coreml_static_inputs: bool = False
    coreml_on_subgraphs: bool = False

    def __post_init__(self) -> None:
        if self.ep not in PROVIDERS:
            raise UsageError(f"unknown execution provider '{self.ep}'", hint=f"choose from {', '.join(PROVIDERS)}")
        object.__setattr__(self, "feature_level", feature_level(self.feature_level))
        if self.coreml_format not in COREML_FORMATS:
            known = " or ".join(COREML_FORMATS)
            raise UsageError(f"unknown CoreML format '{self.coreml_format}'", hint=f"choose {known}")
        if self.ep == "coreml":
            object.__setattr__(self, "stop_ops", ())

    @property
    def provider(self) -> Provider:
        return PROVIDERS[self.ep]

    @property
    def ep_type(self) -> str:
        """The string stored on nodes that are assigned to this target."""
        return self.provider.ep_type

    @property
    def takes_subgraphs(self) -> bool:
        """True if nodes in bodies of If, Loop and Scan are assigned, too."""
        return self.ep == "coreml" and self.coreml_on_subgraphs

    @property
    def is_mlprogram(self) -> bool:
        """True if CoreML models are in MLProgram format, which old versions do not support."""
        return self.coreml_format == "MLProgram" and self.coreml_version >= LEAST_MLPROGRAM

    @property
    def name(self) -> str:
        """The name of this target in objections."""
        name = self.provider.name
        return f"{name} {'MLProgram' if self.is_mlprogram else 'NeuralNetwork'}" if self.ep == "coreml" else name

    @property
    def label(self) -> str:
        """The name of this target with its version, for users."""
        if self.ep == "coreml":
            return f"{self.name}, version {self.coreml_version}"
        level = self.feature_level
        return f"{self.name} at feature level {level if level <= FEATURE_LEVEL else FEATURE_LEVELS.index(level) + 1}"

    @property
    def options(self) -> dict[str, Any]:
        """This target's options, as JSON values."""
        nnapi = ("feature_level", "stop_ops", "use_nchw", "refused_ops")
        coreml = ("coreml_format", "coreml_version", "coreml_static_inputs", "coreml_on_subgraphs", "refused_ops")
        names: tuple[str, ...] = coreml if self.ep == "coreml" else nnapi
        values = {name: getattr(self, name) for name in names}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def gate(graph: Graph, target: Target) -> Objections:
    """Objections to the whole graph: with any of them, no node is assigned to the target."""
    if graph.owner is not None and not target.takes_subgraphs:
        yield Objection("subgraph", f"the graph is a body of {graph.owner.label}: only the main graph is partitioned")
    if target.ep == "coreml":
        if target.coreml_version < LEAST_COREML:
            message = f"the target has CoreML version {target.coreml_version}: the least is {LEAST_COREML}"
            yield Objection("coreml-version", message, "ask for iOS 13 or macOS 10.15 at least")
        return
    opset = graph.opset()
    if not target.use_nchw and not MIN_OPSET <= opset <= MAX_OPSET:
        message = f"the model has opset {opset}: the change to NHWC layout supports {MIN_OPSET} to {MAX_OPSET}"
        yield Objection("opset", message, f"convert the model to an opset from {MIN_OPSET} to {MAX_OPSET}")
