"""Which nodes of a graph an execution provider takes, in which partitions, and why not the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.partition.nnapi.rules import objections
from ortconv.partition.policy import EP_PREFIXES, Target, gate
from ortconv.partition.reasons import Objection
from ortconv.partition.regions import group_by_wave, is_trivial, region_inputs, region_outputs
from ortconv.partition.units import Unit, units


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that run as one on the accelerator, in topological order of units, and what crosses the border.

    `inputs` includes constants, as ONNX Runtime's NNAPI provider has it.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "nodes": [node_name(n) for n in self.nodes],
            "ops": dict(sorted(Counter(n.op for n in self.nodes).items())),
            "inputs": [v.name for v in self.inputs if v.constant is None],
            "constants": sum(v.constant is not None for v in self.inputs),
            "outputs": [v.name for v in self.outputs],
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a node: the index of its partition, or the objections to it."""

    node: Node
    partition: int | None = None
    objections: tuple[Objection, ...] = ()

    @property
    def taken(self) -> bool:
        return self.partition is not None

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": node_name(self.node),
            "op": self.node.op,
            "domain": self.node.domain,
            "partition": self.partition,
            "objections": [o._asdict() for o in self.objections],
        }


@dataclass(frozen=True)
class Partitioning:
    """The partitions of a graph and a verdict for each of its nodes; nodes inside subgraphs run with their owner."""

    target: Target
    partitions: tuple[Partition, ...] = ()
    verdicts: Mapping[Node, Verdict] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of nodes of the graph, those in subgraphs not counted."""
        return len(self.verdicts)

    @property
    def taken(self) -> int:
        """The number of nodes in partitions."""
        return sum(len(p.nodes) for p in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, in the order of the graph."""
        target = self.target
        return {
            "ep": target.ep_type,
            "feature_level": target.feature_level,
            "stop_ops": list(target.stop_ops),
            "use_nchw": target.use_nchw,
            "nodes": self.total,
            "nodes_taken": self.taken,
            "partitions": [p.to_dict() for p in self.partitions],
            "verdicts": [v.to_dict() for v in self.verdicts.values()],
        }


def node_name(node: Node) -> str:
    """The name of a node, or of its first output where it has none."""
    return node.name or next((v.name for v in node.outputs if v is not None), "")


def partition(graph: Graph, target: Target | None = None) -> Partitioning:
    """Decide for every node of the main graph. The graph is not changed."""
    target = target or Target()
    refused = tuple(gate(graph, target))
    if refused:
        return Partitioning(target, (), {node: Verdict(node, None, refused) for node in graph})
    found = units(graph)
    number = {node: u for u, unit in enumerate(found) for node in unit.nodes}
    judge = _Judge(graph, found, number, target)
    _, groups = group_by_wave([_producers(unit, number) for unit in found], judge.eligible)
    against = judge.against
    partitions: list[Partition] = []
    where: dict[int, int] = {}
    prefix = f"{EP_PREFIXES[target.ep]}_{_fingerprint(graph)}"
    kept = 0
    for group in groups:
        nodes = tuple(node for u in group for node in found[u].nodes)
        if is_trivial(nodes):
            against[group[0]] = (_alone(nodes[0]),)
            continue
        inputs = region_inputs(nodes)
        name = f"{prefix}_{kept}"
        kept += 1
        if all(_is_fixed(v) for v in inputs):
            against.update(dict.fromkeys(group, (_only_constants(len(inputs)),)))
            continue
        where.update(dict.fromkeys(group, len(partitions)))
        partitions.append(Partition(name, nodes, tuple(inputs), tuple(region_outputs(nodes))))
    verdicts = {node: Verdict(node, where.get(number[node]), against.get(number[node], ())) for node in graph}
    return Partitioning(target, tuple(partitions), verdicts)


def assign(graph: Graph, partitioning: Partitioning) -> None:
    """Give the nodes in partitions to the execution provider, and take it from the others that had it."""
    ep = partitioning.target.ep_type
    for node in graph:
        if partitioning.verdicts[node].taken:
            node.ep = ep
        elif node.ep == ep:
            node.ep = ""


class _Judge:
    """Collects the objections to each unit as the groups grow. `against` holds those of the refused units."""

    def __init__(self, graph: Graph, found: Sequence[Unit], number: Mapping[Node, int], target: Target) -> None:
        self.units = found
        self.number = number
        self.target = target
        self.against: dict[int, tuple[Objection, ...]] = {}
        self.stopped_by = _downstream(graph, frozenset(target.stop_ops))

    def eligible(self, u: int, in_group: Callable[[int], bool]) -> bool:
        unit = self.units[u]
        reasons: list[Objection] = []
        if unit.target in self.stopped_by:
            reasons.append(_stopped(unit.target, self.stopped_by[unit.target]))
        for node in unit.nodes:
            if node.ep not in ("", self.target.ep_type):
                reasons.append(Objection("assigned", f"{node.label} is assigned to {node.ep} already"))

        def made_in_group(value: Value) -> bool:
            # Only outputs of targets count: what the Q node of a group makes is not seen as made by the group.
            maker = value.producer
            p = None if maker is None else self.number.get(maker)
            return p is not None and self.units[p].target is maker and in_group(p)

        reasons.extend(objections(unit, self.target, made_in_group))
        if reasons:
            self.against[u] = tuple(reasons)
        return not reasons


def _producers(unit: Unit, number: Mapping[Node, int]) -> list[int]:
    """The unit behind every edge into this one."""
    found = []
    own = number[unit.target]
    for node in unit.nodes:
        for value in (*node.inputs, *captures(node)) if node.subgraphs else node.inputs:
            if value is not None and value.producer is not None:
                p = number.get(value.producer, own)
                if p != own:
                    found.append(p)
    return found


def _downstream(graph: Graph, stop_ops: frozenset[str]) -> dict[Node, Node]:
    """The nodes that are a stop op or depend on one, each with the first stop op found."""
    stopped: dict[Node, Node] = {}
    if not stop_ops:
        return stopped
    for node in graph:
        if node.op in stop_ops:
            stopped[node] = node
        elif stopped:
            reads = (*node.inputs, *captures(node)) if node.subgraphs else node.inputs
            origin = next((stopped[v.producer] for v in reads if v is not None and v.producer in stopped), None)
            if origin is not None:
                stopped[node] = origin
    return stopped


def _stopped(node: Node, origin: Node) -> Objection:
    advice = f"leave {origin.op} out of the stop ops"
    if node is origin:
        return Objection("stop-op", f"{node.op} is a stop op", advice)
    return Objection("stop-op", f"the node is downstream of the stop op {origin.label}", advice)


def _alone(node: Node) -> Objection:
    return Objection("trivial", f"the partition would be 1 {node.op}, which computes nothing")


def _only_constants(count: int) -> Objection:
    return Objection(
        "constant-inputs",
        f"all {count} inputs of the partition are constants: NNAPI needs 1 input that is not",
        "fold the constants",
    )


def _is_fixed(value: Value) -> bool:
    return value.const is not None and not value.is_input


def _fingerprint(graph: Graph) -> int:
    """64 bits that follow from names, types and operators of the graph, the same in every process."""
    digest = blake2b(digest_size=8)
    for value in (*graph.inputs, *graph.outputs):
        digest.update(f"{value.name}:{value.type}\n".encode("utf-8", "surrogateescape"))
    for node in graph:
        names = [v.name if v is not None else "" for v in (*node.inputs, *node.outputs)]
        digest.update(f"{node.domain}:{node.op}:{','.join(names)}\n".encode("utf-8", "surrogateescape"))
    return int.from_bytes(digest.digest(), "big")
