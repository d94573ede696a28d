"""Finds sizes of free dimensions by hill climbing, for models whose demands reveal too little about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from ortconv.inputs.problem import Problem, Sizes
from ortconv.inputs.sizes import free_dims_behind
from ortconv.ir.graph import Node
from ortconv.ir.tensor import Tensor

USUAL = (2, 3, 4, 5, 6, 8, 12, 16, 32, 1)
"""Sizes tried for every dimension. 1 comes last: it broadcasts even if another size is correct."""

LARGEST_LIST = 64
"""Integer constants with at most this number of elements may be lists of sizes."""

LARGEST_TRIED = 4096
MOST_CANDIDATES = 48


class Reached(NamedTuple):
    """Number of values that a run computed, and the node that failed; None if the run succeeded."""

    values: int
    failed: Node | None


def climb(problem: Problem, start: Sizes, reach: Callable[[Sizes], Reached], runs: int) -> Sizes | None:
    """Hill climbing: change one or more dimensions, and keep each change with which the run computes more values. If no single step
    helps, several dimensions change at random, and changes that do not reduce the number of values are kept. Returns None if no run
    succeeds after `runs` changes.
    """
    candidates, rng = _candidates(problem), Random(0)
    sizes, best = start, reach(start)
    moves = _neighbors(problem, best, sizes, candidates)
    for _ in range(runs):
        if best.failed is None:
            break
        changed = next(moves, None)
        may_tie = changed is None
        if changed is None:
            changed = _random_change(problem, best.failed, sizes, candidates, rng)
        found = reach(changed)
        if found.failed is None or found.values > best.values:
            sizes, best = changed, found
            moves = _neighbors(problem, best, sizes, candidates)
        elif may_tie and found.values == best.values:
            sizes, best = changed, found
    return sizes if best.failed is None else None


def _random_change(problem: Problem, failed: Node, sizes: Sizes, candidates: list[int], rng: Random) -> Sizes:
    """Change up to three dimensions at random."""
    free = free_dims_behind(problem, failed) if rng.random() < 0.7 else problem.free
    names = rng.sample(free, min(len(free), rng.randint(1, 3)))
    return {**sizes, **{name: rng.choice(candidates) for name in names}}


def _neighbors(problem: Problem, reached: Reached, sizes: Sizes, candidates: list[int]) -> Iterator[Sizes]:
    free = [] if reached.failed is None else free_dims_behind(problem, reached.failed)
    for names in _groups(free, problem.free, sizes):
        for size in candidates:
            changed = {**sizes, **dict.fromkeys(names, size)}
            if changed != sizes:
                yield changed


def _groups(free: list[str], others: list[str], sizes: Sizes) -> Iterator[list[str]]:
    """Each dimension alone, all dimensions of one size together, and pairs of one size, with any dimension as the second."""
    yield from ([name] for name in free)
    same = [[n for n in free if sizes[n] == size] for size in dict.fromkeys(sizes[n] for n in free)]
    yield from (group for group in same if len(group) > 1)
    yield from ([a, b] for a in free for b in others if a != b and sizes[a] == sizes[b])


def _candidates(problem: Problem) -> list[int]:
    """The sizes to try: usual ones, dimensions of constants, and all divisors of the numbers in short integer constants."""
    values = (value for graph in problem.graph.graphs() for value in graph.initializers.values())
    consts = [value.const for value in values if isinstance(value.const, Tensor)]
    dims = (dim for const in consts for dim in const.shape)
    listed = dict.fromkeys(number for const in consts for number in _listed(const))
    divisors = (d for number in listed for d in range(1, number + 1) if number % d == 0)
    return [n for n in dict.fromkeys((*USUAL, *dims, *divisors)) if 0 < n <= LARGEST_TRIED][:MOST_CANDIDATES]


def _listed(const: Tensor) -> list[int]:
    """The numbers that may be sizes in a short list of integers, and their product."""
    if const.dtype.numpy.kind != "i" or const.size > LARGEST_LIST:
        return []
    numbers = [int(n) for n in const.numpy().reshape(-1) if 1 < n <= LARGEST_TRIED]
    product = math.prod(numbers)
    return [*numbers, product] if product <= LARGEST_TRIED else numbers
