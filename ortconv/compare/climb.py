"""Sizes of free dimensions by trial, for models that say too little about them: the run that gets furthest leads on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations
from random import Random
from typing import NamedTuple

from ortconv.compare.sizes import Problem, Sizes
from ortconv.ir.graph import Node, Value, captures
from ortconv.ir.tensor import Tensor

USUAL = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
"""Sizes that are tried for every dimension."""

MOST_RUNS = 500
"""How often a model is run for one starting point."""

LARGEST_LIST = 64
"""Integer constants of no more elements may be lists of sizes."""

LARGEST_TRIED = 4096
MOST_CANDIDATES = 48


class Reached(NamedTuple):
    """How many values a run made, and the node that failed; None where the run got to its end."""

    values: int
    failed: Node | None


def climb(problem: Problem, start: Sizes, reach: Callable[[Sizes], Reached]) -> Sizes | None:
    """Change one dimension, or several, whenever the run then gets further. None where nothing gets to the end.

    Where no such change is left, several dimensions change at random, and what gets as far as before stays.
    """
    candidates, rng = _candidates(problem), Random(0)
    sizes, best = start, reach(start)
    moves = _neighbors(problem, best, sizes, candidates)
    for _ in range(MOST_RUNS):
        if best.failed is None:
            return sizes
        changed = next(moves, None)
        may_tie = changed is None
        if changed is None:
            changed = _anywhere(_behind(problem, best.failed), sizes, candidates, rng)
        found = reach(changed)
        if found.failed is None or found.values > best.values:
            sizes, best = changed, found
            moves = _neighbors(problem, best, sizes, candidates)
        elif may_tie and found.values == best.values:
            sizes, best = changed, found
    return None


def _anywhere(free: list[str], sizes: Sizes, candidates: list[int], rng: Random) -> Sizes:
    names = rng.sample(free, min(len(free), rng.randint(1, 3)))
    return {**sizes, **{name: candidates[rng.randrange(len(candidates))] for name in names}}


def _neighbors(problem: Problem, reached: Reached, sizes: Sizes, candidates: list[int]) -> Iterator[Sizes]:
    free = [] if reached.failed is None else _behind(problem, reached.failed)
    for names in _groups(free, sizes):
        for size in candidates:
            changed = {**sizes, **dict.fromkeys(names, size)}
            if changed != sizes:
                yield changed
    for a, b in permutations(free, 2):
        for factor in (2, 3, 5, 7):
            if sizes[a] % factor == 0:
                yield {**sizes, a: sizes[a] // factor, b: sizes[b] * factor}


def _groups(names: list[str], sizes: Sizes) -> Iterator[list[str]]:
    """Each dimension alone, those of one size together, and every two of one size."""
    yield from ([name] for name in names)
    same = [[n for n in names if sizes[n] == size] for size in dict.fromkeys(sizes[n] for n in names)]
    yield from (group for group in same if len(group) > 1)
    for group in same:
        if len(group) > 2:
            yield from ([a, b] for i, a in enumerate(group) for b in group[i + 1 :])


def _behind(problem: Problem, node: Node) -> list[str]:
    """The free dimensions of the inputs that a node depends on, the nearest first."""
    seen: set[Value] = set()
    nodes, near = {node}, [node]
    found: dict[str, None] = {}
    for current in near:
        for value in (*current.inputs, *(captures(current) if current.attrs and current.subgraphs else ())):
            if value is None or value in seen:
                continue
            seen.add(value)
            found.update(dict.fromkeys(d for d in problem.shapes.get(value, ()) if isinstance(d, str)))
            if value.producer is not None and value.producer not in nodes:
                nodes.add(value.producer)
                near.append(value.producer)
    return [name for name in found if name in problem.free]


def _candidates(problem: Problem) -> list[int]:
    """Usual sizes, those of the constants, and the numbers in integer constants with what divides them."""
    found = dict.fromkeys(USUAL)
    divided: dict[int, None] = {}
    for graph in problem.graph.graphs():
        for value in graph.initializers.values():
            const = value.const
            if not isinstance(const, Tensor):
                continue
            found.update(dict.fromkeys(const.shape))
            if const.dtype.numpy.kind == "i" and const.size <= LARGEST_LIST:
                numbers = [int(n) for n in const.numpy().reshape(-1) if 1 < n <= LARGEST_TRIED]
                divided.update(dict.fromkeys([*numbers, min(math.prod(numbers), LARGEST_TRIED + 1)]))
    for number in divided:
        found.update(dict.fromkeys(d for d in range(1, number + 1) if number <= LARGEST_TRIED and number % d == 0))
    return [n for n in found if 0 < n <= LARGEST_TRIED][:MOST_CANDIDATES]
