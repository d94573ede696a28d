"""Finds sizes of free dimensions that meet the demands of a graph, without running it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ortconv.inputs.demands import Demand, Extent, Numbers, demands
from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.shapes import infer_shapes, shapes_of_any_run
from ortconv.ir.disjoint import DisjointSets
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import LARGEST_RANK

ROUNDS = 24
"""Maximum number of changes of sizes to meet demands; the remaining demands are left to trial."""

STEPS = (1, 2, 4, 8, 16, 32)
"""Changes of a dimension that are tried until a size that depends on it changes: strides may be larger than 1."""

LARGEST_SIZE = 1 << 20
"""Upper bound of free dimensions."""


class Solution:
    """Sizes, and the resulting shapes. Sizes in `implied` are determined by the graph. `is_met` is True if all known
    demands are met.
    """

    def __init__(self, sizes: Sizes, implied: Iterable[str]) -> None:
        self.sizes = dict(sizes)
        self.implied = set(implied)
        self.shapes: dict[Value, Numbers] = {}
        self.is_met = False


def solve(problem: Problem, sizes: Sizes, implied: frozenset[str] = frozenset()) -> Solution:
    """Change sizes until every demand is met, or no change helps."""
    found = Solution(sizes, implied)
    hopeless: set[DemandKey] = set()
    for _ in range(ROUNDS):
        found.shapes = infer_shapes(problem, found.sizes)
        open_demands = ((key, d) for key, d in _all_demands(problem, found.sizes, found.shapes) if not d.is_met)
        key, demand = next(((k, d) for k, d in open_demands if k not in hopeless), (None, None))
        if key is None or demand is None:
            found.is_met = not hopeless
            break
        if not (_set_symbol(problem, found, demand) or _search(problem, found, key, demand)):
            hopeless.add(key)
    return found


DemandKey = tuple[Node, int]


def demands_for(problem: Problem, sizes: Mapping[str, int]) -> Iterator[tuple[DemandKey, Demand]]:
    """All demands with these sizes, in the graph's order."""
    return _all_demands(problem, sizes, infer_shapes(problem, sizes))


def _all_demands(
    problem: Problem, sizes: Mapping[str, int], shapes: Mapping[Value, Numbers]
) -> Iterator[tuple[DemandKey, Demand]]:
    """The demands of all nodes; in addition, inner values must have their declared shapes, and must not be empty unless an input
    of their node is.
    """
    held = problem.held(sizes)
    for node in problem.graph.walk():
        for i, demand in enumerate(demands(node, shapes, held)):
            yield (node, i), demand
        least = 0 if any(0 in shapes.get(value, ()) for value in node.present_reads) else 1
        for out, value in enumerate(node.outputs):
            if value is not None and value in shapes:
                for axis, demand in _declared_demands(value, shapes[value], least):
                    yield (node, -1 - axis - LARGEST_RANK * out), demand


def _declared_demands(value: Value, shape: Numbers, least: int) -> Iterator[tuple[int, Demand]]:
    """For each known dimension: that it equals the declared one, or else is at least `least`."""
    declared = value.shape if value.shape is not None and len(value.shape) == len(shape) else ()
    for axis, (have, want) in enumerate(zip(shape, declared, strict=False)):
        if have is not None:
            place = Extent(value, axis)
            yield axis, Demand(place, have, want) if isinstance(want, int) else Demand(place, have, least, "at least")


def symbol(problem: Problem, place: Extent | None) -> str | None:
    """The free dimension at a place; None if its name is not known there."""
    if place is None or place.axis is None:
        return None
    named = problem.names(place.value)
    if not -len(named) <= place.axis < len(named):
        return None
    dim = named[place.axis]
    return dim if isinstance(dim, str) and dim in problem.free else None


