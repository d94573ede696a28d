"""Repeated blocks of a sequence: where the same symbols follow each other several times, such as the layers of an encoder.

A graph in topological order is such a sequence, and its symbols are the operators. An interval of the order is a convex part of
the graph, so it can always be drawn as one box.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np

LEAST = 12
"""Repeats with fewer nodes in all are not folded."""
LEAST_PAIR = 16
"""The same limit for blocks that occur only twice."""
GRAMS = (1, 4, 16)
"""Lengths of the pieces whose distances are candidates for periods."""
CANDIDATES = 24
"""Periods tried for each length of pieces."""
NEARLY_ALL = 0.8
"""A scope with a larger share of a sequence does not divide it."""
PLACES = 8
"""Offsets of a repeat that are compared by their names."""


class Repeat(NamedTuple):
    """`blocks` blocks of `period` items each, from `start` on."""

    start: int
    period: int
    blocks: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.blocks


Together = Callable[[int, int], float]
"""How well the items from one index to another belong together, for example by their names."""


def repeats(symbols: Sequence[int], sizes: Sequence[int], crossings: Sequence[int], together: Together) -> list[Repeat]:
    """Repeats that do not overlap, in order; those are chosen first that hide most items.

    `sizes[i]` is the number of nodes of item `i`. `crossings[i]` is the number of lines between items before `i` and items from `i`
    on. Blocks begin where few lines cross, and among such places where their items belong together.
    """
    found = np.asarray(symbols, np.int64)
    nodes = [0, *accumulate(sizes)]
    heap = [
        (-(run.stop - run.start), run.start, run.stop, period)
        for period in _periods(found)
        for run in _runs(found, period)
    ]
    heapq.heapify(heap)
    taken: list[Repeat] = []
    while heap:
        _, start, stop, period = heapq.heappop(heap)
        low, high = _free(taken, start, stop + period)
        if (low, high) != (start, stop + period):
            if high - low >= 2 * period:
                heapq.heappush(heap, (-(high - low - period), low, high - period, period))
            continue
        count = (high - low) // period
        if nodes[low + count * period] - nodes[low] >= (LEAST_PAIR if count == 2 else LEAST):
            repeat = _placed(low, high, period, count, crossings, together)
            taken.insert(bisect(taken, repeat), repeat)
    return taken


def _periods(symbols: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """Distances between equal pieces, most frequent first for each length of pieces."""
    found: dict[int, None] = {}
    for length in GRAMS:
        if len(symbols) >= length:
            pieces = np.lib.stride_tricks.sliding_window_view(symbols, length)
            _, ids = np.unique(pieces, axis=0, return_inverse=True)
            ids = ids.ravel()
            order = np.argsort(ids, kind="stable")
            same = np.diff(ids[order]) == 0
            gaps, counts = np.unique(np.diff(order)[same], return_counts=True)
            found |= dict.fromkeys(gaps[np.argsort(-counts * gaps, kind="stable")][:CANDIDATES].tolist())
    return list(found)


def _runs(symbols: np.ndarray[tuple[int], np.dtype[np.int64]], period: int) -> Iterator[slice]:
    """Maximal intervals in which each item equals the one a period later, if they are at least a period long."""
    equal = np.concatenate(([False], symbols[period:] == symbols[:-period], [False]))
    edges = np.flatnonzero(np.diff(equal))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if stop - start >= period:
            yield slice(start, stop)


def _free(taken: Sequence[Repeat], low: int, high: int) -> tuple[int, int]:
    """The longest part of an interval that no repeat covers."""
    best, at = (low, low), low
    for repeat in taken[max(bisect(taken, Repeat(low, 0, 0)) - 1, 0) :]:
        if repeat.start >= high:
            break
        best = max(best, (at, min(repeat.start, high)), key=_length)
        at = max(at, repeat.end)
    return max(best, (at, high), key=_length)


def _length(interval: tuple[int, int]) -> int:
    return interval[1] - interval[0]


def _placed(low: int, high: int, period: int, count: int, crossings: Sequence[int], together: Together) -> Repeat:
    """The best repeat within an interval. Its blocks may start at any offset up to a period, so that few lines cross the borders of
    the blocks, and the items of a block belong together. A late start may cost one of three or more blocks.
    """
    least = max(count - 1, 2)
    places = [Repeat(at, period, (high - at) // period) for at in range(low, low + period)]
    lines = {r: sum(crossings[r.start : r.end + 1 : period]) / (r.blocks + 1) for r in places if r.blocks >= least}
    fewest = min(lines.values())
    good = [r for r, n in lines.items() if n == fewest][:PLACES]

    def quality(r: Repeat) -> tuple[float, int]:
        return sum(together(at, at + period) for at in range(r.start, r.end, period)) / r.blocks, r.blocks

    return max(good, key=quality)


def sections(count: int, crossings: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Intervals of about equal length that cover `count` items, at most about `most` long, cut where few lines cross."""
    pieces = -(-count // most)
    slack = max(count // pieces // 4, 1)
    cuts = [0]
    for i in range(1, pieces):
        middle = count * i // pieces
        near = range(max(middle - slack, cuts[-1] + 1), min(middle + slack, count - 1))
        cuts.append(min(near, key=lambda at: (crossings[at], abs(at - middle)), default=middle))
    return list(zip(cuts, [*cuts[1:], count], strict=True))


def path(name: str) -> tuple[str, ...]:
    """The scopes that a name like /encoder/layer.3/MatMul lists, outermost first."""
    return tuple(filter(None, name.replace(".", "/").split("/")))[:-1]


def scope(names: Sequence[str], share: float = 0.7) -> tuple[str, ...]:
    """The deepest scope, such as ("encoder", "layer", "3"), that this share of names of nodes is in."""
    paths = list(map(path, names))
    deepest: tuple[str, ...] = ()
    while paths:
        depth = len(deepest) + 1
        (top, number), *_ = Counter(path[:depth] for path in paths).most_common(1)
        if len(top) < depth or number < share * len(names):
            break
        deepest = top
    return deepest


def cohesion(names: Sequence[str]) -> int:
    """How well nodes with these names belong together: the depth of the scope of all, and of the scope of most."""
    return len(scope(names, 1.0)) + len(scope(names))


def scoped(scopes: Sequence[tuple[str, ...]], least: int) -> list[tuple[int, int, tuple[str, ...]]]:
    """Intervals of at least this many neighbors in one scope, for the outermost scopes that divide the sequence.

    A scope that contains nearly all nodes divides nothing.
    """
    for depth in range(1, max(map(len, scopes), default=0) + 1):
        found = []
        end = 0
        for key, row in groupby(s[:depth] for s in scopes):
            start, end = end, end + len(list(row))
            if end - start >= least and len(key) == depth:
                found.append((start, end, key))
        if found and max(end - start for start, end, _ in found) <= NEARLY_ALL * len(scopes):
            return found
    return []
