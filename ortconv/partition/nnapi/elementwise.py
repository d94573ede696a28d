"""Elementwise arithmetic, activations, and quantization outside of QDQ groups."""

from __future__ import annotations

import math

from ortconv.ir.operands import clip_bounds
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import dtype, rank, role
from ortconv.partition.nnapi.checks import (
    coarser_output,
    float32,
    needs_level,
    output_of_256ths,
    quantized,
    quantized_input,
    quantized_output,
)
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import NUMBERS, Objection, Objections, Target

MIN_MAX = "write it as Max and Min, from feature level 29 on"
CLIP_RANGES = ((0.0, 6.0), (-1.0, 1.0))


def clip(unit: NodeUnit, target: Target) -> Objections:
    """The bounds must be those of RELU6 or RELU1, as attributes or constants."""
    low, high = clip_bounds(unit.target)
    unknown = [name for name, bound in (("min", low), ("max", high)) if math.isnan(bound)]
    for name in unknown:
        yield Objection("constant", f"{name} is computed or fed: NNAPI needs a constant", MIN_MAX)
    if not unknown and (low, high) not in CLIP_RANGES:
        advice = "write it as Relu" if (low, high) == (0.0, float("inf")) else MIN_MAX
        yield Objection("attribute", f"the bounds are {low:g} and {high:g}: NNAPI has 0 and 6, -1 and 1", advice)


def two_inputs(unit: NodeUnit, target: Target) -> Objections:
    if len(unit.inputs) != 2:
        advice = "chain nodes of two inputs" if len(unit.inputs) > 2 else "leave the node out"
        yield Objection("inputs", f"the node has {len(unit.inputs)} inputs: NNAPI accepts 2", advice)


def slope(unit: NodeUnit, target: Target) -> Objections:
    """Require that broadcasting with the slope does not increase the rank."""
    own, found = unit.rank(0), unit.rank(1)
    if own is not None and found is not None and found > own:
        message = f"{role(unit, 1)} has rank {found}: NNAPI accepts at most {own} here, the rank of the first input"
        yield Objection("rank", message, "drop leading dimensions of 1 from the slope")


def alpha(unit: NodeUnit, target: Target) -> Objections:
    """Require an alpha of at least 0: NNAPI's ELU is max(0, x) + min(0, alpha * (exp(x) - 1))."""
    found = unit.target.attr("alpha", 1.0)
    if found < 0:
        message = f"alpha is {found:g}: NNAPI changes numbers above 0 by it, and makes 0 of those below"
        yield Objection(NUMBERS, message, f"subtract Elu with alpha {-found:g} of Min with 0 from Relu")


def cast(unit: NodeUnit, target: Target) -> Objections:
    to = DType(unit.target.attr("to", 0))
    if to not in (DType.FLOAT, DType.INT32):
        yield Objection("attribute", f"to is {to.name.lower()}: NNAPI casts to float32 or int32")


BINARY_RANKS = rank(0, 4, 0, 1)
SMALL = rank(0, 4)
PAIR = quantized((0, 1))

ROWS = (
    NnapiRow("Add", since=7, check=BINARY_RANKS, qdq=PAIR, takes_empty=True),
    NnapiRow("Mul", since=7, check=BINARY_RANKS, qdq=PAIR, runtime=coarser_output(), takes_empty=True),
    *(NnapiRow(op, since=7, level=28, check=BINARY_RANKS, takes_empty=True) for op in ("Sub", "Div")),
    NnapiRow("Pow", since=7, level=29, types=dtype(DType.FLOAT, slots=(0, 1)), check=BINARY_RANKS),
    NnapiRow("PRelu", level=29, check=BINARY_RANKS, runtime=slope),
    NnapiRow("QLinearAdd", types=PAIR, check=BINARY_RANKS, domains=(MICROSOFT,), takes_empty=True),
    NnapiRow("QLinearMul", types=PAIR, check=BINARY_RANKS, domains=(MICROSOFT,), runtime=coarser_output(), takes_empty=True),
    *(NnapiRow(op, since=6, level=29, check=two_inputs) for op in ("Max", "Min")),
    *(NnapiRow(op, since=6, level=29) for op in ("Abs", "Exp", "Log", "Neg", "Sin", "Sqrt")),
    NnapiRow("Floor", since=6, runtime=SMALL),
    NnapiRow("Tanh", since=6, runtime=SMALL, takes_empty=True),
    NnapiRow("Sigmoid", since=6, check=rank(1, 4), takes_empty=True),
    NnapiRow("QLinearSigmoid", types=quantized(), check=output_of_256ths, domains=(MICROSOFT,),
        runtime=SMALL, takes_empty=True),
    NnapiRow("Elu", since=6, level=30, runtime=alpha),
    NnapiRow("LeakyRelu", since=6, check=rank(1, 4),
        runtime=lambda unit, target: needs_level("LeakyRelu by LESS and SELECT", 29, target)),
    NnapiRow("Relu", runtime=SMALL, takes_empty=True),
    NnapiRow("Clip", check=clip, runtime=SMALL, takes_empty=True),
    NnapiRow("Cast", since=6, level=29, check=cast),
    NnapiRow("DequantizeLinear", types=quantized_input, domains=("", MICROSOFT), runtime=SMALL, takes_empty=True),
    NnapiRow("QuantizeLinear", level=29, types=quantized_output, domains=("", MICROSOFT), runtime=float32, takes_empty=True),
)  # fmt: skip
