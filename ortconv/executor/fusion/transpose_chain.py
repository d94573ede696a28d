"""Chains of Reshape and Transpose as one step that copies at most once, in the order that suits where the elements come from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from ortconv.executor.fusion.group import Constant, Group, Scope
from ortconv.executor.kernels.movement import integers
from ortconv.executor.replay.work import Function, Work, copy_runs, copy_to, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import Array


def transpose_groups(scope: Scope) -> Iterator[Group]:
    for chain in _chains(scope.nodes, scope.live_out):
        reads = scope.reads(chain)
        function = _function(chain, reads, scope.constant, scope.unfused(chain, reads))
        yield Group(chain, reads, function, chain[-1].outputs, chain[-1])


def _chains(nodes: Sequence[Node], live_out: set[Value]) -> list[tuple[Node, ...]]:
    """Chains of nodes of which each alone reads the one before it, with a Transpose between Reshapes."""
    members = {
        node for node in nodes if node.is_op("Transpose") or (node.is_op("Reshape") and since_version(node) >= 5)
    }
    chains = []
    for node in nodes:
        before = _only_reader_of(node, members, live_out) if node in members else None
        if node not in members or before is not None:
            continue
        chain = [node]
        while (following := _follower(chain[-1], members, live_out)) is not None:
            chain.append(following)
        turns = [i for i, one in enumerate(chain) if one.op == "Transpose"]
        shapes = [i for i, one in enumerate(chain) if one.op == "Reshape"]
        if shapes and any(shapes[0] < i < shapes[-1] for i in turns):
            chains.append(tuple(chain))
    return chains


def _only_reader_of(node: Node, members: set[Node], live_out: set[Value]) -> Node | None:
    """The member that makes what a node rearranges, for it alone."""
    before = None if node.inputs[0] is None else node.inputs[0].producer
    return before if before in members and _follower(before, members, live_out) is node else None


def _follower(node: Node, members: set[Node], live_out: set[Value]) -> Node | None:
    """The member that alone reads what a node makes, to rearrange it."""
    if node.out in live_out or len(node.out.uses) != 1:
        return None
    reader, slot = next(iter(node.out.uses))
    return reader if reader in members and slot == 0 else None


def _function(nodes: Sequence[Node], reads: Sequence[Value | None], constant: Constant, unfused: Function) -> Function:
    """A chain as a function of what it reads, its input first; `unfused` does the same where shapes do not divide evenly."""
    shapes = [node.inputs[1] for node in nodes if node.op == "Reshape"]
    held = [None if v is None else constant(v) for v in shapes]
    slots = [None if array is not None else reads.index(v) for v, array in zip(shapes, held, strict=True)]

    @lru_cache(maxsize=16)
    def arranged(shape: tuple[int, ...], targets: tuple[tuple[int, ...], ...]) -> Arrangement | None:
        axes, left = _Axes(shape), iter(targets)
        for node in nodes:
            if node.op == "Transpose":
                axes.transpose(node.attr("perm", None))
            elif not axes.reshape(next(left), bool(node.attr("allowzero", 0))):
                return None
        return axes.arrangement()

    def run(work: Work, x: Array, *others: Array) -> Array | None:
        operands = (x, *others)
        targets = [known if slot is None else operands[slot] for slot, known in zip(slots, held, strict=True)]
        found = arranged(x.shape, tuple([integers(v) for v in targets if v is not None]))
        if found is None:
            result: Array | None = work.call(unfused, *operands)
            return result
        return _in_good_order(work, x.reshape(found.split).transpose(found.order), found.groups)

    return recordable(run)


class Arrangement(NamedTuple):
    """x.reshape(split).transpose(order), and how many of the axes then make up each axis of the result."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    groups: tuple[int, ...]


class _Factor:
    """A factor of an axis. `parts` are its two halves once a Reshape has split it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[_Factor, ...] = ()

    def leaves(self) -> list[_Factor]:
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


class _Axes:
    """The axes of a rearranged tensor in terms of those it began with. Factors of one element are left out."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._first = [_Factor(n) for n in shape]
        self._axes = [[f] if f.size != 1 else [] for f in self._first]

    def transpose(self, order: Sequence[int] | None) -> None:
        self._axes = self._axes[::-1] if order is None else [self._axes[axis] for axis in order]

    def reshape(self, shape: tuple[int, ...], allow_zero: bool) -> bool:
        """False where the new axes cut the old ones unevenly, or where the shape has another number of elements."""
        own = [prod(f.size for f in axis) for axis in self._axes]
        if any(d == 0 and (allow_zero or i >= len(own)) for i, d in enumerate(shape)) or 0 in own:
            return False
        sizes = [own[i] if d == 0 else d for i, d in enumerate(shape)]
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = prod(own) // max(-prod(sizes), 1)
        if min(sizes, default=1) < 1 or prod(sizes) != prod(own):
            return False
        factors = deque(leaf for axis in self._axes for factor in axis for leaf in factor.leaves())
        self._axes = []
        for size in sizes:
            axis: list[_Factor] = []
            while size > 1:
                factor = factors.popleft()
                if size % factor.size:
                    if factor.size % size:
                        return False
                    factor.parts = (_Factor(size), _Factor(factor.size // size))
                    factors.appendleft(factor.parts[1])
                    factor = factor.parts[0]
                axis.append(factor)
                size //= factor.size
            self._axes.append(axis)
        return True

    def arrangement(self) -> Arrangement:
        first = [leaf for factor in self._first if factor.size != 1 for leaf in factor.leaves()]
        number = {leaf: i for i, leaf in enumerate(first)}
        groups = [[number[leaf] for factor in axis for leaf in factor.leaves()] for axis in self._axes]
        order = tuple(i for group in groups for i in group)
        return Arrangement(tuple(leaf.size for leaf in first), order, tuple(map(len, groups)))


def _in_good_order(work: Work, x: Array, groups: Sequence[int]) -> Array:
    """x with groups of its axes joined: a view, or a copy in which the axis that holds neighbors in x comes last in memory."""
    ends = np.cumsum(groups).tolist()
    parts = [slice(end - count, end) for end, count in zip(ends, groups, strict=True)]
    shape = tuple([prod(x.shape[part]) for part in parts])
    if all(_joins(x, part) for part in parts):
        return x.reshape(shape)
    closest = min(range(x.ndim), key=lambda axis: x.strides[axis])
    last = next(i for i, part in enumerate(parts) if part.start <= closest < part.stop)
    order = [*(i for i in range(len(shape)) if i != last), last]
    out = work.empty([shape[i] for i in order], x.dtype)
    axes = [axis for i in order for axis in range(x.ndim)[parts[i]]]
    source = x.transpose(axes)
    _copy(work, source, out.reshape(source.shape))
    return out.transpose(np.argsort(order))


def _joins(x: Array, part: slice) -> bool:
    steps, sizes = x.strides[part], x.shape[part]
    return all(step == inner * n for step, inner, n in zip(steps, steps[1:], sizes[1:]))


_SHORT_RUN = 8
"""Elements of a contiguous axis that are better copied in as many calls, each along another axis."""


def _copy(work: Work, source: Array, target: Array) -> None:
    """source to contiguous memory."""
    if source.strides[-1] == source.itemsize and not source.dtype.hasobject:
        work.do(copy_runs, source, target)
    elif source.shape[-1] <= _SHORT_RUN:
        for i in range(source.shape[-1]):
            work.do(copy_to, source[..., i], target[..., i])
    else:
        work.do(copy_to, source, target)
