"""Chains of elementwise operators as one step: they run block by block in the cache, in the memory of the product
before them.

Only the last result of a group has readers outside it. At most one node, the root, is not elementwise: its result is a
separate array, which the other nodes overwrite. Shapes and layouts are known when the group runs; if they do not suit,
its nodes run one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

from ortconv.executor.fusion.conv import has_constant_weights, merged_pad
from ortconv.executor.fusion.elementwise_ops import Instruction, instructions_of
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.fusion.group import Group, Scope
from ortconv.executor.fusion.roots import Root, is_fused, root_of
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType

_ROOTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), ""),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), MICROSOFT),
}
"""Operators whose kernels return a new array that nothing else references."""

_MOST_NODES = 32

_FEWEST_ELEMENTS = 1 << 13

_WORTHWHILE_IF_SMALL = 4
"""Number of nodes from which a group with few elements costs less than its nodes one by one."""


_Instructions = Callable[[Node], list[Instruction] | None]


def elementwise_groups(scope: Scope) -> Iterator[Group]:
    """Chains of elementwise operators after their root, or without one, from the last node to the first."""
    instructions: _Instructions = cache(lambda node: instructions_of(node, scope.constant))
    for node in reversed(scope.nodes):
        if node in scope.claimed or not (len(node.outputs) == 1 and node.outputs[0] is not None):
            continue
        if instructions(node) is None and node.op not in ("Conv", "FusedConv"):
            continue
        members = _Members(node, scope, instructions)
        if members.are_worthwhile:
            yield members.group()


class _Members:
    """The nodes of the group that ends in `last`, collected from the last to the first."""

    def __init__(self, last: Node, scope: Scope, instructions: _Instructions) -> None:
        self._instructions_of = instructions
        self._last, self._scope = last, scope
        self.root: Node | None = None
        self.cast: Node | None = None
        """The Cast of the root's integers to float32."""
        self.nodes: set[Node] = set()
        self._before: set[Value] = set()  # the operands of the root
        self._instructions: dict[Node, list[Instruction]] = {}
        place = scope.index
        waiting = [-place[last]]
        by_place = {place[last]: last}
        while waiting and len(self.nodes) < _MOST_NODES:
            node = by_place[-heapq.heappop(waiting)]
            for producer in self._add(node):
                if place[producer] not in by_place:
                    by_place[place[producer]] = producer
                    heapq.heappush(waiting, -place[producer])

    def _add(self, node: Node) -> list[Node]:
        """Make a node a member if possible; return the nodes that may join it."""
        if not self._fits(node):
            return []
        instructions = self._instructions_of(node)
        if instructions is None:
            if self.root is None:
                self._add_root(node)
            return []
        self._instructions[node] = instructions
        self.nodes.add(node)
        makers = dict.fromkeys(v.producer for v in node.inputs if v is not None)
        return [maker for maker in makers if maker in self._scope.index]

    def _add_root(self, node: Node) -> None:
        """Make a node the root if possible; for the Cast of an integer product, the product becomes the root."""
        root: Node | None = node
        if _ROOTS.get(node.op) != node.domain and not is_fused(node, self._scope.constant):
            root = self._integer_product(node)
            self.cast = node if root is not None else None
        if root is None:
            return
        self.root = root
        self.nodes |= {node, root}
        pad = merged_pad(root, self._scope.constant)
        if pad is not None and self._scope.maker(pad.out, (root,)) is pad:
            self.nodes.add(pad)
        self._before |= {v for member in self.nodes & {root, pad} for v in member.inputs if v is not None}

    def _integer_product(self, node: Node) -> Node | None:
        """The MatMulInteger with constant weights that only this Cast reads."""
        before = self._scope.maker(node.inputs[0], (node,)) if node.is_op("Cast") else None
        if before is None or not before.is_op("MatMulInteger"):
            return None
        weights = [self._scope.constant(v) for v in before.inputs[1::2] if v is not None]
        is_constant = all(w is not None for w in weights) and weights[0] is not None and weights[0].ndim == 2
        return before if is_constant else None

    def _fits(self, node: Node) -> bool:
        """True if the node has one float32 result with the rank of the last one, and no reader outside the group."""
        value = node.outputs[0]
        if len(node.outputs) != 1 or value is None or node in self._scope.claimed or value in self._before:
            return False
        if value.dtype is not DType.FLOAT or not self._has_shape_of_last(value):
            return False
        return node is self._last or self._scope.maker(value, self.nodes) is node

    def _has_shape_of_last(self, value: Value) -> bool:
        """True if a value may have the shape of the last result."""
        shape, last = value.shape, self._last.out.shape
        if shape is None or last is None or len(shape) != len(last):
            return False
        return not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape, last))

    @property
    def are_worthwhile(self) -> bool:
        """False for few small nodes, which cost less to run than a group."""
        if any(i.is_row_wise for instructions in self._instructions.values() for i in instructions):
            return True
        shape = self._last.out.static_shape
        small = shape is not None and prod(shape) < _FEWEST_ELEMENTS
        if self.root is not None and self.root.op in ("Conv", "FusedConv"):
            return len(self.nodes) > 1 or has_constant_weights(self.root, self._scope.constant)
        return len(self.nodes) >= (_WORTHWHILE_IF_SMALL if small else 1)

    def _in_order(self) -> list[Instruction]:
        """The instructions whose results are read: that of a Sigmoid(x) is not if its product with x is computed from x."""
        found = [i for node in self._scope.sorted(self._instructions) for i in self._instructions[node]]
        read = {self._last.out, *(operand for i in found for operand in i.operands)}
        return [i for i in found if i.made in read]

    def group(self) -> Group:
        scope, nodes, instructions = self._scope, self._scope.sorted(self.nodes), self._in_order()
        reads = scope.reads(nodes)
        root: Root | None = None
        if self.root is not None:
            root = root_of(self.root, self.cast, instructions, self.nodes, scope, reads)
            instructions = root.instructions
        program = BlockProgram(instructions, None if root is None else root.made, reads) if instructions else None
        function = _fused(None if root is None else root.function, program, scope.unfused(nodes, reads))
        return Group(nodes, reads, function)


def _fused(root: Function | None, program: BlockProgram | None, unfused: Function) -> Function:
    """A root and the elementwise program after it; the nodes one by one if shapes or layouts do not suit."""

    def run(work: Work, *operands: Any) -> Any:
        source = None if root is None else work.call(root, *operands)
        if source is None and root is not None:
            return work.call(unfused, *operands) if work is AT_ONCE else None
        if program is None:
            return source
        result = program.run(work, source, operands)
        return work.call(unfused, *operands) if result is None else result

    return recordable(run)
