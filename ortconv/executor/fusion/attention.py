"""Attention that consists of single operators, as one step: MatMul, a factor, masks, Softmax, MatMul."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.attention import attended
from ortconv.executor.fusion.group import Constant, Group, Scope
from ortconv.executor.replay.work import Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import aligned
from ortconv.ir.types import DType


class _Scores(NamedTuple):
    """q @ kt * factor + summands, and the nodes that compute it."""

    nodes: tuple[Node, ...]
    q: Value
    kt: Value
    factor: float = 1.0
    summands: tuple[Value, ...] = ()


def attention_groups(scope: Scope) -> Iterator[Group]:
    for node in scope.nodes:
        softmax = scope.maker(node.inputs[0], (node,)) if node.is_op("MatMul") and node.out.rank == 4 else None
        if softmax is not None and _is_of_rows(softmax) and node.inputs[1] is not None:
            scores = _scores(scope, softmax.inputs[0], softmax)
            if scores is not None:
                yield _group(scope, scores, (*scores.nodes, softmax, node), node.inputs[1])


def _is_of_rows(node: Node) -> bool:
    """True for a Softmax of float32 along the last axis of four."""
    axis = node.attr("axis", -1 if since_version(node) >= 13 else 1) if node.is_op("Softmax") else None
    return axis in (-1, 3) and node.out.dtype is DType.FLOAT


def _scores(scope: Scope, value: Value | None, reader: Node) -> _Scores | None:
    """The scores, if only this reader reads them."""
    node = scope.maker(value, (reader,))
    if node is None or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None or a is b:
        return None
    if node.is_op("MatMul"):
        return _Scores((node,), a, b)
    return _changed(scope, node, a, b) or _changed(scope, node, b, a)


def _changed(scope: Scope, node: Node, inner: Value, other: Value) -> _Scores | None:
    """The scores `inner` after an Add, Mul or Div with another operand."""
    scores = _scores(scope, inner, node)
    if scores is None:
        return None
    if node.is_op("Add"):
        return scores._replace(nodes=(*scores.nodes, node), summands=(*scores.summands, other))
    factor = _factor(scope.constant, node, other)
    if factor is None or scores.summands:
        return None
    return scores._replace(nodes=(*scores.nodes, node), factor=scores.factor * factor)


def _factor(constant: Constant, node: Node, other: Value) -> float | None:
    """The finite number by which a Mul or Div with this operand multiplies the other operand."""
    known = constant(other)
    multiplies = node.is_op("Mul") or (node.is_op("Div") and other is node.inputs[1])
    if known is None or known.size != 1 or not multiplies:
        return None
    number = float(known.reshape(()))
    factor = number if node.is_op("Mul") else 1 / (number or np.nan)
    return factor if np.isfinite(factor) else None


def _group(scope: Scope, scores: _Scores, nodes: tuple[Node, ...], v: Value) -> Group:
    reads = scope.reads(nodes)
    values, unfused = (scores.q, scores.kt, v, *scores.summands), scope.unfused(nodes, reads)
    known = [None if (array := scope.constant(value)) is None else aligned(array) for value in values]

    def run(work: Work, *given: Any) -> Any:
        place = dict(zip(reads, given, strict=True))
        q, kt, v, *summands = [place[value] if array is None else array for value, array in zip(values, known)]
        result = attended(work, q, kt, v, scores.factor, summands)
        return work.call(unfused, *given) if result is None else result

    return Group(nodes, reads, recordable(run))
