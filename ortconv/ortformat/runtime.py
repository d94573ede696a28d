"""Encodes and checks saved fusions (the format's runtime optimizations) in an .ort file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ortconv.errors import FormatError, GraphError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.model import Arity, SavedFusion
from ortconv.ortformat.emit import Emitter

if TYPE_CHECKING:
    from ortconv.ortformat.decode import Record

NO_NODE = 0xFFFFFFFF
"""The index that represents an absent optional node."""

MOST_MENTIONS = 8
"""Maximum number of mentions in saved fusions per node of a graph, on average."""


def by_graph(saved: Iterable[SavedFusion]) -> dict[Graph, list[SavedFusion]]:
    """Saved fusions by graph, without those that refer to removed nodes."""
    found: dict[Graph, list[SavedFusion]] = {}
    for fusion in saved:
        graph = fusion.target.graph
        if graph is not None and all(node is None or node.graph is graph for node in fusion.nodes):
            found.setdefault(graph, []).append(fusion)
    return found


def emit(out: Emitter, saved: Iterable[SavedFusion], order: Mapping[Node, int]) -> tuple[int, int]:
    """Write the RuntimeOptimizations table of one graph. `order` maps its nodes to indices. Return the table's index and its
    verifier visits.
    """
    by_optimizer: dict[str, list[int]] = {}
    for fusion in sorted(saved, key=lambda fusion: fusion.optimizer):
        by_optimizer.setdefault(fusion.optimizer, []).append(_emit_record(out, fusion, order))
    entry = out.shape("RuntimeOptimizationRecordContainerEntry", "optimizer_name", "runtime_optimization_records")
    entries = [out.table(entry, out.string(name), out.references(records)) for name, records in by_optimizer.items()]
    table = out.table(out.shape("RuntimeOptimizations", "records"), out.references(entries))
    return table, 1 + len(entries) + 2 * sum(map(len, by_optimizer.values()))


def _emit_record(out: Emitter, fusion: SavedFusion, order: Mapping[Node, int]) -> int:
    indices = [NO_NODE if node is None else order[node] for node in fusion.nodes]
    fields = {"node_indices": out.scalars("I", indices), "num_inputs": fusion.inputs.formal}
    fields["num_outputs"] = fusion.outputs.formal
    sides = {"input": fusion.inputs.variadic, "output": fusion.outputs.variadic}
    variadic = {side: count for side, count in sides.items() if count is not None}
    fields |= {f"has_variadic_{side}": 1 for side in variadic}
    fields |= {f"num_variadic_{side}s": count for side, count in variadic.items()}
    nodes = out.table(out.shape("NodesToOptimizeIndices", *fields), *fields.values())
    record = out.shape("RuntimeOptimizationRecord", "action_id", "nodes_to_optimize_indices", "produced_op_ids")
    produced = out.pooled_references(tuple(out.string(op_id) for op_id in fusion.produced))
    return out.table(record, out.string(fusion.action), nodes, produced)


def read(graph: Record, nodes: Mapping[int, Node]) -> list[SavedFusion]:
    """The saved fusions of a graph that has passed `check`."""
    return [
        SavedFusion(
            optimizer,
            record.action_id,
            tuple(None if i == NO_NODE else nodes[i] for i in group.node_indices),
            _arity(group, "input"),
            _arity(group, "output"),
            tuple(record.produced_op_ids or ()),
        )
        for optimizer, record in records(graph)
        for group in [record.nodes_to_optimize_indices]
    ]


def records(graph: Record) -> Iterator[tuple[str, Record]]:
    """Each RuntimeOptimizationRecord of a graph, with the name of its optimizer."""
    saved = graph.runtime_optimizations
    for entry in (saved.records or ()) if saved is not None else ():
        for record in entry.runtime_optimization_records or ():
            yield entry.optimizer_name, record


def check(graph: Record, known: Collection[int], where: str) -> None:
    """Raise FormatError or GraphError if a saved fusion is incomplete or does not fit the nodes of its graph."""
    _check_names(graph, where)
    mentions = 0
    for number, (optimizer, record) in enumerate(records(graph)):
        what = f"{where}: saved optimization {number}, '{record.action_id}' of '{optimizer}'"
        group = record.nodes_to_optimize_indices
        if record.action_id is None or group is None or group.node_indices is None:
            raise FormatError(f"{what}: its action_id or its node_indices are missing")
        mentions += len(group.node_indices)
        if mentions > MOST_MENTIONS * len(known):
            raise GraphError(f"{what}: {mentions} mentions of nodes are too many for {len(known)} nodes")
        _check_nodes(group, known, what)
        _check_produced(record.produced_op_ids or (), len(group.node_indices), what)


def _check_names(graph: Record, where: str) -> None:
    saved = graph.runtime_optimizations
    names = Counter(entry.optimizer_name for entry in (saved.records or ())) if saved is not None else Counter()
    name, count = max(names.items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        raise GraphError(f"{where}: the saved optimizations of '{name}' are given twice")


def _check_nodes(group: Record, known: Collection[int], what: str) -> None:
    for side in ("input", "output"):
        formal, variadic = getattr(group, f"num_{side}s"), getattr(group, f"num_variadic_{side}s")
        if getattr(group, f"has_variadic_{side}") and not (formal and variadic):
            raise GraphError(f"{what}: it has {formal} {side}s, the last one for {variadic} nodes")
    before, behind = _arity(group, "input").actual, _arity(group, "output").actual
    found = len(group.node_indices)
    if found - before - behind - 1 not in (0, 1):
        raise GraphError(f"{what}: {found} node_indices are not {before}, a target, {behind} and at most one more")
    if group.node_indices[before] == NO_NODE:
        raise GraphError(f"{what}: it has no target")
    _check_indices([i for i in group.node_indices if i != NO_NODE], known, what)


def _check_indices(indices: Sequence[int], known: Collection[int], what: str) -> None:
    unknown = next((i for i in indices if i not in known), None)
    if unknown is not None:
        raise GraphError(f"{what}: node {unknown} does not exist")
    if len(set(indices)) != len(indices):
        raise GraphError(f"{what}: a node is given twice")


def _check_produced(produced: Sequence[str], most: int, what: str) -> None:
    if len(produced) > most:
        raise GraphError(f"{what}: it makes {len(produced)} nodes of {most}")
    for op_id in produced:
        parts = op_id.rsplit(":", 2)
        if len(parts) != 3 or not parts[1] or not (parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 10):
            raise GraphError(f"{what}: '{op_id[:80]}' is not domain:operator:since_version")


def _arity(group: Record, side: str) -> Arity:
    variadic = getattr(group, f"num_variadic_{side}s") if getattr(group, f"has_variadic_{side}") else None
    return Arity(getattr(group, f"num_{side}s"), variadic)