def _set_symbol(problem: Problem, found: Solution, demand: Demand) -> bool:
    for place, wanted in ((demand.place, demand.want), (demand.partner, demand.have)):
        name = symbol(problem, place)
        if name is None or name in found.implied:
            continue
        if demand.kind == "multiple":
            wanted = -(-found.sizes[name] // demand.want) * demand.want
        if 0 < wanted <= LARGEST_SIZE:
            found.sizes[name] = wanted
            if demand.kind == "equal":
                found.implied.add(name)
            return True
    return False


def _search(problem: Problem, found: Solution, key: DemandKey, demand: Demand) -> bool:
    """Find a free dimension that affects the demanded size, and its size with which the demand is met. Returns True if found.

    Dimensions that must be equal change together.
    """
    equal = _equal_names(problem, found)
    for name in problem.free:
        if name in found.implied:
            continue
        names, size = equal[name], found.sizes[name]
        gap = demand.have - demand.want
        trial, last = size + max(1, size), demand
        for _ in range(8):
            tried = demands_for(problem, found.sizes | dict.fromkeys(names, trial))
            again = next((one for other, one in tried if other == key), None)
            if again is None or (again.have, again.want) == (last.have, last.want):
                break
            if again.is_met:
                found.sizes |= dict.fromkeys(names, trial)
                if demand.kind == "equal":
                    found.implied.update(names)
                return True
            moved = (again.have - again.want) - gap
            if demand.kind != "equal":
                size, trial = trial, trial + (1 if demand.kind == "multiple" else trial)
            elif moved == 0:
                break
            else:
                slope = moved / (trial - size)
                size, gap, trial = trial, gap + moved, max(1, round(trial - (gap + moved) / slope))
            last = again
            if trial == size or trial > LARGEST_SIZE:
                break
    return demand.kind == "multiple" and _align(problem, found, key, demand, equal)


def _align(
    problem: Problem, found: Solution, key: DemandKey, demand: Demand, equal: Mapping[str, Collection[str]]
) -> bool:
    """Enlarge a free dimension, if possible no batch, so that the demanded size becomes a multiple. The size must grow evenly with
    the dimension, as behind convolutions without padding. Returns True if there is such a dimension.
    """
    for name in sorted(problem.free, key=problem.batches.__contains__):
        names, size = equal[name], found.sizes[name]
        for step in STEPS if name not in found.implied else ():
            tried = demands_for(problem, found.sizes | dict.fromkeys(names, size + step))
            have = next((one.have for other, one in tried if other == key and one.want == demand.want), demand.have)
            counts = range(1, min(demand.want, LARGEST_SIZE // step) + 1) if have != demand.have else ()
            fitting = (n for n in counts if (demand.have + (have - demand.have) * n) % demand.want == 0)
            if (count := next(fitting, None)) is not None:
                found.sizes |= dict.fromkeys(names, size + step * count)
                return True
            if have != demand.have:
                break
    return False


def _equal_names(problem: Problem, found: Solution) -> dict[str, set[str]]:
    """For each free dimension, all that must be equal to it, itself included."""
    classes = DisjointSets(problem.free)
    for _, demand in _all_demands(problem, found.sizes, found.shapes):
        one, other = symbol(problem, demand.place), symbol(problem, demand.partner)
        if demand.kind == "equal" and one is not None and other is not None:
            classes.join(one, other)
    return {name: set(names) for names in classes.sets() for name in names}


def is_solved(problem: Problem, sizes: Sizes) -> bool:
    """True if these sizes meet all known demands."""
    return all(d.is_met for _, d in demands_for(problem, sizes))


def can_be_met(problem: Problem) -> bool:
    """False if sizes that are the same with all inputs contradict each other: then no inputs help.

    Nodes of subgraphs may never run, the bodies of Loop and Scan may declare wrong shapes, the last part of a Split may be
    smaller, and a size of 1 may broadcast.
    """
    shapes = shapes_of_any_run(problem.graph)
    certain = (node for node in problem.graph if not node.domain and node.op not in ("Loop", "Scan", "Split"))
    found = (demand for node in certain for demand in demands(node, shapes))
    return all(d.is_met or (d.partner is not None and 1 in (d.have, d.want)) for d in found)


def free_dims_behind(problem: Problem, node: Node) -> list[str]:
    """The free dimensions of the inputs that a node depends on, the nearest first."""
    nodes = {node: None}
    found: dict[str | int, None] = {}
    near = [node]
    for current in near:
        values = current.present_reads
        for value in values:
            found |= dict.fromkeys((*problem.shapes.get(value, ()), *problem.targets.get(value, ())))
        fresh = dict.fromkeys(v.producer for v in values if v.producer is not None and v.producer not in nodes)
        nodes |= fresh
        near += fresh
    return [str(name) for name in found if name in problem.free]
