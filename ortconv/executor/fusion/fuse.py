"""Fusion of steps: chains of elementwise operators run block by block in cache, in the memory of the product that they finish.

A unit is a set of nodes of which only the last result is read outside. At most one of them, the head, is more than elementwise: its
result is an array of its own, which the others overwrite. What shapes and layouts a unit gets is known when it runs; where they do
not suit, its nodes run one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.attention import attended
from ortconv.executor.algorithms.fallback import Doubt
from ortconv.executor.fusion.attention import Attention, Matcher
from ortconv.executor.fusion.conv import has_constant_weights, merged_pad, pooled_first
from ortconv.executor.fusion.elementwise_ops import ROW_REDUCTIONS, Constant, instructions, is_in_rows, quantizer_before
from ortconv.executor.fusion.elementwise_program import BlockProgram, Line, columns
from ortconv.executor.fusion.horizontal import siblings
from ortconv.executor.fusion.peephole import shortened
from ortconv.executor.fusion.roots import Bind, Head, headed, is_fused, known_or_name, pooled
from ortconv.executor.fusion.transpose_chain import rearrangement, rearrangements
from ortconv.executor.kernels.activation import MICROSOFT
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array, aligned
from ortconv.ir.types import DType

_HEADS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "LayerNormalization", "MatMul"), ""),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), MICROSOFT),
}
"""Operators whose kernels return an array that nobody else holds."""

_AFFINE = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Sub"})

_MOST_NODES = 32

_FEWEST_ELEMENTS = 1 << 13

_WORTHWHILE_IF_SMALL = 4
"""Nodes from which a unit of few elements costs less than its nodes one by one."""


_Lines = Callable[[Node], list[Line] | None]


class Unit(NamedTuple):
    """Nodes that run as one step, in topological order."""

    nodes: tuple[Node, ...]
    reads: list[Value | None]
    function: Function
    makes: Sequence[Value | None]


def units(
    nodes: Sequence[Node], constant: Constant, bind: Bind, kept: Iterable[Value], taken: dict[Node, Unit | None]
) -> dict[Node, Unit | None]:
    """The units among the nodes of a plan, each by the node where it runs; None for its other nodes. `kept` are read outside.

    Those `taken` are left as they are.
    """
    place = {node: index for index, node in enumerate(nodes)}
    outside = set(kept)
    found = dict(taken)
    for group in siblings(nodes, constant, outside):
        together = sorted((node for branch in group.branches for node in branch.nodes), key=place.__getitem__)
        if not found.keys().isdisjoint(together):
            continue
        found |= dict.fromkeys(together)
        # Where the first of the results is made, which is before any of them is read.
        first = min((branch.nodes[-1] for branch in group.branches), key=place.__getitem__)
        found[first] = Unit(tuple(together), [group.x], group.function(), [branch.made for branch in group.branches])
    lines: _Lines = cache(lambda node: _lines(node, constant))
    matcher = Matcher(place.keys() - found.keys(), constant, outside)
    for node in nodes:
        attention = matcher.match(node)
        if attention is not None and found.keys().isdisjoint(attention.nodes):
            found |= dict.fromkeys(attention.nodes)
            found[node] = _attention_unit(attention, constant, bind)
    for chain in rearrangements(nodes, outside):
        if found.keys().isdisjoint(chain):
            found |= dict.fromkeys(chain)
            reads = _read_by(chain, constant)
            function = rearrangement(chain, reads, constant, _one_by_one(chain, reads, constant, bind))
            found[chain[-1]] = Unit(chain, reads, function, chain[-1].outputs)
    for node in reversed(nodes):
        if node in found or not (len(node.outputs) == 1 and node.outputs[0] is not None):
            continue
        if lines(node) is None and node.op not in ("Conv", "FusedConv"):
            continue
        members = _Members(node, place, constant, outside, found, lines)
        if members.last_is_column:
            members = _Members(node, place, constant, outside, found, lines, reductions=False)
        if members.are_worthwhile:
            unit = members.unit(bind)
            found |= dict.fromkeys(unit.nodes)
            found[unit.nodes[-1]] = unit
    return found


def _attention_unit(attention: Attention, constant: Constant, bind: Bind) -> Unit:
    scores, nodes = attention.scores, attention.nodes
    reads = _read_by(nodes, constant)
    place = {v: i for i, v in enumerate(reads)}
    operands: list[tuple[int | None, Any]] = [
        (place.get(v), None if (array := constant(v)) is None else aligned(array))
        for v in (scores.q, scores.kt, attention.v, *scores.summands)
    ]
    plainly = _one_by_one(nodes, reads, constant, bind)

    def run(work: Work, *given: Any) -> Any:
        q, kt, v, *summands = [known if slot is None else given[slot] for slot, known in operands]
        doubt = Doubt(work)
        result = attended(work, doubt, q, kt, v, scores.factor, summands)
        if result is None:
            return work.call(plainly, *given)
        work.do(doubt.settle, instead, given, result)
        return result

    def instead(given: Sequence[Any], result: Array) -> None:
        np.copyto(result, plainly(*given))

    return Unit(nodes, reads, recordable(run), [attention.nodes[-1].out])


def _read_by(nodes: Sequence[Node], constant: Constant) -> list[Value | None]:
    """What some nodes read of others, constants left out."""
    made = {v for node in nodes for v in node.outputs if v is not None}
    inputs = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made)
    return [v for v in inputs if constant(v) is None]


class _Members:
    """The nodes of the unit that ends in `last`, gathered from the last to the first."""

    def __init__(
        self,
        last: Node,
        place: dict[Node, int],
        constant: Constant,
        outside: set[Value],
        taken: dict[Node, Unit | None],
        lines: _Lines,
        reductions: bool = True,
    ) -> None:
        self._lines_of = lines
        self._last, self._place, self._constant = last, place, constant
        self._outside, self._taken, self._reductions = outside, taken, reductions
        self.head: Node | None = None
        self.turn: Node | None = None
        """A Transpose or Cast of what the head makes."""
        self.nodes: set[Node] = set()
        self._before: set[Value] = set()  # what the head reads
        self._lines: dict[Node, list[Line]] = {}
        waiting = [-place[last]]
        by_place = {place[last]: last}
        while waiting and len(self.nodes) < _MOST_NODES:
            node = by_place[-heapq.heappop(waiting)]
            for producer in self._take(node):
                if place[producer] not in by_place:
                    by_place[place[producer]] = producer
                    heapq.heappush(waiting, -place[producer])

    def _take(self, node: Node) -> list[Node]:
        """Make a node a member if it can be one; the nodes that may join it."""
        if not self._fits(node):
            return []
        before = quantizer_before(node)
        if before is not None and (before not in self._place or before in self._taken or before.out in self._outside):
            return []
        if self.head is not None and self._scales_convolution(node):
            return []
        lines = self._lines_of(node)
        if lines is not None and (self._reductions or not any(line.reduces for line in lines)):
            self._lines[node] = lines
            self.nodes |= {node} if before is None else {node, before}
            operands = [
                v for line in lines for v in line.operands if isinstance(v, Value) and v.producer in self._place
            ]
            return [v.producer for v in operands if v.producer is not None and v not in node.outputs]
        if self.head is None and (_HEADS.get(node.op) == node.domain or is_fused(node, self._constant)):
            self._lead(node)
        elif self.head is None and (product := self._integer_product(node)) is not None:
            self.turn = node
            self.nodes.add(node)
            self._lead(product)
        elif (
            self.head is None
            and node.is_op("Transpose")
            and (convolution := self._turned_convolution(node)) is not None
        ):
            self.turn = node
            self.nodes.add(node)
            self._lead(convolution)
        return []

    def _lead(self, node: Node) -> None:
        self.head = node
        self.nodes.add(node)
        self._before |= {v for v in node.inputs if v is not None}
        pad = merged_pad(node, self._constant)
        if (
            pad is not None
            and pad in self._place
            and self._inner(pad)
            and all(user is node for user, _ in pad.out.uses)
        ):
            self.nodes.add(pad)
            self._before |= {v for v in pad.inputs if v is not None}

    def _integer_product(self, node: Node) -> Node | None:
        """The MatMulInteger with constant weights that only this Cast reads."""
        value = node.inputs[0] if node.is_op("Cast") else None
        before = None if value is None else value.producer
        if before is None or not before.is_op("MatMulInteger") or before not in self._place or before in self._taken:
            return None
        weights = [self._constant(v) for v in before.inputs[1::2] if v is not None]
        constant = all(w is not None for w in weights) and weights[0] is not None and weights[0].ndim == 2
        alone = before.out not in self._outside and all(user is node for user, _ in before.out.uses)
        return before if alone and constant else None

    def _turned_convolution(self, node: Node) -> Node | None:
        """The convolution with constant weights that only this Transpose reads, for the sake of what follows."""
        value = node.inputs[0]
        before = None if value is None or node is self._last else value.producer
        if (
            before is None
            or before not in self._place
            or before in self._taken
            or not before.is_op("Conv")
            or not has_constant_weights(before, self._constant)
        ):
            return None
        alone = before.out not in self._outside and all(user is node for user, _ in before.out.uses)
        return before if alone and before.out.dtype is DType.FLOAT and node.attr("perm", ()) else None

    def _scales_convolution(self, node: Node) -> bool:
        """True for arithmetic with constants on what a convolution made: it may become part of that one's weights."""
        while node.op in _AFFINE and not node.domain and node not in self._taken:
            read = [v for v in node.inputs if v is not None and self._constant(v) is None]
            before = read[0].producer if len(read) == 1 else None
            if before is None or before not in self._place or len(read[0].uses) != 1 or read[0] in self._outside:
                return False
            if before.is_op("Conv"):
                return has_constant_weights(before, self._constant)
            node = before
        return False

    def _fits(self, node: Node) -> bool:
        """One float32 result of the rank of the last one, and no reader elsewhere."""
        if len(node.outputs) != 1 or node.outputs[0] is None or node in self._taken or node.outputs[0] in self._before:
            return False
        value = node.outputs[0]
        if value.dtype is not DType.FLOAT or value.shape is None or value.rank != self._last.out.rank:
            return False
        sizes = [*zip(value.shape, self._last.out.shape or (), strict=True)]
        if self._reductions and sizes and value.shape[-1] == 1:
            sizes.pop()
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes):
            return False
        return node is self._last or self._inner(node)

    def _inner(self, node: Node) -> bool:
        value = node.out
        return value not in self._outside and all(user in self.nodes for user, _ in value.uses)

    @property
    def are_worthwhile(self) -> bool:
        """False for few small steps: to lay out a unit costs more than to run them."""
        shape = self._last.out.static_shape
        small = shape is not None and prod(shape) < _FEWEST_ELEMENTS
        if self.head is not None and self.head.op in ("Conv", "FusedConv"):
            return len(self.nodes) > 1 or has_constant_weights(self.head, self._constant)
        return len(self.nodes) >= (_WORTHWHILE_IF_SMALL if small else 2)

    def _in_order(self) -> list[Line]:
        nodes = sorted(self._lines, key=self._place.__getitem__)
        return [line for node in nodes for line in self._lines[node]]

    @property
    def last_is_column(self) -> bool:
        """True where what the last node makes has one element per row."""
        lines = self._in_order()
        return bool(lines) and id(lines[-1].made) in columns(lines)

    def unit(self, bind: Bind) -> Unit:
        nodes = tuple(sorted(self.nodes, key=self._place.__getitem__))
        lines = shortened(self._in_order())
        reads = _read_by(nodes, self._constant)
        place = {v: i for i, v in enumerate(reads)}
        head: Head | None = None
        if self.head is not None:
            head = headed(self.head, self.turn, lines, self.nodes, self._constant, place, bind)
            lines = head.lines
        function = None if head is None else head.function
        pool = self._pool(lines)
        if function is not None and pool is not None:
            nodes, function = (*nodes, pool), pooled(function, bind(pool)[0])
        program = BlockProgram(lines, None if head is None else head.made, reads) if lines else None
        function = _fused(function, program, _one_by_one(nodes, reads, self._constant, bind))
        return Unit(nodes, reads, function, nodes[-1].outputs)

    def _pool(self, lines: Sequence[Line]) -> Node | None:
        """A MaxPool behind a convolution that may come before the lines: then they have less to do."""
        is_convolution = self.head is not None and has_constant_weights(self.head, self._constant)
        pool = pooled_first(lines, self._last.out, self._outside) if is_convolution and self.turn is None else None
        return pool if pool in self._place and pool not in self._taken else None


