"""Limits on the partitions of a model: their number, their size, and the time that each must save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ortconv.errors import UsageError
from ortconv.ir.graph import Graph
from ortconv.partition.cost import Cost, cost
from ortconv.partition.partitioner import Partition, Partitioning, Verdict, assign, partition
from ortconv.partition.policy import Objection, Target
from ortconv.partition.profile import DeviceProfile
from ortconv.wording import counted, milliseconds


@dataclass(frozen=True, slots=True)
class Limits:
    """Which partitions to keep: the `max_partitions` best of those with at least `min_nodes` nodes.

    `only_worthwhile` also drops partitions that save no time on `device`.
    """

    max_partitions: int | None = None
    min_nodes: int = 1
    only_worthwhile: bool = False
    device: DeviceProfile = field(default_factory=DeviceProfile)

    def __post_init__(self) -> None:
        if self.min_nodes < 1 or (self.max_partitions is not None and self.max_partitions < 0):
            raise UsageError(f"limits cannot be {self.max_partitions} partitions of at least {self.min_nodes} nodes")

    def __bool__(self) -> bool:
        return self.only_worthwhile or self.min_nodes > 1 or self.max_partitions is not None


def limit(partitioning: Partitioning, limits: Limits) -> Partitioning:
    """Remove the partitions that exceed the limits. Their nodes get the reason as an objection."""
    if not limits:
        return partitioning
    costs = {p.name: cost(p, limits.device) for p in partitioning.partitions}
    against = {p.name: reason for p in partitioning.partitions if (reason := below_limits(p, costs[p.name], limits))}
    kept = [p for p in partitioning.partitions if p.name not in against]
    if limits.max_partitions is not None:
        ranked = sorted(kept, key=lambda p: (-costs[p.name].gain, -len(p.nodes)))
        for place, p in enumerate(ranked[limits.max_partitions :], limits.max_partitions + 1):
            message = f"the partition saves {milliseconds(costs[p.name].gain)}, which puts it at place {place}"
            against[p.name] = Objection("max-partitions", f"{message}: the most is {limits.max_partitions}")
        kept = [p for p in kept if p.name not in against]
    return _with_only(partitioning, kept, against)


def divide(graph: Graph, target: Target, limits: Limits | None = None) -> Iterator[Partitioning]:
    """Partition a graph, and its subgraphs if the target supports nodes there, and assign the nodes. Yields each partitioning."""
    for part in graph.graphs() if target.takes_subgraphs else (graph,):
        partitioning = limit(partition(part, target), limits or Limits())
        assign(part, partitioning)
        yield partitioning


def below_limits(p: Partition, estimated: Cost, limits: Limits) -> Objection | None:
    """The objection to a partition that is too small or saves no time; None if it is neither."""
    if len(p.nodes) < limits.min_nodes:
        nodes = counted(len(p.nodes), "node")
        return Objection("min-nodes", f"the partition would have {nodes}: the least is {limits.min_nodes}")
    if limits.only_worthwhile and not estimated.is_worthwhile:
        there = milliseconds(estimated.accelerator_seconds + estimated.copy_seconds)
        message = f"the partition would take {there} on {limits.device.name}"
        copies = f"{milliseconds(estimated.copy_seconds)} of it for copies"
        cpu = f"the CPU takes {milliseconds(estimated.cpu_seconds)}"
        return Objection("not-worthwhile", f"{message}, {copies}: {cpu}")
    return None


def _with_only(partitioning: Partitioning, kept: list[Partition], against: Mapping[str, Objection]) -> Partitioning:
    """The partitioning with some of its partitions. `against` has the objections to the others, by name."""
    place = {p.name: i for i, p in enumerate(kept)}
    verdicts = {}
    for node, verdict in partitioning.verdicts.items():
        if verdict.partition is not None:
            p = partitioning.partitions[verdict.partition]
            verdict = Verdict(node, place[p.name]) if p.name in place else Verdict(node, None, (against[p.name],))
        verdicts[node] = verdict
    return replace(partitioning, partitions=tuple(kept), verdicts=verdicts)
