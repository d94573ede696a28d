"""Recognizes masks: values that are added to the scores of attention before the softmax, or replace them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import only_reader, own_producer, producer_of, scalar, source_of
from ortconv.ir.operators import Trait, traits
from ortconv.ir.types import DType
from ortconv.optimizer.basic.mask_index import is_true
from ortconv.optimizer.conditions import are_numbers
from ortconv.optimizer.shapes import Element, dim_of

LARGEST_BLEND = -1e30
"""At or below this value, adding any usual score has no effect."""


class Biased(NamedTuple):
    """Scores with the mask that is added to them or replaces elements of them."""

    scores: Value
    mask: Value | None
    nodes: tuple[Node, ...]
    replaced: float | None = None
    """If `mask` is a condition: the value of scores where it is false, or true if `inverted`."""
    inverted: bool = False
    layers: tuple[Biased, Biased] | None = None
    """If there are two masks, of which at most one replaces scores: both, the one applied last first."""

    @property
    def replaces(self) -> bool:
        """True if scores are not only added to."""
        return self.replaced is not None or any(layer.replaced is not None for layer in self.layers or ())


def split_mask(total: Value) -> Biased | None:
    """Split the softmax's input into scores and mask; None if scores are replaced in a way that no sum can express."""
    outer = _layer(total)
    if outer is None or outer.mask is None:
        return outer
    inner = _layer(outer.scores)
    if inner is None or inner.mask is None or None not in (inner.replaced, outer.replaced):
        return outer
    return Biased(inner.scores, outer.mask, (*outer.nodes, *inner.nodes), layers=(outer, inner))


def _layer(total: Value) -> Biased | None:
    """The mask that a single node adds to scores or puts in their place."""
    node = total.producer
    if node is None or node.domain != "" or only_reader(total) is None:
        return None
    if node.op == "Where":
        return _replaced(node)
    return _added(node) if node.op == "Add" else Biased(total, None, ())


def _added(add: Node) -> Biased | None:
    a, b = add.inputs
    if a is None or b is None:
        return None
    blended = _blended(add, a, b) or _blended(add, b, a)
    if blended is not None:
        return blended
    scores, mask = (a, b) if _may_be_scores(a) else (b, a)
    return Biased(scores, mask, (add,)) if only_reader(scores) is not None else None


def _blended(add: Node, scaled: Value, mask: Value) -> Biased | None:
    """The mask of scores * k + (1 - k) * low, where k is 0 or 1: adding (1 - k) * low alone makes masked scores equal to low."""
    multiply = own_producer(scaled, "Mul")
    if multiply is None:
        return None
    for scores, kept in (multiply.present_inputs, multiply.present_inputs[::-1]):
        if _are_opposite(kept, mask) and only_reader(scores) is not None:
            return Biased(scores, mask, (add, multiply))
    return None


def _are_opposite(kept: Value, mask: Value) -> bool:
    """True if a mask is 0 where a factor is 1, and very low where the factor is 0."""
    if kept.constant is not None and mask.constant is not None:
        ones, low = kept.constant.numpy(), mask.constant.numpy()
        fits = ones.shape == low.shape and np.where(ones == 1, low == 0, (ones == 0) & (low <= LARGEST_BLEND))
        return bool(np.all(fits))
    cast, product = producer_of(kept, "Cast"), producer_of(mask, "Mul")
    if cast is None or product is None:
        return False
    a, b = product.inputs
    return _is_negated(a, b, cast) or _is_negated(b, a, cast)


def _is_negated(low: Value | None, factor: Value | None, cast: Node) -> bool:
    """True for a very low number, and 1 where the condition that is cast is false."""
    number, negation = scalar(low), producer_of(source_of(factor, "Cast"), "Not")
    return number is not None and number <= LARGEST_BLEND and negation is not None and negation.inputs == cast.inputs


