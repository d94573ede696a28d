"""Products of one operand with several constant matrices, such as those for query, key and value: one product does for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.executor.algorithms.gemm import by_weights
from ortconv.executor.fusion.elementwise_ops import instructions_of
from ortconv.executor.fusion.group import Constant, Group, Scope
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType


class Branch(NamedTuple):
    """x @ weights + bias, and the nodes that compute it."""

    nodes: tuple[Node, ...]
    weights: Array
    bias: Array | None = None

    @property
    def made(self) -> Value:
        return self.nodes[-1].out


def _product(branches: Sequence[Branch]) -> Function:
    """From x to the result of each branch, all in one array."""
    multiply = by_weights(*(b.weights for b in branches))
    sizes = [b.weights.shape[1] for b in branches]
    ends = np.cumsum(sizes).tolist()
    parts = [slice(end - size, end) for end, size in zip(ends, sizes)]
    biases = [np.zeros(n, np.float32) if b.bias is None else b.bias for b, n in zip(branches, sizes)]
    bias = None if all(b.bias is None for b in branches) else np.concatenate(biases)

    def run(work: Work, x: Array) -> tuple[Array, ...]:
        y = work.call(multiply, x)
        if bias is not None:
            work.do(np.add, y, bias, y)
        return tuple([y[..., part] for part in parts])

    return recordable(run)


def horizontal_groups(scope: Scope) -> Iterator[Group]:
    """Groups of at least two branches of one operand."""
    members = set(scope.nodes)
    found: defaultdict[tuple[Value, int], list[Branch]] = defaultdict(list)
    for node in scope.nodes:
        branch = _branch(node, members, scope.constant, scope.live_out)
        if branch is not None and node.inputs[0] is not None:
            found[node.inputs[0], len(branch.weights)].append(branch)
    for (x, _), branches in found.items():
        if len(branches) > 1:
            # In the place where the first of the results is made, which is before any of them is read.
            first = min((branch.nodes[-1] for branch in branches), key=scope.index.__getitem__)
            nodes = scope.sorted(node for branch in branches for node in branch.nodes)
            yield Group(nodes, [x], _product(branches), [branch.made for branch in branches], first)


def _branch(node: Node, members: set[Node], constant: Constant, live_out: set[Value]) -> Branch | None:
    if not node.is_op("MatMul") or node.out.dtype is not DType.FLOAT or node.inputs[1] is None:
        return None
    weights = constant(node.inputs[1])
    if weights is None or weights.ndim != 2 or not weights.size or not node.out.rank or node.out.rank < 2:
        return None
    branch = Branch((node,), weights)
    while (longer := _longer(branch, members, constant, live_out)) is not None:
        branch = longer
    # What is elementwise behind a product had better join it.
    return None if any(instructions_of(reader, constant) is not None for reader, _ in branch.made.uses) else branch


def _longer(branch: Branch, members: set[Node], constant: Constant, live_out: set[Value]) -> Branch | None:
    """The branch with the bias or factor that follows it."""
    node = _only_reader(branch.made, members, live_out)
    if node is None or not (node.is_op("Add") or node.is_op("Mul")) or node.out.rank != branch.made.rank:
        return None
    other = node.inputs[1 if node.inputs[0] is branch.made else 0]
    known = None if other is None else constant(other)
    if known is None or not np.isfinite(known).all():
        return None
    nodes = (*branch.nodes, node)
    if node.is_op("Add") and branch.bias is None and known.shape == (branch.weights.shape[1],):
        return Branch(nodes, branch.weights, known)
    if node.is_op("Mul") and known.size == 1:
        factor = known.reshape(())
        return Branch(nodes, branch.weights * factor, None if branch.bias is None else branch.bias * factor)
    return None


def _only_reader(value: Value, members: set[Node], live_out: set[Value]) -> Node | None:
    if value in live_out or len(value.uses) != 1:
        return None
    reader, _ = next(iter(value.uses))
    return reader if reader in members else None
