"""Which nodes of a model file a target supports at a level of optimization, and the estimated cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ortconv.choices import ANALYSIS_LEVELS
from ortconv.errors import UsageError
from ortconv.executor.guard import guarded
from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.ir.nesting import with_owners
from ortconv.models import is_ort, load
from ortconv.partition import Partitioning, Target, partition
from ortconv.partition.advice import Merge, advise
from ortconv.partition.cost import Estimate, estimate
from ortconv.partition.limits import Limits, limit
from ortconv.partition.profile import DeviceProfile
from ortconv.pipeline.offload_gain import Gain, hinted
from ortconv.pipeline.stages import Offload, optimize
from ortconv.public import public
from ortconv.wording import counted

REWRITABLE_LEVELS = ("basic", "aware")
"""The levels after which refused nodes can be rewritten for a target."""


class DividedSubgraph(NamedTuple):
    """A subgraph of a node, with its partitioning. The estimate is for one run of the subgraph."""

    graph: Graph
    partitioning: Partitioning
    estimate: Estimate

    @property
    def label(self) -> str:
        """The owner nodes of the graph, outermost first, and its name."""
        owners = () if self.graph.owner is None else with_owners(self.graph.owner)
        return ": ".join([*reversed([node.label for node in owners]), self.graph.name])


@dataclass(frozen=True)
class Analysis:
    """A prepared model, its partitioning for a target, and the cost."""

    model: Model
    level: str
    partitioning: Partitioning
    estimate: Estimate
    gain: Gain | None = None
    """The result of rewrites for the target; None if `maximize` was not set."""
    inside: tuple[DividedSubgraph, ...] = ()
    """Subgraphs with nodes that are assigned to the target."""

    def __repr__(self) -> str:
        p = self.partitioning
        counts = f"{counted(len(p.partitions), 'partition')}, {p.taken} of {p.total} nodes"
        return f"<Analysis for {p.target.label} at level {self.level}: {counts}>"

    def advice(self) -> list[Merge]:
        """Changes that would merge partitions."""
        return advise(self.model.graph, self.partitioning.target)


@public
def analyze(
    source: str | Path,
    target: Target,
    level: str | None = None,
    *,
    limits: Limits | None = None,
    device: DeviceProfile | None = None,
    fix_dims: Mapping[str, int] | None = None,
    freeze_initializers: bool = False,
    maximize: bool = False,
) -> Analysis:
    """Partition the model of an .onnx or .ort file for a target. With `maximize`, refused nodes are rewritten for it first; with
    `freeze_initializers`, inputs with a default value are constants.

    `level` is one of ANALYSIS_LEVELS. None means basic for an .onnx file, and disable for an .ort file, which has no other level.
    """
    source = Path(source)
    level = _checked_level(source, level, maximize)
    model = load(source, fix_dims, freeze_initializers=freeze_initializers)
    is_aware = level == "aware"
    optimized = optimize(
        model,
        "extended" if is_aware else level,
        target if is_aware or maximize else None,
        offload=Offload.WHERE_IT_HELPS if maximize else Offload.NONE,
        limits=limits,
    )
    for node in model.graph.walk():
        node.ep = ""  # ONNX Runtime divides a model anew when it loads it
    limits = limits or Limits()
    graphs = list(model.graph.graphs()) if target.takes_subgraphs else [model.graph]
    main, *inside = (DividedSubgraph(graph, *_divided(graph, target, limits, device, maximize)) for graph in graphs)
    return Analysis(model, level, main.partitioning, main.estimate, optimized.gain, tuple(inside))


def _checked_level(source: Path, level: str | None, maximize: bool) -> str:
    """The level, or the one that a source has by default. Raises UsageError if the source or `maximize` excludes it."""
    if level not in (None, *ANALYSIS_LEVELS):
        raise UsageError(f"level {level} is not one of {', '.join(ANALYSIS_LEVELS)}", file=source)
    if is_ort(source):
        if maximize or level not in (None, "disable"):
            hint = "give the .onnx model that it was made from" if maximize else f"leave out level {level}"
            raise UsageError("an .ort file is analyzed as it is", file=source, hint=hint)
        return "disable"
    level = level or "basic"
    if maximize and level not in REWRITABLE_LEVELS:
        raise UsageError(
            f"level {level} cannot be rewritten for a target", hint=f"choose {' or '.join(REWRITABLE_LEVELS)}"
        )
    return level


def _divided(
    graph: Graph, target: Target, limits: Limits, device: DeviceProfile | None, maximized: bool
) -> tuple[Partitioning, Estimate]:
    with guarded(graph, "dividing the graph"):
        partitioning = limit(partition(graph, target), limits)
        if not maximized:
            partitioning = hinted(partitioning)
        return partitioning, estimate(partitioning, device)
