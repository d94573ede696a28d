"""The result of a conversion."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ortconv.gates import release_number
from ortconv.ir.model import Model
from ortconv.optimizer.engine import Context, Rewrite
from ortconv.ortformat.releases import oldest_release
from ortconv.watch import note_stage
from ortconv.wording import counted

if TYPE_CHECKING:
    from ortconv.ir.graph import Node
    from ortconv.partition import Objection, Partitioning
    from ortconv.pipeline.float16 import Float16
    from ortconv.pipeline.offload_gain import Gain
    from ortconv.pipeline.stages import Optimized
    from ortconv.validation.validate import Validation

SHOWN_FOLDS = 3


class ProviderPartition(NamedTuple):
    """A partition, with the provider that runs it. `constants` is the number of constant inputs."""

    provider: str
    name: str
    nodes: list[str]
    ops: dict[str, int]
    inputs: list[str]
    constants: int
    outputs: list[str]


class LeftToCpu(NamedTuple):
    """A rule against nodes: their number, and an example with its advice."""

    rule: str
    nodes: int
    example: str
    advice: str


class Fold(NamedTuple):
    """A node that constant folding replaced, and the bytes that this added."""

    node: str
    bytes: int


class OldestRelease(NamedTuple):
    """The oldest release that loads a file, and the reason: the feature that older releases lack. Empty if not known."""

    release: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.release} and later{self.reason and f' ({self.reason})'}"


@dataclass
class Result:
    """The result of a conversion."""

    source: str
    files: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Repairs made when the source was read, fusions omitted because they crash onnxruntime, and nodes on which NNAPI fails."""
    nodes_before: int = 0
    nodes_after: int = 0
    saved_fusions: int = 0
    rewrites: dict[str, int] = field(default_factory=dict)
    trace: list[Rewrite] = field(default_factory=list)
    partitions: list[ProviderPartition] | None = None
    nodes_divided: int = 0
    """Number of partitioned nodes: those of the graph before the fusions for the CPU. Each is in a partition or in `refusals`."""
    offload: Gain | None = None
    """With maximize_offload: counts of the accelerator's nodes before and after, and the rewrites."""
    float16: Float16 | None = None
    """With float16: counts of nodes, Casts and bytes, and the error."""
    refusals: list[LeftToCpu] = field(default_factory=list)
    """Reasons why nodes were left to the CPU, most frequent first. A node counts once, under its first objection."""
    without_fallback: int = 0
    """Number of nodes in partitions without a CPU kernel. With any, the file loads only if a provider accepts them."""
    oldest_onnxruntime: OldestRelease = OldestRelease()  # noqa: RUF009
    seconds: dict[str, float] = field(default_factory=dict)
    validation: Validation | None = None
    operators: dict[str, int] = field(default_factory=dict)
    bytes_before: int = 0
    """Size of the source in bytes, including its weight files."""
    bytes_after: int = 0
    constants_before: int = 0
    constants_after: int = 0
    """Bytes of all constants, inside the file and outside."""
    folded_bytes: int = 0
    """Growth of the model by constant folding, in bytes; negative if it shrank."""
    folds: list[Fold] = field(default_factory=list)
    """The folds that increased the size most."""
    external: tuple[str, ...] = ()
    """Weight files of the source, relative to its folder."""
    unchanged: bool = False
    """True if the files already existed from an earlier batch."""
    required: str = ""
    """The text of the operator config: operators that a reduced build needs."""
    values: dict[str, str] = field(default_factory=dict)
    """With manifest: names of values in the source, and their names in the result."""
    started: Callable[[str], None] | None = field(default=None, repr=False, compare=False)
    """Called with the name of each stage as it begins."""

    def __repr__(self) -> str:
        files = ", ".join(self.files) or "nothing"
        return f"<Result {self.source} -> {files}: {self.nodes_before} -> {self.nodes_after} nodes, {self.bytes_after} bytes>"

    def metrics(self) -> dict[str, float]:
        """The known numbers of the result, by the names that conditions of --fail-on use."""
        found: dict[str, float] = {
            "nodes": self.nodes_after,
            "size": self.bytes_after,
            "constants": self.constants_after,
            "onnxruntime": release_number(self.oldest_onnxruntime.release),
        }
        if self.partitions is not None:
            inside = sum(len(p.nodes) for p in self.partitions)
            found |= {
                "partitions": len(self.partitions),
                "coverage": 100.0 * inside / self.nodes_divided if self.nodes_divided else 0.0,
                "refused": self.nodes_divided - inside,
            }
        if self.validation is not None and self.validation.skipped is None:
            found |= {"max_abs": self.validation.max_abs, "scaled": self.validation.scaled}
        return found

    def source_metrics(self) -> dict[str, float]:
        """Those of `metrics` that the source has, too."""
        return {"nodes": self.nodes_before, "size": self.bytes_before, "constants": self.constants_before}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        shown = replace(self, trace=[], required="", values={}, started=None)
        found = {k: v for k, v in asdict(shown).items() if k not in ("required", "values", "started")}
        return {
            **found,
            "trace": [rewrite.to_dict() for rewrite in self.trace],
            "partitions": None if self.partitions is None else [row._asdict() for row in self.partitions],
            "offload": None if self.offload is None else self.offload.to_dict(),
            "refusals": [row._asdict() for row in self.refusals],
            "oldest_onnxruntime": self.oldest_onnxruntime._asdict() if self.oldest_onnxruntime.release else {},
            "folds": [row._asdict() for row in self.folds],
        }

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a block to that of a stage."""
        note_stage(stage)
        if self.started is not None:
            self.started(stage)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def record_source(self, model: Model) -> None:
        """Record the sizes of the model before it is optimized."""
        self.nodes_before = sum(1 for _ in model.graph.walk())
        self.bytes_before, self.external = model.file_bytes, model.external
        self.constants_before = model.graph.constant_bytes

    def record(self, model: Model, context: Context, optimized: Optimized) -> None:
        """Record the results of the optimizer and the partitioner."""
        self.offload = optimized.gain
        self.float16 = optimized.float16
        self.rewrites = optimized.counts()
        self.trace = optimized.trace
        self.constants_after = model.graph.constant_bytes
        self.folded_bytes = context.grown
        self.folds = [Fold(node, size) for size, node in sorted(context.folds, reverse=True)[:SHOWN_FOLDS]]
        if optimized.partitionings:
            self._record_partitions(model, optimized)
        self.operators = operator_counts(model)
        self.nodes_after = sum(self.operators.values())
        self.saved_fusions = len(model.saved)
        oldest = oldest_release(model)
        self.oldest_onnxruntime = OldestRelease(oldest.name, oldest.reason)

    def _record_partitions(self, model: Model, optimized: Optimized) -> None:
        from ortconv.ortformat.precision import needs_provider
        from ortconv.pipeline.offload_gain import hinted

        partitionings = optimized.partitionings
        self.partitions = [
            ProviderPartition(found.target.provider.name, **p.to_dict())
            for found in partitionings
            for p in found.partitions
        ]
        self.nodes_divided = len({node for found in partitionings for node in found.verdicts})
        can_maximize = optimized.gain is None and len({found.target.ep for found in partitionings}) == 1
        self.refusals = _refusals([hinted(p) for p in partitionings] if can_maximize else partitionings)
        self.without_fallback = sum(map(needs_provider, model.graph.walk()))
        self.warnings += _failures(partitionings)


def operator_counts(model: Model) -> dict[str, int]:
    """Number of nodes for each operator, subgraphs included, most frequent first."""
    counts = Counter(node.operator for node in model.graph.walk())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _failures(partitionings: Sequence[Partitioning]) -> list[str]:
    """Warnings of nodes of the result that a target's provider accepts, but on which its session or run then fails, or which it
    computes with other results.
    """
    warnings = []
    for p in partitionings:
        differing = [v for v in p.verdicts.values() if v.differs]
        for verdicts, effect in (
            (p.failing, "make an app with {} fail"),
            (differing, "have other results in an app with {}"),
        ):
            left = [v for v in verdicts if v.node.graph is not None]
            if left:
                example = left[0].objections[0]
                which = (
                    f"{counted(len(left), 'node')} will {effect.format(p.target.label)}, such as {left[0].node.label}"
                )
                warnings.append(f"{which}: {example}")
    return warnings


def _refusals(partitionings: Sequence[Partitioning]) -> list[LeftToCpu]:
    from ortconv.partition.refusals import grouped

    verdicts = [item for p in partitionings for item in p.verdicts.items()]
    taken = {node for node, verdict in verdicts if verdict.taken}
    against: dict[Node, Objection] = {}
    for node, verdict in verdicts:
        if node not in taken and verdict.objections:
            against.setdefault(node, verdict.objections[0])
    found = grouped((first.rule, (node, first)) for node, first in against.items())
    examples = ((rule, len(own), *own[0]) for rule, own in found.items())
    rows = [LeftToCpu(rule, count, f"{node.label}: {o.message}", o.advice) for rule, count, node, o in examples]
    return sorted(rows, key=lambda row: -row.nodes)
