"""Guards that set NaN after the Softmax of attention to zero."""

from __future__ import annotations

from collections.abc import Iterator

from ortconv.ir.graph import Value
from ortconv.ir.operands import own_producer, reader_of
from ortconv.ir.schema import attribute
from ortconv.optimizer.conditions import exactly
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.extended.attention.biased import leaves_a_key, split_mask
from ortconv.optimizer.extended.attention.heads import Path
from ortconv.optimizer.extended.attention.projection import projected_from
from ortconv.optimizer.pattern import C, Match, P

GUARD = P("Where", P("IsNaN", "weights", name="test"), C("zero", where=exactly(0)), "weights")


@rule("NanGuardElimination", GUARD)
def drop_guard(m: Match) -> Replacement:
    """Where(IsNaN(weights), 0, weights) @ values  ->  weights @ values, for weights = Softmax(query @ key + mask)

    Differs: for self-attention whose mask leaves a key for every row. NaN comes from the tensor from which query, key and
        value are computed; then the values contain NaN, and the product is NaN whatever the weights are. Scores that
        overflow to infinity give NaN instead of 0.
    """
    softmax, stack = m.weights.producer, reader_of(m.root.out, "Reshape")
    product = reader_of(m.root.out if stack is None else stack.out, "MatMul")
    if softmax is None or product is None or not softmax.is_op("Softmax"):
        return None
    total = softmax.present_inputs[0]
    if product.inputs[0] is not (m.root.out if stack is None else stack.out):
        return None
    over_keys = attribute(softmax, "axis") in (-1, (total.rank or 0) - 1)
    return m.weights if over_keys and _is_of_one_source(total, product.present_inputs[1]) else None


def _is_of_one_source(total: Value, values: Value) -> bool:
    """True if scores with an added mask and values are computed from one tensor, and no row is masked as a whole."""
    biased = split_mask(total)
    if biased is None or biased.replaces or biased.layers is not None or not leaves_a_key(biased.mask):
        return False
    path = Path(biased.scores).unscaled()
    if own_producer(path.value, "Reshape") is not None:
        path = path.through().unscaled()
    multiply = own_producer(path.value, "MatMul")
    if multiply is None:
        return False
    return bool(set.intersection(*(set(_sources(operand)) for operand in (values, *multiply.present_inputs))))


def _sources(operand: Value) -> Iterator[Value]:
    """The tensors from which an operand is computed by products with constant weights, the nearest first."""
    source = projected_from(operand)
    while source is not None:
        yield source
        source = projected_from(source)
