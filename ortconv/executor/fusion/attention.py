"""Attention that consists of single operators, as one step: MatMul, scale, masks, Softmax, MatMul."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.attention import attended
from ortconv.executor.algorithms.fallback import Fallback
from ortconv.executor.fusion.group import Group, Scope
from ortconv.executor.replay.work import Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import Array, aligned
from ortconv.ir.types import DType


class Scores(NamedTuple):
    """q @ kt * factor + summands, and the nodes that compute it."""

    nodes: tuple[Node, ...]
    q: Value
    kt: Value
    factor: float = 1.0
    summands: tuple[Value, ...] = ()


class Attention(NamedTuple):
    """softmax(scores) @ v"""

    nodes: tuple[Node, ...]
    scores: Scores
    v: Value


class Matcher:
    """Finds attention among the nodes of a scope."""

    def __init__(self, scope: Scope) -> None:
        self._made_for, self._constant = scope.maker, scope.constant

    def match(self, last: Node) -> Attention | None:
        """The attention whose last product is `last`; None if it is not one."""
        if not last.is_op("MatMul") or last.out.dtype is not DType.FLOAT or last.out.rank not in (3, 4):
            return None
        weights, v = last.inputs
        assert weights is not None
        assert v is not None
        fallback = self._nan_replacement(weights, last)
        softmax = self._made_for(fallback[-1].inputs[0], fallback) if fallback else self._made_for(weights, (last,))
        if softmax is None or not _is_of_rows(softmax, last.out.rank):
            return None
        scores = self._scores(softmax.inputs[0], softmax)
        return None if scores is None else Attention((*scores.nodes, softmax, *fallback[::-1], last), scores, v)

    def _nan_replacement(self, value: Value, reader: Node) -> tuple[Node, ...]:
        """The Where and IsNaN that replace the rows of queries without a visible key. Attention without NaN does not need them."""
        where = self._made_for(value, {reader})
        if where is None or not where.is_op("Where"):
            return ()
        test = self._made_for(where.inputs[0], {where})
        if test is None or not test.is_op("IsNaN") or test.inputs[0] is not where.inputs[2]:
            return ()
        instead = where.inputs[1]
        known = None if instead is None else self._constant(instead)
        return (where, test) if known is not None and known.size == 1 else ()

    def _scores(self, value: Value | None, reader: Node) -> Scores | None:
        """The scores, if only this reader reads them."""
        node = self._made_for(value, {reader})
        if node is None or len(node.inputs) != 2 or node.out.dtype is not DType.FLOAT:
            return None
        a, b = node.inputs
        if a is None or b is None:
            return None
        if node.is_op("MatMul"):
            (scaling_q, q, by_q), (scaling_k, kt, by_k) = self._unscaled(a, node), self._unscaled(b, node)
            return Scores(tuple(dict.fromkeys((*scaling_q, *scaling_k, node))), q, kt, by_q * by_k)
        if a is b:
            return None
        return self._changed(node, a, b) or self._changed(node, b, a)

    def _changed(self, node: Node, inner: Value, other: Value) -> Scores | None:
        """The scores `inner` after an Add, Mul or Div with another operand."""
        scores = self._scores(inner, node)
        if scores is None:
            return None
        if node.is_op("Add"):
            return scores._replace(nodes=(*scores.nodes, node), summands=(*scores.summands, other))
        factor = self._factor(node, other)
        if factor is None or scores.summands:
            return None
        return scores._replace(nodes=(*scores.nodes, node), factor=scores.factor * factor)

    def _unscaled(self, value: Value, reader: Node) -> tuple[tuple[Node, ...], Value, float]:
        """The node that scales an operand of a product, if any; the unscaled value, and the factor."""
        node = self._made_for(value, {reader})
        if node is not None and node.op in ("Mul", "Div") and len(node.inputs) == 2:
            for inner, other in (node.inputs, node.inputs[::-1]):
                factor = None if inner is None or other is None else self._factor(node, other)
                if inner is not None and factor is not None and inner.rank == value.rank:
                    return (node,), inner, factor
        return (), value, 1.0

    def _factor(self, node: Node, other: Value) -> float | None:
        """The finite number by which a Mul or Div with this operand multiplies the other operand."""
        known = self._constant(other)
        multiplies = node.is_op("Mul") or (node.is_op("Div") and other is node.inputs[1])
        if known is None or known.size != 1 or not multiplies:
            return None
        number = float(known.reshape(()))
        factor = number if node.is_op("Mul") else 1 / (number or np.nan)
        return factor if np.isfinite(factor) else None


def _is_of_rows(node: Node, rank: int) -> bool:
    """True for a Softmax along the last axis."""
    return node.is_op("Softmax") and node.attr("axis", -1 if since_version(node) >= 13 else 1) in (-1, rank - 1)


def attention_groups(scope: Scope) -> Iterator[Group]:
    matcher = Matcher(scope)
    for node in scope.nodes:
        attention = matcher.match(node)
        if attention is not None:
            yield _group(attention, scope)


def _group(attention: Attention, scope: Scope) -> Group:
    scores, nodes = attention.scores, attention.nodes
    reads = scope.reads(nodes)
    place = {v: i for i, v in enumerate(reads)}
    operands: list[tuple[int | None, Any]] = [
        (place.get(v), None if (array := scope.constant(v)) is None else aligned(array))
        for v in (scores.q, scores.kt, attention.v, *scores.summands)
    ]
    unfused = scope.unfused(nodes, reads)

    def run(work: Work, *given: Any) -> Any:
        q, kt, v, *summands = [known if slot is None else given[slot] for slot, known in operands]
        fallback = Fallback(work)
        result = attended(work, fallback, q, kt, v, scores.factor, summands)
        if result is None:
            return work.call(unfused, *given)
        work.do(fallback.fall_back, instead, given, result)
        return result

    def instead(given: Sequence[Any], result: Array) -> None:
        np.copyto(result, unfused(*given))

    return Group(nodes, reads, recordable(run), nodes[-1].outputs, nodes[-1])
