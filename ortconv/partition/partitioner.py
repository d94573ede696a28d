"""Partitioning: groups the nodes that an execution provider supports into partitions, and collects the objections to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from typing import Any

from ortconv.errors import UsageError, nearest
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.order import sorted_by
from ortconv.ir.schema import schema
from ortconv.ir.units import NodeUnit
from ortconv.partition.nnapi.rules import ROWS
from ortconv.partition.policy import MIN_OPSET, NUMBERS, RUNTIME, Objection, Provider, Target, gate
from ortconv.partition.regions import group_by_wave, region_inputs, region_outputs
from ortconv.partition.units import plain_unit, units
from ortconv.public import public

NEWEST = 1 << 16
"""A number above every opset version."""
ONLY_CONSTANTS = "constant-inputs"


@dataclass(frozen=True, slots=True)
class Partition:
    """Units that run as one model on the accelerator, in topological order.

    `inputs` and `outputs` cross the border of the partition. `inputs` includes constants if the provider counts them, as NNAPI
    does.
    """

    name: str
    units: tuple[NodeUnit, ...] = field(repr=False, compare=False)
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", nodes_of(self.units))

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
    """The decision about a node: the index of its partition, or the objections to it."""

    node: Node
    partition: int | None = None
    objections: tuple[Objection, ...] = ()

    @property
    def taken(self) -> bool:
        return self.partition is not None

    @property
    def fails(self) -> bool:
        """True if ONNX Runtime's provider accepts the node all the same, and its session or run then fails."""
        return {o.rule for o in self.objections} == {RUNTIME}

    @property
    def differs(self) -> bool:
        """True if ONNX Runtime's provider accepts the node all the same, and then computes other results."""
        return {o.rule for o in self.objections} == {NUMBERS}

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
    """The partitions of a graph and a verdict for each of its nodes; nodes in subgraphs run with their owner."""

    target: Target
    partitions: tuple[Partition, ...] = ()
    verdicts: Mapping[Node, Verdict] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Partitioning for {self.target.label}: {len(self.partitions)} partitions, {self.taken} of {self.total} nodes>"

    @property
    def total(self) -> int:
        """Number of nodes in the graph, without those in subgraphs."""
        return len(self.verdicts)

    @property
    def taken(self) -> int:
        """Number of nodes in partitions."""
        return sum(len(p.nodes) for p in self.partitions)

    @property
    def failing(self) -> list[Verdict]:
        """The verdicts on nodes that the provider accepts, and on which its session or run then fails."""
        return [verdict for verdict in self.verdicts.values() if verdict.fails]

    @property
    def coverage(self) -> float:
        """Nodes in partitions as a percentage of all nodes; 0 for a graph without nodes."""
        return 100.0 * self.taken / self.total if self.total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The partitioning as JSON values, in the order of the graph."""
        target = self.target
        return {
            "ep": target.ep_type,
            **target.options,
            "nodes": self.total,
            "nodes_taken": self.taken,
            "partitions": [p.to_dict() for p in self.partitions],
            "verdicts": [v.to_dict() for v in self.verdicts.values()],
        }


def nodes_of(units: Iterable[NodeUnit]) -> tuple[Node, ...]:
    return tuple(node for unit in units for node in unit.nodes)


def node_name(node: Node) -> str:
    """The name of a node, or of its first output if it has none."""
    return node.name or next((v.name for v in node.outputs if v is not None), "")


@public
def partition(graph: Graph, target: Target | None = None, *, anew: bool = False) -> Partitioning:
    """Decide about every node of a graph, without those in its subgraphs. The graph is not changed.

    Nodes assigned to another provider are refused, unless `anew` is set: ONNX Runtime ignores the providers stored in a file when
    it loads it.
    """
    target = target or Target()
    refused = tuple(gate(graph, target))
    if refused:
        return Partitioning(target, (), {node: Verdict(node, None, refused) for node in graph})
    work = Grouping(graph, target, anew=anew)
    against = dict(work.against)
    partitions: list[Partition] = []
    where: dict[int, int] = {}
    provider = target.provider
    prefix = f"{provider.prefix}_{_fingerprint(graph)}"
    named = 0
    for group in work.groups():
        refusal = work.refusal(group)
        if refusal is not None:
            against.update(dict.fromkeys(group, (refusal,)))
            named += refusal.rule == ONLY_CONSTANTS  # ONNX Runtime drops the partition after it has named it
            continue
        nodes = work.nodes(group)
        inputs = [v for v in region_inputs(nodes) if provider.reads_constants or not v.is_constant]
        where.update(dict.fromkeys(group, len(partitions)))
        outputs = tuple(region_outputs(nodes))
        partitions.append(Partition(f"{prefix}_{named}", work.members(group), tuple(inputs), outputs))
        named += 1
    number = work.number
    verdicts = {node: Verdict(node, where.get(number[node]), against.get(number[node], ())) for node in graph}
    return Partitioning(target, tuple(partitions), verdicts)


@public
def assign(graph: Graph, partitioning: Partitioning) -> None:
    """Set `ep` of the nodes in partitions to the target's provider, and clear it on other nodes that had this provider."""
    ep = partitioning.target.ep_type
    for node in graph:
        if partitioning.verdicts[node].taken:
            node.ep = ep
        elif node.ep == ep:
            node.ep = ""


