"""Chains of elementwise operators as one step: they run block by block in the cache, in the memory of the product
before them.

Only the last result of a group has readers outside it. At most one node, the root, is not elementwise: its result is a
separate array, which the other nodes overwrite. Shapes and layouts are known when the group runs; if they do not suit,
its nodes run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

from ortconv.executor.fusion.elementwise_ops import Instruction, Operand, instructions_of
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.fusion.group import Group, Scope
from ortconv.executor.fusion.roots import Root, root_of
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.types import DType

_MOST_NODES = 32

_FEWEST_ELEMENTS = 1 << 13

_WORTHWHILE_IF_SMALL = 4
"""Number of nodes from which a group with few elements costs less than its nodes one by one."""


def elementwise_groups(scope: Scope) -> Iterator[Group]:
    """Chains of elementwise operators after their root, or without one, from the last node to the first."""
    instructions = cache(lambda node: instructions_of(node, scope.constant))
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

    def __init__(self, last: Node, scope: Scope, instructions: Callable[[Node], list[Instruction] | None]) -> None:
        self._last, self._scope, self._instructions_of = last, scope, instructions
        self.root: Root | None = None
        self.nodes: set[Node] = set()
        self._before: set[Value | None] = set()  # the operands of the root
        self._instructions: dict[Node, list[Instruction]] = {}
        waiting = {last}
        while waiting and len(self.nodes) < _MOST_NODES:
            node = max(waiting, key=scope.index.__getitem__)
            waiting.remove(node)
            if self._fits(node):
                waiting |= self._add(node)

    def _add(self, node: Node) -> set[Node]:
        """Make a node a member if possible; return the nodes that may join it."""
        instructions = self._instructions_of(node)
        if instructions is not None:
            self._instructions[node] = instructions
            self.nodes.add(node)
            return {v.producer for v in node.inputs if v is not None and v.producer in self._scope.index}
        if self.root is None:
            self.root = root_of(node, self._scope)
            if self.root is not None:
                self.nodes.update(self.root.nodes)
                self._before = {v for member in self.root.nodes for v in member.inputs}
        return set()

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
        if self.root is not None and self.root.nodes[-1].op in ("Conv", "FusedConv"):
            return len(self.nodes) > 1 or self.root.is_laid_out
        shape = self._last.out.static_shape
        small = shape is not None and prod(shape) < _FEWEST_ELEMENTS
        return len(self.nodes) >= (_WORTHWHILE_IF_SMALL if small else 1)

    def _in_order(self) -> list[Instruction]:
        """The instructions that the result needs. It does not need a Sigmoid(x) if the product with x is computed from x."""
        found = [i for node in self._scope.sorted(self._instructions) for i in self._instructions[node]]
        needed: set[Operand] = {self._last.out}
        kept = []
        for instruction in reversed(found):
            if instruction.made in needed:
                needed.update(instruction.operands)
                kept.append(instruction)
        return kept[::-1]

    def group(self) -> Group:
        scope, nodes, instructions = self._scope, self._scope.sorted(self.nodes), self._in_order()
        reads = scope.reads(nodes)
        made, function = None, None
        if self.root is not None:
            made, function = self.root.made, self.root.on(reads, scope.constant)
            instructions = [*self.root.instructions, *instructions]
        program = BlockProgram(instructions, made, reads) if instructions else None
        return Group(nodes, reads, _fused(function, program, scope.unfused(nodes, reads)))


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
