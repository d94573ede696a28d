"""Fusion of steps: chains of elementwise operators run block by block in cache, in the memory of the product that they finish.

A unit is a set of nodes of which only the last result is read outside. At most one of them, the root, is more than elementwise: its
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
from ortconv.executor.algorithms.fallback import Guard
from ortconv.executor.fusion.attention import Attention, Matcher
from ortconv.executor.fusion.conv import has_constant_weights, merged_pad, pooled_first
from ortconv.executor.fusion.elementwise_ops import ROW_REDUCTIONS, Constant, is_in_rows, operations, quantizer_before
from ortconv.executor.fusion.elementwise_program import BlockProgram, Instruction, columns
from ortconv.executor.fusion.horizontal import siblings
from ortconv.executor.fusion.peephole import simplified
from ortconv.executor.fusion.roots import Bind, Root, is_fused, known_or_name, pooled, root_of
from ortconv.executor.fusion.transpose_chain import transpose_chain, transpose_chains
from ortconv.executor.kernels.activation import MICROSOFT
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array, aligned
from ortconv.ir.types import DType

_ROOTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "LayerNormalization", "MatMul"), ""),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), MICROSOFT),
}
"""Operators whose kernels return an array that nobody else holds."""

_AFFINE = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Sub"})

_MOST_NODES = 32

_FEWEST_ELEMENTS = 1 << 13

_WORTHWHILE_IF_SMALL = 4
"""Nodes from which a unit of few elements costs less than its nodes one by one."""


_Instructions = Callable[[Node], list[Instruction] | None]


class Unit(NamedTuple):
    """Nodes that run as one step, in topological order."""

    nodes: tuple[Node, ...]
    reads: list[Value | None]
    function: Function
    makes: Sequence[Value | None]


def units(
    nodes: Sequence[Node], constant: Constant, bind: Bind, kept: Iterable[Value], claimed: dict[Node, Unit | None]
) -> dict[Node, Unit | None]:
    """The units among the nodes of a plan, each by the node where it runs; None for its other nodes. `kept` are read outside.

    Those `claimed` are left as they are.
    """
    place = {node: index for index, node in enumerate(nodes)}
    live_out = set(kept)
    found = dict(claimed)
    for group in siblings(nodes, constant, live_out):
        together = sorted((node for branch in group.branches for node in branch.nodes), key=place.__getitem__)
        if not found.keys().isdisjoint(together):
            continue
        found |= dict.fromkeys(together)
        # Where the first of the results is made, which is before any of them is read.
        first = min((branch.nodes[-1] for branch in group.branches), key=place.__getitem__)
        found[first] = Unit(tuple(together), [group.x], group.function(), [branch.made for branch in group.branches])
    instructions: _Instructions = cache(lambda node: _instructions(node, constant))
    matcher = Matcher(place.keys() - found.keys(), constant, live_out)
    for node in nodes:
        attention = matcher.match(node)
        if attention is not None and found.keys().isdisjoint(attention.nodes):
            found |= dict.fromkeys(attention.nodes)
            found[node] = _attention_unit(attention, constant, bind)
    for chain in transpose_chains(nodes, live_out):
        if found.keys().isdisjoint(chain):
            found |= dict.fromkeys(chain)
            reads = _read_by(chain, constant)
            function = transpose_chain(chain, reads, constant, _one_by_one(chain, reads, constant, bind))
            found[chain[-1]] = Unit(chain, reads, function, chain[-1].outputs)
    for node in reversed(nodes):
        if node in found or not (len(node.outputs) == 1 and node.outputs[0] is not None):
            continue
        if instructions(node) is None and node.op not in ("Conv", "FusedConv"):
            continue
        members = _Members(node, place, constant, live_out, found, instructions)
        if members.last_is_column:
            members = _Members(node, place, constant, live_out, found, instructions, reductions=False)
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
    unfused = _one_by_one(nodes, reads, constant, bind)

    def run(work: Work, *given: Any) -> Any:
        q, kt, v, *summands = [known if slot is None else given[slot] for slot, known in operands]
        guard = Guard(work)
        result = attended(work, guard, q, kt, v, scores.factor, summands)
        if result is None:
            return work.call(unfused, *given)
        work.do(guard.fall_back, instead, given, result)
        return result

    def instead(given: Sequence[Any], result: Array) -> None:
        np.copyto(result, unfused(*given))

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
        live_out: set[Value],
        claimed: dict[Node, Unit | None],
        instructions: _Instructions,
        reductions: bool = True,
    ) -> None:
        self._instructions_of = instructions
        self._last, self._place, self._constant = last, place, constant
        self._live_out, self._claimed, self._reductions = live_out, claimed, reductions
        self.root: Node | None = None
        self.layout_op: Node | None = None
        """A Transpose or Cast of what the root makes."""
        self.nodes: set[Node] = set()
        self._before: set[Value] = set()  # what the root reads
        self._instructions: dict[Node, list[Instruction]] = {}
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
        if before is not None and (
            before not in self._place or before in self._claimed or before.out in self._live_out
        ):
            return []
        if self.root is not None and self._scales_convolution(node):
            return []
        instructions = self._instructions_of(node)
        if instructions is not None and (
            self._reductions or not any(instruction.reduces for instruction in instructions)
        ):
            self._instructions[node] = instructions
            self.nodes |= {node} if before is None else {node, before}
            operands = [
                v
                for instruction in instructions
                for v in instruction.operands
                if isinstance(v, Value) and v.producer in self._place
            ]
            return [v.producer for v in operands if v.producer is not None and v not in node.outputs]
        if self.root is None and (_ROOTS.get(node.op) == node.domain or is_fused(node, self._constant)):
            self._lead(node)
        elif self.root is None and (product := self._integer_product(node)) is not None:
            self.layout_op = node
            self.nodes.add(node)
            self._lead(product)
        elif (
            self.root is None
            and node.is_op("Transpose")
            and (convolution := self._turned_convolution(node)) is not None
        ):
            self.layout_op = node
            self.nodes.add(node)
            self._lead(convolution)
        return []

    def _lead(self, node: Node) -> None:
        self.root = node
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
        if before is None or not before.is_op("MatMulInteger") or before not in self._place or before in self._claimed:
            return None
        weights = [self._constant(v) for v in before.inputs[1::2] if v is not None]
        constant = all(w is not None for w in weights) and weights[0] is not None and weights[0].ndim == 2
        alone = before.out not in self._live_out and all(user is node for user, _ in before.out.uses)
        return before if alone and constant else None

    def _turned_convolution(self, node: Node) -> Node | None:
        """The convolution with constant weights that only this Transpose reads, for the sake of what follows."""
        value = node.inputs[0]
        before = None if value is None or node is self._last else value.producer
        if (
            before is None
            or before not in self._place
            or before in self._claimed
            or not before.is_op("Conv")
            or not has_constant_weights(before, self._constant)
        ):
            return None
        alone = before.out not in self._live_out and all(user is node for user, _ in before.out.uses)
        return before if alone and before.out.dtype is DType.FLOAT and node.attr("perm", ()) else None

    def _scales_convolution(self, node: Node) -> bool:
        """True for arithmetic with constants on what a convolution made: it may become part of that one's weights."""
        while node.op in _AFFINE and not node.domain and node not in self._claimed:
            read = [v for v in node.inputs if v is not None and self._constant(v) is None]
            before = read[0].producer if len(read) == 1 else None
            if before is None or before not in self._place or len(read[0].uses) != 1 or read[0] in self._live_out:
                return False
            if before.is_op("Conv"):
                return has_constant_weights(before, self._constant)
            node = before
        return False

    def _fits(self, node: Node) -> bool:
        """One float32 result of the rank of the last one, and no reader elsewhere."""
        if (
            len(node.outputs) != 1
            or node.outputs[0] is None
            or node in self._claimed
            or node.outputs[0] in self._before
        ):
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
        return value not in self._live_out and all(user in self.nodes for user, _ in value.uses)

    @property
    def are_worthwhile(self) -> bool:
        """False for few small steps: to lay out a unit costs more than to run them."""
        shape = self._last.out.static_shape
        small = shape is not None and prod(shape) < _FEWEST_ELEMENTS
        if self.root is not None and self.root.op in ("Conv", "FusedConv"):
            return len(self.nodes) > 1 or has_constant_weights(self.root, self._constant)
        return len(self.nodes) >= (_WORTHWHILE_IF_SMALL if small else 2)

    def _in_order(self) -> list[Instruction]:
        nodes = sorted(self._instructions, key=self._place.__getitem__)
        return [instruction for node in nodes for instruction in self._instructions[node]]

    @property
    def last_is_column(self) -> bool:
        """True where what the last node makes has one element per row."""
        instructions = self._in_order()
        return bool(instructions) and id(instructions[-1].made) in columns(instructions)

    def unit(self, bind: Bind) -> Unit:
        nodes = tuple(sorted(self.nodes, key=self._place.__getitem__))
        instructions = simplified(self._in_order())
        reads = _read_by(nodes, self._constant)
        place = {v: i for i, v in enumerate(reads)}
        root: Root | None = None
        if self.root is not None:
            root = root_of(self.root, self.layout_op, instructions, self.nodes, self._constant, place, bind)
            instructions = root.instructions
        function = None if root is None else root.function
        pool = self._pool(instructions)
        if function is not None and pool is not None:
            nodes, function = (*nodes, pool), pooled(function, bind(pool)[0])
        program = BlockProgram(instructions, None if root is None else root.made, reads) if instructions else None
        function = _fused(function, program, _one_by_one(nodes, reads, self._constant, bind))
        return Unit(nodes, reads, function, nodes[-1].outputs)

    def _pool(self, instructions: Sequence[Instruction]) -> Node | None:
        """A MaxPool behind a convolution that may come before the instructions: then they have less to do."""
        is_convolution = self.root is not None and has_constant_weights(self.root, self._constant)
        pool = (
            pooled_first(instructions, self._last.out, self._live_out)
            if is_convolution and self.layout_op is None
            else None
        )
        return pool if pool in self._place and pool not in self._claimed else None


def _fused(root: Function | None, program: BlockProgram | None, unfused: Function) -> Function:
    """A root and what is elementwise behind it; its nodes one by one where shapes or layouts do not suit."""

    def run(work: Work, *operands: Any) -> Any:
        source = None if root is None else work.call(root, *operands)
        if source is None and root is not None:
            return work.call(unfused, *operands) if work is AT_ONCE else None
        if program is None:
            return source
        result = program.run(work, source, operands)
        return work.call(unfused, *operands) if result is None else result

    return recordable(run)


def _instructions(node: Node, constant: Constant) -> list[Instruction] | None:
    """A node's instructions with names for what they make."""
    code = operations(node, constant)
    if code is None:
        return None
    instructions: list[Instruction] = []
    for index, (function, operands) in enumerate(code):
        made = node.out if index == len(code) - 1 else object()
        named = tuple(instructions[o].made if isinstance(o, int) else known_or_name(o, constant) for o in operands)
        instructions.append(Instruction(function, named, made, function in ROW_REDUCTIONS, is_in_rows(function)))
    return instructions


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