class Grouping:
    """The units of a graph, judged once; they can be grouped many times.

    `against` holds the objections to the refused units, and `number` the unit of each node.
    """

    def __init__(self, graph: Graph, target: Target, *, anew: bool = False) -> None:
        provider = target.provider
        self.anew = anew
        self.units = units(graph) if provider.qdq_units else list(map(plain_unit, graph))
        self._number()
        if any(p > u for u, before in enumerate(self.producers) for p in before):
            # The order of the targets is no topological one if the scale of a Q node is computed after its target.
            self.units = [self.units[u] for u in sorted_by([set(before) for before in self.producers])]
            self._number()
        self.target = target
        self.rules = import_module(provider.rules).objections
        check_stop_ops(graph, target.stop_ops)
        self.stopped_by = _downstream(graph, frozenset(target.stop_ops))
        self.dependent: set[int] = set()
        """Units whose judgment depends on the members of the growing group, and so can change."""
        self.against: dict[int, tuple[Objection, ...]] = {}
        self._groups = group_by_wave(self.producers, self._judge)

    def _number(self) -> None:
        self.number = {node: u for u, unit in enumerate(self.units) for node in unit.nodes}
        self.producers = [producing_units(unit, self.number) for unit in self.units]

    def groups(self, supposed: Collection[int] = ()) -> list[list[int]]:
        """The groups of units, those too small for a partition included. `supposed` units count as supported."""
        if not supposed:
            return self._groups

        def eligible(u: int, in_group: Callable[[int], bool]) -> bool:
            if u in supposed:
                return True
            return not self.objections(u, in_group) if u in self.dependent else u not in self.against

        return group_by_wave(self.producers, eligible)

    def refusal(self, group: Sequence[int]) -> Objection | None:
        """The objection to a group that is too trivial, or reads only constants although the provider counts these as inputs."""
        provider = self.target.provider
        nodes = self.nodes(group)
        if is_trivial(nodes, provider):
            return _trivial(nodes)
        if not provider.reads_constants:
            return None
        inside = set(group)
        read = (v for node in nodes for v in node.present_reads if not v.is_constant)
        if any(v.producer is None or self.number.get(v.producer) not in inside for v in read):
            return None
        message = f"all {len(region_inputs(nodes))} inputs of the partition are constants"
        return Objection(ONLY_CONSTANTS, f"{message}: NNAPI needs 1 input that is not", "fold the constants")

    def members(self, group: Iterable[int]) -> tuple[NodeUnit, ...]:
        return tuple(self.units[u] for u in group)

    def nodes(self, group: Iterable[int]) -> tuple[Node, ...]:
        return nodes_of(self.members(group))

    def objections(self, u: int, in_group: Callable[[int], bool]) -> tuple[Objection, ...]:
        """All objections to a unit while a group grows."""
        unit = self.units[u]
        reasons: list[Objection] = []
        if unit.target in self.stopped_by:
            reasons.append(_stopped(unit.target, self.stopped_by[unit.target]))
        if unit.op in self.target.refused_ops:
            reasons.append(Objection("device", f"the driver of the device does not run {unit.op}"))
        for node in unit.nodes:
            if not self.anew and node.ep not in ("", self.target.ep_type):
                reasons.append(Objection("assigned", f"{node.label} is assigned to {node.ep} already"))

        def made_in_group(value: Value) -> bool:
            # Only outputs of targets count: what the Q node of a group makes is not seen as made by the group.
            self.dependent.add(u)
            maker = value.producer
            p = None if maker is None else self.number.get(maker)
            return p is not None and self.units[p].target is maker and in_group(p)

        reasons.extend(self.rules(unit, self.target, made_in_group))
        return tuple(reasons)

    def _judge(self, u: int, in_group: Callable[[int], bool]) -> bool:
        reasons = self.objections(u, in_group)
        if reasons:
            self.against[u] = reasons
        return not reasons


