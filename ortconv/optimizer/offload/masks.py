"""Masks as numbers that an accelerator adds, or multiplies by. The CPU computes them, once for all layers.

The rules match all masks. `ortconv.pipeline.maximize_offload` uses them for masks that no node of the accelerator computes.
"""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Value
from ortconv.ir.operands import own_producer, producer_of, scalar
from ortconv.ir.schema import attribute
from ortconv.optimizer.conditions import exactly
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.offload.parts import add, is_float, mul, op, sub
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.standard_forms import with_axes

ABSORBING = 2.0**100
"""In float32, the sum of a number of this magnitude and one below 2**75 is the larger number."""


@rule("WhereToMulAdd", P("Where", "mask", "a", "b"))
def select(m: Match) -> Replacement:
    """Where(mask, a, b)  ->  a * w + b * (1 - w) with w = Where(mask, 1, 0); b + Where(mask, a, 0) for an infinite or very large a

    Opt-in: more nodes; useful only if an accelerator has no Where, and the mask is known before it computes. Infinite and NaN
        elements reach the result even if the mask hides them.
    """
    a, b = m.a, m.b
    numbers = scalar(a), scalar(b)
    if not is_float(a, b) or None not in numbers or not _is_selectable(a) or not _is_selectable(b):
        return None
    if abs(numbers[0] or 0) >= ABSORBING:
        return add(op("Where", m.mask, a, 0.0), b)
    if abs(numbers[1] or 0) >= ABSORBING:
        return add(a, op("Where", m.mask, 0.0, b))
    weight = op("Where", m.mask, 1.0, 0.0)
    if numbers[1] == 0 and a.rank is not None and a.rank >= (b.rank or 0):
        return mul(a, weight)
    rest = mul(b, sub(1, weight))
    return rest if numbers[0] == 0 and b.rank is not None and b.rank >= (a.rank or 0) else add(mul(a, weight), rest)


def _is_selectable(value: Value) -> bool:
    """True unless the value has constant elements that are NaN, or infinite ones among several."""
    const = value.constant
    return const is None or bool(np.isfinite(const.numpy()).all()) or (const.size == 1 and not np.isnan(const.item()))


_SOFTMAX = P("Softmax", P("Add", "scores", "mask", commutative=True), name="softmax")


@rule("NanGuardToMul", P("Where", P("IsNaN", "weights"), C("zero", where=exactly(0)), _SOFTMAX))
def guard(m: Match) -> Replacement:
    """Where(IsNaN(w), 0, w), w = Softmax(scores + mask)  ->  Softmax(scores + Max(mask, -2^100)) * Where(a key is left, 1, 0)

    Opt-in: more nodes; useful only if an accelerator has no Where, and the mask is known before it computes. NaN and infinities
        of the scores reach the result.
    """
    softmax = m.node("softmax")
    rank = softmax.out.rank
    if (
        m.weights is not softmax.out
        or not is_float(m.scores, m.mask)
        or _is_product(m.mask)
        or not _is_product(m.scores)
    ):
        return None
    if (
        rank is None
        or attribute(softmax, "axis") not in (-1, rank - 1)
        or m.graph.opset() < LAST_AXIS
        or not m.mask.rank
    ):
        return None
    largest = with_axes("ReduceMax", m.mask, [m.mask.rank - 1], m.graph, keepdims=1)
    is_left = op("Where", op("Greater", largest, -ABSORBING), 1.0, 0.0)
    return mul(op("Softmax", add(m.scores, op("Max", m.mask, -ABSORBING)), axis=-1), is_left)


LAST_AXIS = 13
"""The operator set from which Softmax computes along one axis."""


def _is_product(scores: Value) -> bool:
    """True if a product of matrices computes a value, perhaps with scales, sums and shapes behind it."""
    value: Value | None = scores
    while (node := own_producer(value, "Add", "Div", "Mul", "Reshape")) is not None:
        value = node.inputs[0]
    return producer_of(value, "MatMul") is not None


RULES = guard + select

MASKS = frozenset(r.name for r in RULES)