def _fused(head: Function | None, program: BlockProgram | None, plainly: Function) -> Function:
    """A head and what is elementwise behind it; its nodes one by one where shapes or layouts do not suit."""

    def run(work: Work, *operands: Any) -> Any:
        source = None if head is None else work.call(head, *operands)
        if source is None and head is not None:
            return work.call(plainly, *operands) if work is AT_ONCE else None
        if program is None:
            return source
        result = program.run(work, source, operands)
        return work.call(plainly, *operands) if result is None else result

    return recordable(run)


def _lines(node: Node, constant: Constant) -> list[Line] | None:
    """A node's instructions with names for what they make."""
    code = instructions(node, constant)
    if code is None:
        return None
    lines: list[Line] = []
    for index, (function, operands) in enumerate(code):
        made = node.out if index == len(code) - 1 else object()
        named = tuple(lines[o].made if isinstance(o, int) else known_or_name(o, constant) for o in operands)
        lines.append(Line(function, named, made, function in ROW_REDUCTIONS, is_in_rows(function)))
    return lines


def _one_by_one(nodes: Sequence[Node], reads: Sequence[Value | None], constant: Constant, bind: Bind) -> Function:
    """The nodes without fusion."""
    bound = cache(lambda: [(*bind(node), node.out) for node in nodes])

    def run(*operands: Any) -> Any:
        known: dict[Value | None, Any] = {None: None, **dict(zip(reads, operands, strict=True))}
        result = None
        for function, needed, made in bound():
            result = function(*[known[v] if v is None or v in known else constant(v) for v in needed])
            known[made] = result = result[0] if type(result) is tuple else result
        return result

    return run