def _replaced(where: Node) -> Biased | None:
    condition, a, b = where.inputs
    if condition is None or a is None or b is None:
        return None
    inverted = a.constant is not None
    scores, other = (b, a) if inverted else (a, b)
    number = scalar(other)
    if number is None or not number <= LARGEST_BLEND or only_reader(scores) is None:
        return None
    return Biased(scores, condition, (where,), float(number), inverted)


def _may_be_scores(value: Value, *, masked: bool = False) -> bool:
    """True for a product that is scaled or, unless `masked`, to which another mask is added."""
    found: Value | None = value
    while (node := producer_of(found, "Mul", "Div", "Reshape", "Where")) is not None:
        operands = node.inputs[1:] if node.op == "Where" else node.inputs
        found = next((v for v in operands if v is not None and v.constant is None), None)
    add = None if masked else producer_of(found, "Add")
    if add is not None:
        return any(_may_be_scores(v, masked=True) for v in add.present_inputs)
    return producer_of(found, "MatMul") is not None


class Condition(NamedTuple):
    """The condition of a mask, and the number that replaces scores, or is added, where it is false; or true if `inverted`."""

    value: Value
    low: float
    inverted: bool


def condition_of(biased: Biased) -> Condition | None:
    """The condition of a mask that consists of zero and another number; None if there is none."""
    mask, low, inverted = biased.mask, biased.replaced, biased.inverted
    where = producer_of(mask, "Where") if low is None else None
    if where is not None:
        mask, *branches = where.inputs
        values = [scalar(v) for v in branches]
        if _is_nonzero(mask, branches[1]):
            values[1] = 0
        inverted = values[1] == 0
        low = values[0 if inverted else 1] if 0 in values else None
    return None if mask is None or low is None or biased.layers is not None else Condition(mask, float(low), inverted)


def _is_nonzero(condition: Value | None, value: Value | None) -> bool:
    """True if a condition is that elements of a value are not zero."""
    cast = producer_of(condition, "Cast")
    return cast is not None and cast.inputs[0] is value and cast.out.dtype is DType.BOOL


KEYS_RANK = 2


class Keys(NamedTuple):
    """A value (batch, keys), and elementwise nodes that compute the condition of the keys from it, the last one first."""

    value: Value
    nodes: tuple[Node, ...]


def masked_keys(condition: Value, batch: set[Element], columns: set[Element]) -> Keys | None:
    """The keys from which a condition for scores is computed, if it is the same for every query; else None."""
    before, nodes = _before_broadcast(condition)
    node = producer_of(before, "Reshape", "Unsqueeze")
    keys = None if node is None else node.inputs[0]
    if node is None or keys is None or keys.shape is None or len(keys.shape) != KEYS_RANK or None in keys.shape:
        return None
    if node.out.shape != (keys.dim(0), 1, 1, keys.dim(1)):
        return None
    return Keys(keys, nodes) if dim_of(keys, 0) in batch and dim_of(keys, 1) in columns else None


def _before_broadcast(condition: Value) -> tuple[Value | None, tuple[Node, ...]]:
    """The value from which a condition is computed by Expand, And with a constant that is true, and elementwise nodes around
    numbers; and the latter, the last one first.
    """
    value: Value | None = condition
    nodes: list[Node] = []
    while value is not None and (node := value.producer) is not None:
        if node.is_op("Expand"):
            value = node.inputs[0]
        elif node.is_op("And") and (kept := [a for a, b in (node.inputs, node.inputs[::-1]) if is_true(b)]):
            value = kept[0]
        elif (operand := _operand(node)) is not None:
            nodes.append(node)
            value = operand
        else:
            break
    return value, tuple(nodes)


def _operand(node: Node) -> Value | None:
    """The tensor from which an elementwise node computes its result, alone or with numbers; None for any other node."""
    tensors = [v for v in node.present_inputs if scalar(v) is None]
    if node.domain or not traits(node).has(Trait.ELEMENTWISE, Trait.BROADCASTS) or len(tensors) != 1:
        return None
    return tensors[0] if are_numbers((v for v in node.present_inputs if v is not tensors[0]), KEYS_RANK) else None
