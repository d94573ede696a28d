"""Masks as numbers that an accelerator adds, or multiplies by. The CPU computes them, once for all layers.

The rules match all masks. `ortconv.pipeline.maximize_offload` uses them for masks that no node of the accelerator computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import producer_of, scalar
from ortconv.ir.schema import attribute
from ortconv.optimizer.basic.nan_guard import is_finite_mask
from ortconv.optimizer.conditions import exactly
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.offload.parts import add, is_float, mul, op, sub
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.standard_forms import with_axes

ABSORBING = 2.0**100
"""In float32, the sum of a number of this magnitude and one below 2**75 is the larger number."""

EXCLUDING = 2.0**110
"""What replaces infinity: a finite number beyond ABSORBING."""


def _guarded(scores: P | str) -> P:
    """Pattern of the Softmax of scores, with zero for NaN."""
    return P("Where", P("IsNaN", "weights"), C("zero", where=exactly(0)), P("Softmax", scores, name="softmax"))


@rule("NanGuardToMul", _guarded(P("Add", "scores", "mask", commutative=True)))
def guard(m: Match) -> Replacement:
    """Where(IsNaN(w), 0, w), w = Softmax(scores + mask)  ->  Softmax(scores + limited mask) * Where(a key is left, 1, 0)

    About -2^110 replaces minus infinity, and -2^100 what lies between: finite elements still exclude less than infinite ones.

    Opt-in: more nodes; useful only if an accelerator has no Where, and the mask is known before it computes. NaN and infinities
        of the scores reach the result.
    """
    softmax = m.node("softmax")
    rank = softmax.out.rank
    if m.weights is not softmax.out or not is_float(m.scores, m.mask) or not m.mask.rank or rank is None:
        return None
    if attribute(softmax, "axis") not in (-1, rank - 1) or m.graph.opset() < LAST_AXIS:
        return None
    if _is_product(m.mask) or not _is_product(m.scores):
        return None
    excluded = op("Where", op("Greater", m.mask, -math.inf), 0.0, -1.0)
    limited = add(op("Max", m.mask, -ABSORBING), mul(excluded, EXCLUDING))
    is_left = add(with_axes("ReduceMax", excluded, [m.mask.rank - 1], m.graph, keepdims=1), 1.0)
    return mul(op("Softmax", add(m.scores, limited), axis=-1), is_left)


LAST_AXIS = 13
"""The operator set from which Softmax computes along one axis."""


def _is_product(scores: Value, accepts: Callable[[Node, Value], bool] = lambda node, value: True) -> bool:
    """True if a product of matrices computes a value, perhaps with scales, sums and shapes behind it, of accepted operands."""
    value: Value | None = scores
    while (node := producer_of(value, "Add", "Div", "Mul", "Reshape")) is not None:
        value = node.inputs[0]
        if not all(accepts(node, operand) for operand in node.present_inputs[1:]):
            return False
    product = producer_of(value, "MatMul", "Gemm")
    return product is not None and all(accepts(product, operand) for operand in product.present_inputs[2:])


@rule("WhereToMulAdd", P("Where", "mask", "a", "b"))
def select(m: Match) -> Replacement:
    """Where(mask, a, b)  ->  a * w + b * (1 - w) with w = Where(mask, 1, 0); b + Where(mask, a, 0) for an infinite or very large a

    Opt-in: more nodes; useful only if an accelerator has no Where, and the mask is known before it computes. Infinite and NaN
        elements reach the result even if the mask hides them.
    """
    if not is_float(m.a, m.b) or None not in _numbers(m) or not _is_selectable(m.a) or not _is_selectable(m.b):
        return None
    return _added(m) or _weighted(m)


def _numbers(m: Match) -> tuple[float | None, float | None]:
    """The operands that are constants of one element."""
    return scalar(m.a), scalar(m.b)


def _added(m: Match) -> New | None:
    """The sum of both operands, with a masked number; None if no number is as large."""
    first, second = (abs(number or 0) >= ABSORBING for number in _numbers(m))
    if first:
        return add(op("Where", m.mask, m.a, 0.0), m.b)
    return add(m.a, op("Where", m.mask, 0.0, m.b)) if second else None


def _weighted(m: Match) -> New:
    """The sum of both operands, each multiplied by 1 where it is selected and by 0 elsewhere, without the product of a zero."""
    weight = op("Where", m.mask, 1.0, 0.0)
    rest = sub(1, weight)
    first, second = (
        number == 0 and other.rank is not None and other.rank >= (zero.rank or 0)
        for number, zero, other in zip(_numbers(m), (m.a, m.b), (m.b, m.a))
    )
    if second:
        return mul(m.a, weight)
    return mul(m.b, rest) if first else add(mul(m.a, weight), mul(m.b, rest))


def _is_selectable(value: Value) -> bool:
    """True unless the value has constant elements that are NaN, or infinite ones among several."""
    const = value.constant
    return const is None or bool(np.isfinite(const.numpy()).all()) or (const.size == 1 and not np.isnan(const.item()))


@rule("NanGuardToWeights", _guarded("scores"))
def unmasked(m: Match) -> Replacement:
    """Where(IsNaN(w), 0, w), w = Softmax(scores)  ->  w, for scores that no mask excludes: products of matrices with constant
    scales and finite summands, constant or selected by a mask

    Opt-in: useful only if an accelerator has no Where. NaN and infinities of the scores reach the result.
    """
    return m.weights if m.weights is m.node("softmax").out and _is_product(m.scores, _keeps_finite) else None


def _keeps_finite(node: Node, operand: Value) -> bool:
    """True if a sum with an operand, or a product with a constant below 2**100, is finite for scores below 2**75."""
    if node.op == "Add" and is_finite_mask(operand):
        return True
    return operand.constant is not None and bool((np.abs(operand.constant.numpy()) < ABSORBING).all())


MASKS = frozenset(r.name for r in guard + select)
