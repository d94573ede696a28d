"""Guards that set NaN after the Softmax of attention to zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ortconv.ir.graph import Node, Value
from ortconv.ir.operands import constant_of, ints, own_producer, producer_of, reader_of, scalar
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import attribute
from ortconv.optimizer.conditions import exactly, is_finite
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.parts import part_of
from ortconv.optimizer.pattern import C, Match, P

GUARD = P("Where", P("IsNaN", "weights", name="test"), C("zero", where=exactly(0)), "weights")

MOST_VALUES = 128
"""Maximum number of values to look at between one operand of attention and its source."""


@rule("NanGuardElimination", GUARD)
def drop_guard(m: Match) -> Replacement:
    """Where(IsNaN(weights), 0, weights) @ values  ->  weights @ values, for weights = Softmax(query @ key + mask)

    Differs: for self-attention whose mask leaves a key for every row. NaN comes from the tensor from which query, key and
        value are computed; then the values contain NaN, and the product is NaN whatever the weights are. Scores that
        overflow to infinity give NaN instead of 0.
    """
    softmax, values = producer_of(m.weights, "Softmax"), _weighted(m.root.out)
    if softmax is None or values is None or attribute(softmax, "axis") not in (-1, (m.weights.rank or 0) - 1):
        return None
    multiply = _multiply(softmax.present_inputs[0])
    operands = [] if multiply is None else multiply.present_inputs
    found = any(all(_is_computed_from(x, source) for x in operands) for source in _sources(values))
    return m.weights if operands and found else None


def _weighted(weights: Value) -> Value | None:
    """The values that a product, perhaps behind a Reshape, multiplies by weights that nothing else reads; None if there is none."""
    stack = reader_of(weights, "Reshape")
    left = weights if stack is None else stack.out
    product = reader_of(left, "MatMul")
    return product.inputs[1] if product is not None and product.inputs[0] is left else None


def _multiply(scores: Value) -> Node | None:
    """The product that computes scores, to which masks are added that leave a key to every row; None if there is none."""
    value: Value | None = scores
    while (node := own_producer(value, "MatMul", "Add", "Mul", "Div", "Reshape")) is not None and node.op != "MatMul":
        a, b = node.input(0), node.input(1)
        may_lack = leaves_a_key if node.op == "Add" else _is_finite_number
        if node.op == "Reshape" or may_lack(b):
            value = a
        else:
            value = b if node.op != "Div" and may_lack(a) else None
    return node


def _is_finite_number(value: Value | None) -> bool:
    """True for a finite number other than 0."""
    number = scalar(value)
    return bool(number) and math.isfinite(number or 0)


def _sources(operand: Value) -> Iterator[Value]:
    """The tensors from which an operand is computed by products with constant weights, the nearest first."""
    source = projected_from(operand)
    while source is not None:
        yield source
        source = projected_from(source)


def projected_from(value: Value | None) -> Value | None:
    """The input of the product with constant weights from which heads are computed, if no later node could lose NaN; else None."""
    while value is not None and (node := value.producer) is not None:
        x, other = node.input(0), node.input(1)
        if node.op in _PRODUCTS:
            return x if constant_of(other) is not None else None
        if (part := part_of(value)) is not None:
            if part.axis != (part.x.rank or 0) - 1:
                return None
            value = part.x
            continue
        if node.op not in _KEEPS_NAN and not _is_repeat(node):
            return None
        value, beside = (other, x) if constant_of(x) is not None else (x, other)
        if node.op in _OF_TWO and constant_of(beside) is None:
            return None
    return None


def _is_repeat(node: Node) -> bool:
    """True for a Gather that selects every slice along its axis, as of heads that several queries share."""
    indices = ints(node.input(1)) if node.op == "Gather" else None
    count = node.dim(0, node.attr("axis", 0)) if indices else None
    return isinstance(count, int) and {i % count for i in indices or ()} == set(range(count))


_PRODUCTS = ("MatMul", "Gemm", "MatMulNBits", "DynamicQuantizeMatMul")
_OF_TWO = ("Add", "Mul", "Div")
_NORMS = ("RotaryEmbedding", "LayerNormalization", "SimplifiedLayerNormalization")
_KEEPS_NAN = (*_OF_TWO, *_NORMS, "Reshape", "Unsqueeze", "Expand", "Tile", "Transpose")
_FINITE = (*_PRODUCTS, *_NORMS, "Add", "Sub", "Mul", "Neg", "Cos", "Sin", "Cast")


def _is_computed_from(operand: Value, source: Value) -> bool:
    """True if an operand depends on this tensor and on numbers only, and is finite wherever the tensor is."""
    pending, seen = [operand], {source}
    while pending:
        value = pending.pop()
        if value in seen or (value.dtype is not None and not value.dtype.is_float):
            continue
        seen.add(value)
        node = value.producer
        if value.constant is not None and is_finite(value.constant.numpy()):
            continue
        if node is None or len(seen) > MOST_VALUES or not _keeps_finite(node):
            return False
        pending += node.present_inputs
    return True


def _keeps_finite(node: Node) -> bool:
    """True if the results for finite operands are finite, unless they overflow."""
    if node.op == "Div":
        divisor = constant_of(node.inputs[1])
        return divisor is not None and bool(np.all(divisor.numpy()))
    return traits(node).has(Trait.MOVES, Trait.JOINS) or node.op in _FINITE


def leaves_a_key(mask: Value | None) -> bool:
    """True if, after adding the mask, every row of finite scores is still finite for at least one key."""
    if mask is None or mask.constant is None or not mask.constant.rank:
        return is_finite_mask(mask)
    added = mask.constant.numpy()
    return bool(np.all(added < np.inf) and np.all(np.isfinite(added).any(axis=-1)))


def is_finite_mask(mask: Value | None) -> bool:
    """True if no element of a mask can be infinite or NaN."""
    if mask is None:
        return True
    if mask.constant is not None:
        return is_finite(mask.constant.numpy())
    node = mask.producer
    if node is None:
        return False
    if node.is_op("Where"):
        return is_finite_mask(node.inputs[1]) and is_finite_mask(node.inputs[2])
    return traits(node).has(Trait.MOVES) and is_finite_mask(node.inputs[0])
