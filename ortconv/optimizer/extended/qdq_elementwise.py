"""Activations, pools, sums, products, Concat and Where on 8-bit integers: com.microsoft:QLinear*."""

from __future__ import annotations

from ortconv.ir.graph import Node
from ortconv.ir.schema import attribute, since_version
from ortconv.ir.types import DType
from ortconv.optimizer.engine import Replacement, Source, rule
from ortconv.optimizer.extended.qdq import (
    BYTES,
    Quantized,
    as_unsigned,
    dequantized,
    is_signed_constant,
    microsoft,
    quantize_patterns,
    quantizer,
)
from ortconv.optimizer.pattern import Match, P


def _operands(m: Match, slots: range) -> tuple[list[Quantized], Quantized] | None:
    """The quantized inputs at these slots and the result: per tensor, all of one 8-bit type; None if they are not."""
    y = quantizer(m.root)
    found = [dequantized(m.target.input(slot), m.root) for slot in slots]
    inputs = [x for x in found if x is not None]
    if y is None or y.dtype not in BYTES or len(inputs) != len(found):
        return None
    if not all(q.is_per_tensor for q in (*inputs, y)):
        return None
    if all(x.dtype is y.dtype for x in inputs):
        return inputs, y
    if y.dtype is DType.UINT8 and all(x.dtype is DType.UINT8 or is_signed_constant(x) for x in inputs):
        return [x if x.dtype is DType.UINT8 else as_unsigned(x, m.root) for x in inputs], y
    return None


def _softmax(node: Node) -> dict[str, object]:
    return {"axis": attribute(node, "axis"), "opset": since_version(node)}


UNARY = {
    "AveragePool": lambda node: {k: v for k, v in node.attrs.items() if k != "dilations"},
    "GlobalAveragePool": lambda node: {"channels_last": 0},
    "LeakyRelu": lambda node: {"alpha": attribute(node, "alpha")},
    "Sigmoid": lambda node: {},
    "Softmax": _softmax,
}
"""Operators with one input, and the attributes of their counterparts."""


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(tuple(UNARY), "x", name="target")))
def fuse_unary(m: Match) -> Replacement:
    "Q(op(DQ(x)))  ->  QLinear<op>(x)"
    found = _operands(m, range(1))
    if found is None or any(d != 1 for d in m.target.attr("dilations", ())):
        return None
    (x,), y = found
    if "Pool" in m.target.op and not 3 <= (m.x.rank or 0) <= 5:
        return None
    return microsoft(f"QLinear{m.target.op}", [*x.operand, *y.parameters], m.target, UNARY[m.target.op](m.target))


@rule("QDQSelectorActionTransformer", *quantize_patterns(P(("Add", "Mul"), "a", "b", name="target")))
def fuse_binary(m: Match) -> Replacement:
    "Q(op(DQ(a), DQ(b)))  ->  QLinear<op>(a, b)"
    found = _operands(m, range(2)) if m.graph.opset() >= 7 else None
    if found is None:
        return None
    (a, b), y = found
    return microsoft(f"QLinear{m.target.op}", [*a.operand, *b.operand, *y.parameters], m.target)


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Concat", ..., name="target")))
def fuse_concat(m: Match) -> Replacement:
    "Q(Concat(DQ(a), ...))  ->  QLinearConcat(a, ...)"
    found = _operands(m, range(len(m.target.inputs)))
    if found is None:
        return None
    inputs, y = found
    parts: list[Source] = [part for x in inputs for part in x.operand]
    return microsoft("QLinearConcat", [*y.parameters, *parts], m.target, {"axis": attribute(m.target, "axis")})


@rule("QDQSelectorActionTransformer", *quantize_patterns(P("Where", "condition", "a", "b", name="target")))
def fuse_where(m: Match) -> Replacement:
    "Q(Where(c, DQ(a), DQ(b)))  ->  QLinearWhere(c, a, b)"
    found = _operands(m, range(1, 3))
    if found is None:
        return None
    (a, b), y = found
    return microsoft("QLinearWhere", [m.condition, *a.operand, *b.operand, *y.parameters], m.target)


RULES = fuse_unary + fuse_binary + fuse_concat + fuse_where
