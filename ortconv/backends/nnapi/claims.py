"""The groups of nodes that NNAPI gets: the provider's partitions without units that the NNAPI runtime refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ortconv.backends.nnapi.lower import Draft, Refuse, RefusedError
from ortconv.ir.graph import Graph, Node
from ortconv.ir.units import NodeUnit
from ortconv.nnapi.tracing.timing import mark
from ortconv.partition import Target, partition
from ortconv.partition.partitioner import is_trivial, nodes_of, producing_units
from ortconv.partition.regions import group_by_wave
from ortconv.runtime.backend import Claim, Region
from ortconv.runtime.placement import make_region

OLDEST_WITH_EMPTY = 29
"""The first feature level at which a tensor may have no elements."""


def claim(graph: Graph, target: Target, refuse: Refuse | None = None) -> Claim:
    """The groups of nodes that become models, and the reason against each other node."""
    found = partition(graph, target, anew=True)
    refused = {node: "; ".join(o.message for o in v.objections) for node, v in found.verdicts.items() if not v.taken}
    waiting = [part.units for part in reversed(found.partitions)]
    groups = []
    while waiting:
        units = waiting.pop()
        reasons = refusals(region_of(graph, units), target.feature_level, target.use_nchw, refuse)
        refused |= reasons
        if not reasons:
            groups.append(units)
            continue
        for group in reversed(_regrouped(units, reasons)):
            nodes = nodes_of(group)
            if is_trivial(nodes, target.provider):
                refused |= dict.fromkeys(nodes, "what NNAPI leaves of the partition is not worth a model")
            else:
                waiting.append(group)
    return Claim(tuple(groups), refused)


def region_of(graph: Graph, units: Sequence[NodeUnit]) -> Region:
    return make_region(graph, nodes_of(units))._replace(units=tuple(units))


@mark("LA", "PP", "draft")
def refusals(region: Region, level: int, nchw: bool, refuse: Refuse | None = None) -> dict[Node, str]:
    """The nodes that the runtime refuses at once, with reasons. Without them, it may refuse more."""
    empty = dict(_cannot_be_empty(region, level))
    if empty:
        return empty
    draft = Draft(region, level, nchw)
    refused = {node: f"NNAPI cannot be given it: {one.reason}" for one in _refused(draft) for node in one.nodes}
    if refused:
        return refused
    found = list(draft.without_elements())
    if not found and refuse is not None:
        found = list(draft.refused_by(refuse))
    return {node: reason for unit, reason in found for node in unit.nodes}


def _refused(draft: Draft) -> Sequence[RefusedError]:
    """The errors of all refused units of a draft. If there are none, the error of the whole model, if NNAPI refuses it."""
    if not draft.refused:
        try:
            draft.finished(to_run=False)
        except RefusedError as error:
            return [error]
    return draft.refused


def _cannot_be_empty(region: Region, level: int) -> Iterator[tuple[Node, str]]:
    """Nodes with a tensor without elements that NNAPI cannot represent. Below level 29 this is any tensor; from then on only inputs
    of the model, since NNAPI reads a dimension of 0 as unknown until an operation writes the tensor.
    """
    is_old = level < OLDEST_WITH_EMPTY
    why = f"knows no such tensors below level {OLDEST_WITH_EMPTY}" if is_old else "cannot be fed it"
    fed = set(region.inputs)
    for unit in region.units:
        values = (v for node in unit.nodes for v in (*node.present_inputs, *node.present_outputs))
        empty = [v.name for v in values if 0 in (v.shape or ()) and v.constant is None and (is_old or v in fed)]
        if empty:
            yield from dict.fromkeys(unit.nodes, f"'{empty[0]}' has no elements, and NNAPI {why}").items()


def _regrouped(members: Sequence[NodeUnit], refused: Collection[Node]) -> list[tuple[NodeUnit, ...]]:
    """The groups that remain of a partition without the units of refused nodes. No path leads from a group back into it."""
    number = {node: u for u, unit in enumerate(members) for node in unit.nodes}
    before = [producing_units(unit, number) for unit in members]
    groups = group_by_wave(before, lambda u, in_group: members[u].target not in refused)
    return [tuple(members[u] for u in group) for group in groups if group]
