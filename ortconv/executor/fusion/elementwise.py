"""Chains of elementwise operators as one step: block by block in cache, in the memory of the product that they finish.

Only the last result of a group is read outside. At most one node, the root, is more than elementwise: its result is an array of its
own, which the others overwrite. Shapes and layouts are known when the group runs; where they do not suit, its nodes run one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

from ortconv.executor.fusion.conv import has_constant_weights, merged_pad, pooled_first
from ortconv.executor.fusion.elementwise_ops import ROW_REDUCTIONS, RowWise, operations, quantizer_before
from ortconv.executor.fusion.elementwise_program import BlockProgram, Instruction, columns
from ortconv.executor.fusion.group import Constant, Group, Scope
from ortconv.executor.fusion.peephole import simplified
from ortconv.executor.fusion.roots import Root, is_fused, known_or_name, pooled, root_of
from ortconv.executor.kernels.activation import MICROSOFT
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.graph import Node, Value
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
"""Nodes from which a group of few elements costs less than its nodes one by one."""


_Instructions = Callable[[Node], list[Instruction] | None]


def elementwise_groups(scope: Scope) -> Iterator[Group]:
    """Chains of elementwise operators behind their root, or without one, from the last node to the first."""
    instructions: _Instructions = cache(lambda node: _instructions(node, scope.constant))
    for node in reversed(scope.nodes):
        if node in scope.claimed or not (len(node.outputs) == 1 and node.outputs[0] is not None):
            continue
        if instructions(node) is None and node.op not in ("Conv", "FusedConv"):
            continue
        members = _Members(node, scope, instructions)
        if members.last_is_column:
            members = _Members(node, scope, instructions, reductions=False)
        if members.are_worthwhile:
            yield members.group()


class _Members:
    """The nodes of the group that ends in `last`, gathered from the last to the first."""

    def __init__(self, last: Node, scope: Scope, instructions: _Instructions, reductions: bool = True) -> None:
        self._instructions_of = instructions
        self._last, self._scope, self._place, self._constant = last, scope, scope.index, scope.constant
        self._live_out, self._claimed, self._reductions = scope.live_out, scope.claimed, reductions
        self.root: Node | None = None
        self.layout_op: Node | None = None
        """A Transpose or Cast of what the root makes."""
        self.nodes: set[Node] = set()
        self._before: set[Value] = set()  # what the root reads
        self._instructions: dict[Node, list[Instruction]] = {}
        place = self._place
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
        """False for few small steps: to lay out a group costs more than to run them."""
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

    def group(self) -> Group:
        nodes, bind = self._scope.sorted(self.nodes), self._scope.bind
        instructions = simplified(self._in_order())
        reads = self._scope.reads(nodes)
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
        function = _fused(function, program, self._scope.unfused(nodes, reads))
        return Group(nodes, reads, function, nodes[-1].outputs, nodes[-1])

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
        instructions.append(
            Instruction(function, named, made, function in ROW_REDUCTIONS, isinstance(function, RowWise))
        )
    return instructions
