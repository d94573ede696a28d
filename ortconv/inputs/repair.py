"""Searches for sizes of free dimensions, for models in which meeting the demands one by one leads to contradictions."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush
from itertools import product

from ortconv.inputs.demands import Demand
from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.sizes import LARGEST_SIZE, DemandKey, demands_for, free_dims_behind, solve, symbol
from ortconv.ir.graph import Node

WORK = 24_000
"""Approximate limit on the number of nodes that are inferred before one search ends."""

MOST_TRIED = 900

SMALL = range(1, 17)
"""Sizes tried for every dimension that a node with an unmet demand depends on."""


def repair(problem: Problem, starts: Sequence[Sizes]) -> Sizes | None:
    """Sizes that meet all known demands; None if no search finds any. The second also makes moves that no demand implies."""
    found = (_search(problem, starts, in_pairs=in_pairs) for in_pairs in (False, True))
    return next(filter(None, found), None)


def _search(problem: Problem, starts: Sequence[Sizes], *, in_pairs: bool) -> Sizes | None:
    """The search continues from the state that meets most demands in the graph's order. If that does not help, it goes
    back to another state.
    """
    left = min(MOST_TRIED, WORK // max(1, sum(1 for _ in problem.graph.walk())))
    seen: set[frozenset[tuple[str, int]]] = set()
    empty = _always_empty(problem, starts)
    heap: list[tuple[tuple[int, int], int, Iterator[Sizes]]] = [((-sys.maxsize, 0), 0, iter(starts))]
    while heap and len(seen) < left:
        sizes = next(heap[0][2], None)
        if sizes is None:
            heappop(heap)
        elif (key := frozenset(sizes.items())) not in seen and _are_possible(problem, sizes):
            seen.add(key)
            rank, unmet = _first_unmet(problem, sizes, empty)
            if unmet is None:
                return sizes
            heappush(heap, (rank, len(seen), _moves(problem, sizes, *unmet, in_pairs)))
    return None


def _are_possible(problem: Problem, sizes: Sizes) -> bool:
    """True if dimensions are positive, and elements of targets at least -1. Other sizes crash onnx's inference."""
    elements = {name for found in problem.targets.values() for name in found}
    return all(size > 0 or (size >= -1 and name in elements) for name, size in sizes.items())


def _always_empty(problem: Problem, starts: Sequence[Sizes]) -> set[DemandKey]:
    """The demands for results that are not empty which no start meets: these results are empty with all sizes."""
    demands = (demands_for(problem, sizes) for sizes in starts)
    unmet = [
        {key for key, one in found if key[1] < 0 and one.kind == "at least" and not one.is_met} for found in demands
    ]
    return set.intersection(*unmet) if unmet else set()


def _first_unmet(
    problem: Problem, sizes: Sizes, ignored: Collection[DemandKey]
) -> tuple[tuple[int, int], tuple[Node, Demand] | None]:
    """The rank of sizes, and the first unmet demand with its node; None if all are met. The rank is lower if more demands are met
    before that one or, with equally many, if fewer are unmet.
    """
    met = unmet = 0
    first = None
    for key, demand in demands_for(problem, sizes):
        if not demand.is_met and key not in ignored:
            unmet += 1
            first = first or (key[0], demand)
        elif first is None:
            met += 1
    return (-met, unmet), first


def _moves(problem: Problem, sizes: Sizes, node: Node, demand: Demand, in_pairs: bool) -> Iterator[Sizes]:
    """Other sizes that may meet a demand: one dimension changes as the demand implies, then to any small size, then together with
    all that its new size demands; with `in_pairs`, at last together with a second dimension, to any small size.
    """
    names = free_dims_behind(problem, node)
    single = [(name, size) for name in names for size in _targets(problem, sizes, name, demand)]
    for name, size in (*single, *product(names, SMALL)):
        yield {**sizes, name: size}
    for name, size in single:
        yield solve(problem, {**sizes, name: size}, frozenset((name,))).sizes
    for (name, size), other, small in product(single, names, SMALL) if in_pairs else ():
        if other != name:
            yield {**sizes, name: size, other: small}


def _targets(problem: Problem, sizes: Sizes, name: str, demand: Demand) -> list[int]:
    """Sizes of one dimension that may meet a demand: as the dimension at the demanded place, as a factor of the size,
    or as a summand.

    A 0, with which a Reshape keeps a dimension, may also be -1, with which the Reshape infers one; both may also be the
    wanted size.
    """
    size, have, want = sizes[name], demand.have, demand.want
    found = [other for place, other in ((demand.place, want), (demand.partner, have)) if symbol(problem, place) == name]
    if demand.kind == "multiple" and want:
        factor = want // math.gcd(have, want)
        found += [factor, size * factor, want]
    found += [want] if size <= 0 else []
    found += [_scaled(size, want, have), _scaled(size, have, want), size + want - have, size + have - want]
    fitting = [n for n in dict.fromkeys(found) if 0 < n <= LARGEST_SIZE and n != size]
    return fitting if size else [-1, *fitting]


def _scaled(number: int, times: int, over: int) -> int:
    """number * times / over if that is an integer, else 0."""
    return number * times // over if over > 0 and number * times % over == 0 else 0
