"""Elementwise arithmetic and activations."""

from __future__ import annotations

import math

from ortconv.ir.operands import clip_bounds
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, constant, dtype, dynamic, rank, role, type_name
from ortconv.partition.coreml.checks import floats, typed
from ortconv.partition.coreml.row import ML_PROGRAM, CoremlRow
from ortconv.partition.policy import Objection, Objections, Target


def slope(unit: NodeUnit, target: Target) -> Objections:
    """Require a known number of channels, and a slope of shape [C,1,1], or of a single value if there is more than one channel."""
    x, found = unit.input(0), unit.shape(1)
    if x is not None and x.rank in (3, 4) and not isinstance(x.dim(-3), int):
        yield dynamic(x, target.name, "its number of channels")
    if found is None:
        return
    if math.prod(found) == 1:
        if x is not None and x.dim(-3) == 1:
            message = f"{role(unit, 1)} has 1 value for 1 channel: CoreML accepts 1 value for several channels only"
            yield Objection("shape", message, "write it as LeakyRelu")
    elif found[1:] != (1, 1):
        message = f"{role(unit, 1)} has shape {list(found)}: CoreML accepts [C,1,1] or 1 value"
        yield Objection("shape", message, "reshape the slope to [C,1,1]")


def same_types(unit: NodeUnit, target: Target) -> Objections:
    yield from floats(unit, target)
    if unit.dtype(1) is not unit.dtype(0):
        base, exponent = map(type_name, (unit.dtype(0), unit.dtype(1)))
        message = f"{role(unit, 1)} is {exponent} and the base {base}: {target.name} accepts equal types"
        yield Objection("dtype", message, "cast the exponent to the type of the base")


def clip(unit: NodeUnit, target: Target) -> Objections:
    """Require constant bounds that differ, of floats."""
    yield from constant(1, 2)(unit, target)
    low, high = clip_bounds(unit.target)
    if low == high:
        yield Objection("attribute", f"both bounds are {low}: {target.name} accepts different ones", "fold the node")
    if unit.input(1) is not None or unit.input(2) is not None:
        yield from typed(DType.FLOAT)(unit, target)


choice = all_of(dtype(DType.BOOL), dtype(DType.FLOAT, DType.FLOAT16, slots=(1, 2)))

ROWS = (
    *(CoremlRow(op, since=7) for op in ("Add", "Mul", "Sub", "Div")),
    CoremlRow("Pow", since=7, types=same_types),
    CoremlRow("And", formats=ML_PROGRAM, types=dtype(DType.BOOL, slots=(0, 1))),
    CoremlRow("Where", formats=ML_PROGRAM, types=choice),
    *(CoremlRow(op, since=6) for op in ("Sigmoid", "Tanh", "Relu", "LeakyRelu")),
    CoremlRow("PRelu", since=6, check=all_of(rank(3, 4), constant(1), slope)),
    CoremlRow("QuickGelu", formats=ML_PROGRAM, domains=(MICROSOFT,)),
    CoremlRow("HardSigmoid", since=6, types=typed(DType.FLOAT)),
    CoremlRow("Elu", since=6, formats=ML_PROGRAM),
    *(CoremlRow(op) for op in ("Sqrt", "Reciprocal", "Identity")),
    *(CoremlRow(op, formats=ML_PROGRAM)
      for op in ("Max", "Gelu", "Softplus", "Erf", "Round", "Exp", "Sin", "Cos", "Ceil")),
    CoremlRow("Clip", check=clip),
)  # fmt: skip
