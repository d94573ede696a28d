"""Sizes of free dimensions by search, where meeting one demand after the other ends in demands that contradict each other."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import combinations
from typing import NamedTuple

from ortconv.compare.demands import Demand
from ortconv.compare.sizes import LARGEST_SIZE, Problem, Sizes, behind, demands_for, symbol
from ortconv.ir.graph import Node

WORK = 40_000
"""About how many nodes are inferred before the search ends."""

MOST_TRIED = 1500

LARGEST_PRODUCT = 4096
"""Products of two sizes are split into all pairs of factors up to this."""


class State(NamedTuple):
    """Sizes, how many demands are met before the first that is not, and that demand with its node; None where all are met."""

    sizes: Sizes
    met: int
    unmet: int
    first: tuple[Node, Demand] | None

    @property
    def rank(self) -> tuple[int, int]:
        return -self.met, self.unmet


def repair(problem: Problem, starts: Sequence[Sizes]) -> Sizes | None:
    """Sizes that meet all demands that are known; None where the search finds none.

    The search changes the state that meets most demands in the graph's order. It goes back to another one if that does not help.
    """
    left = min(MOST_TRIED, WORK // max(1, sum(1 for _ in problem.graph.walk())))
    seen: list[Sizes] = []
    heap: list[tuple[tuple[int, int], int, Iterator[Sizes]]] = [((-sys.maxsize, 0), 0, iter(starts))]
    while heap and len(seen) < left:
        sizes = next(heap[0][2], None)
        if sizes is None:
            heappop(heap)
        elif sizes not in seen and _are_possible(problem, sizes):
            seen.append(sizes)
            state = _state(problem, sizes)
            if state.first is None:
                return sizes
            heappush(heap, (state.rank, len(seen), _moves(problem, sizes, *state.first)))
    return None


def _are_possible(problem: Problem, sizes: Sizes) -> bool:
    """Whether dimensions are positive, and elements of targets at least -1. onnx's inference crashes on others."""
    elements = {name for found in problem.targets.values() for name in found}
    return all(size > 0 or (size >= -1 and name in elements) for name, size in sizes.items())


def _state(problem: Problem, sizes: Sizes) -> State:
    met = unmet = 0
    first = None
    for (node, _), demand in demands_for(problem, sizes):
        if not demand.is_met:
            unmet += 1
            first = first or (node, demand)
        elif first is None:
            met += 1
    return State(sizes, met, unmet, first)


def _moves(problem: Problem, sizes: Sizes, node: Node, demand: Demand) -> Iterator[Sizes]:
    """Other sizes that may meet a demand: of one dimension, of another that makes up for it, or of two that share a product."""
    names = behind(problem, node)
    single = [(name, size) for name in names for size in _targets(problem, sizes, name, demand)]
    for name, size in single:
        yield {**sizes, name: size}
    for name, size in single:
        for other in (n for n in problem.free if n != name and sizes[n] * sizes[name] % size == 0):
            yield {**sizes, name: size, other: sizes[other] * sizes[name] // size}
    for a, b in combinations(names, 2):
        for product in dict.fromkeys((_scaled(sizes[a] * sizes[b], demand.want, demand.have), sizes[a] * sizes[b])):
            for factor in _factors(product):
                yield {**sizes, a: factor, b: product // factor}


def _targets(problem: Problem, sizes: Sizes, name: str, demand: Demand) -> list[int]:
    """What one dimension may be for a demand to be met: where it lies at the place, is a factor of the size, or a summand.

    A 0, by which a Reshape keeps a dimension, may also be -1, by which it chooses one, and both may be the wanted size.
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
    """number * times / over where that is whole, else 0."""
    return number * times // over if over > 0 and number * times % over == 0 else 0


def _factors(product: int) -> Iterator[int]:
    return (n for n in range(1, product + 1) if product % n == 0) if 0 < product <= LARGEST_PRODUCT else iter(())