def producing_units(unit: NodeUnit, number: Mapping[Node, int]) -> list[int]:
    """The producing unit of each edge into a unit. `number` is the unit of each node."""
    own = number[unit.target]
    makers = (value.producer for node in unit.nodes for value in node.present_reads)
    found = (number.get(maker, own) for maker in makers if maker is not None)
    return [p for p in found if p != own]


def is_operator(op: str) -> bool:
    """True if ONNX or ONNX Runtime has an operator of this name."""
    return any(schema(domain, op, opset) for domain in ("", MICROSOFT) for opset in (MIN_OPSET, NEWEST))


def check_stop_ops(graph: Graph, stop_ops: Iterable[str]) -> None:
    """Raise UsageError, with the nearest name, for a stop op that is no operator of ONNX, ONNX Runtime or the graph."""
    for op in stop_ops:
        if is_operator(op):
            continue
        used = {node.op for node in graph.walk()}
        if op not in used:
            near = nearest(op, sorted({*used, *ROWS}), 1, 0.4)
            hint = near or "stop ops are operator types such as Conv, without a domain"
            raise UsageError(f"there is no operator '{op}' to stop at", hint=hint)


def _downstream(graph: Graph, stop_ops: frozenset[str]) -> dict[Node, Node]:
    """The nodes that are a stop op or depend on one, each mapped to the first stop op found."""
    stopped: dict[Node, Node] = {}
    for node in graph:
        if node.op in stop_ops:
            stopped[node] = node
        elif stopped:
            origin = next((stopped[v.producer] for v in node.present_reads if v.producer in stopped), None)
            if origin is not None:
                stopped[node] = origin
    return stopped


def _stopped(node: Node, origin: Node) -> Objection:
    advice = f"leave {origin.op} out of the stop ops"
    if node is origin:
        return Objection("stop-op", f"{node.op} is a stop op", advice)
    return Objection("stop-op", f"the node is downstream of the stop op {origin.label}", advice)


def _trivial(nodes: Sequence[Node]) -> Objection:
    ops = ", ".join(dict.fromkeys(n.op for n in nodes))
    why = "which computes nothing" if len(nodes) == 1 else "which compute next to nothing"
    return Objection("trivial", f"the partition would be {len(nodes)} {ops}, {why}")


def is_trivial(nodes: Sequence[Node], provider: Provider) -> bool:
    """True for nodes that are too trivial for a partition."""
    return (len(nodes) == 1 and nodes[0].op in provider.alone) or all(n.op in provider.trivial for n in nodes)


def _fingerprint(graph: Graph) -> int:
    """A 64-bit hash of names, types and operators of the graph, the same in every process."""
    digest = blake2b(digest_size=8)
    for value in (*graph.inputs, *graph.outputs):
        digest.update(f"{value.name}:{value.type}\n".encode("utf-8", "surrogateescape"))
    for node in graph:
        names = [v.name if v is not None else "" for v in (*node.inputs, *node.outputs)]
        digest.update(f"{node.domain}:{node.op}:{','.join(names)}\n".encode("utf-8", "surrogateescape"))
    return int.from_bytes(digest.digest(), "big")
