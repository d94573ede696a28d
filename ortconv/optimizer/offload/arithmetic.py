"""Expresses elementwise arithmetic by other operators, mostly by those that older accelerators support."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from ortconv.ir.operands import scalar
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType
from ortconv.optimizer.engine import NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import add, div, is_float, mul, op, sub, unary
from ortconv.optimizer.pattern import C, Match, P

LONGEST_CHAIN = 64
"""Length of a chain of new nodes. The engine makes the nodes of a replacement recursively."""


@rule("VariadicToPairs", P(("Max", "Min"), "a", "b", "c", ...), P(("Sum", "Mean"), ...))
def pairs(m: Match) -> Replacement:
    """Max(a, b, c)  ->  Max(Max(a, b), c); also Min, Sum as Add, and Mean as Add and a product

    Opt-in: more nodes; useful only if an accelerator supports exactly two inputs.
    """
    values = m.root.inputs
    if not is_float(*values) or any(v is None for v in values):
        return None
    name = m.root.op if m.root.op in ("Max", "Min") else "Add"
    total = _in_pairs(name, values)
    if m.root.op == "Mean" and len(values) > 1:
        return mul(total, 1 / len(values))
    return total if len(values) > 1 else op("Identity", total)


def _in_pairs(name: str, values: Sequence[NewInput]) -> NewInput:
    """One node for each two operands, in their order as far as chains do not become long."""
    while len(values) > 1:
        chains = (values[i : i + LONGEST_CHAIN] for i in range(0, len(values), LONGEST_CHAIN))
        values = [reduce(partial(op, name), chain) for chain in chains]
    return values[0]


@rule("PowToMul", P("Pow", "x", C("exponent", one=True)))
def power(m: Match) -> Replacement:
    """Pow(x, 2)  ->  x * x, Pow(x, 3)  ->  x * x * x, Pow(x, whole number of another type)  ->  Pow(x, float)

    Opt-in: useful only if an accelerator supports the new form and not the old one.
    """
    exponent = scalar(m.exponent)
    rank = m.x.rank
    if not is_float(m.x) or exponent is None or rank is None or m.tensor("exponent").rank > rank:
        return None
    if exponent == 2:
        return mul(m.x, m.x)
    if exponent == 3:
        return mul(mul(m.x, m.x), m.x)
    if m.exponent.dtype is DType.FLOAT or float(np.float32(exponent)) != exponent:
        return None
    return op("Pow", m.x, m.tensor("exponent").numpy().astype(np.float32))


@rule("DivToMul", P("Div", "x", C("divisor")))
def division(m: Match) -> Replacement:
    """x / c  ->  x * (1 / c), if the reciprocals are exact: for powers of two

    Opt-in: useful only if an accelerator multiplies and does not divide: NNAPI at feature level 27.
    """
    if not is_float(m.x):
        return None
    divisor = m.tensor("divisor").numpy()
    with np.errstate(all="ignore"):
        reciprocal: Array = np.asarray(1 / divisor, np.float32)
    tiny = np.finfo(np.float32).tiny
    exact = (np.abs(np.frexp(divisor)[0]) == 0.5) & np.isfinite(reciprocal)
    normal = (np.abs(divisor) >= tiny) & (np.abs(reciprocal) >= tiny)
    return mul(m.x, reciprocal) if bool(np.all(exact & normal)) else None


@rule("SubToAdd", P("Sub", "a", "b"))
def subtraction(m: Match) -> Replacement:
    """a - b  ->  a + b * -1, with a folded product if b is constant

    Opt-in: useful only if an accelerator adds and does not subtract: NNAPI at feature level 27.
    """
    if not is_float(m.a):
        return None
    b = m.b
    return add(m.a, mul(b, -1) if b.constant is None else np.asarray(-b.constant.numpy()))


@rule("NegToMul", unary("Neg"))
def negation(m: Match) -> Replacement:
    """-x  ->  x * -1

    Opt-in: useful only if an accelerator multiplies and has no Neg: NNAPI below feature level 29.
    """
    return mul(m.x, -1)


@rule("AbsToRelu", unary("Abs"))
def magnitude(m: Match) -> Replacement:
    """Abs(x)  ->  Relu(x) + Relu(x * -1)

    Opt-in: more nodes; useful only if an accelerator has no Abs: NNAPI below feature level 29.
    """
    return add(op("Relu", m.x), op("Relu", mul(m.x, -1)))


@rule("CeilToFloor", unary("Ceil"))
def ceiling(m: Match) -> Replacement:
    """Ceil(x)  ->  Floor(x * -1) * -1"""
    return mul(op("Floor", mul(m.x, -1)), -1)


@rule("ReciprocalToDiv", unary("Reciprocal"))
def reciprocal(m: Match) -> Replacement:
    """Reciprocal(x)  ->  1 / x

    Opt-in: useful only if an accelerator divides and has no Reciprocal.
    """
    return div(1, m.x)


@rule("CosToSin", unary("Cos"))
def cosine(m: Match) -> Replacement:
    """Cos(x)  ->  1 - 2 * Sin(x / 2)^2

    Opt-in: more nodes; useful only if an accelerator supports them but not Cos; equal except for rounding at the scale
        of 1.
    """
    sine = op("Sin", mul(m.x, 0.5))
    return sub(1, mul(mul(sine, sine), 2))
