"""Elementwise arithmetic and activations."""

from __future__ import annotations

from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, constant, dtype, rank, role, type_name
from ortconv.partition.coreml.checks import by_format, floats
from ortconv.partition.coreml.row import ML_PROGRAM, Row
from ortconv.partition.policy import Target
from ortconv.partition.reasons import Objection, Objections
from ortconv.partition.units import MS_DOMAIN


def slope(unit: NodeUnit, target: Target) -> Objections:
    """One value per channel, [C,1,1], or one value for more than one channel."""
    shape, found = unit.input(0), unit.shape(1)
    if found is None:
        return
    count = 1
    for d in found:
        count *= d
    if count == 1:
        if shape is not None and shape.dim(-3) == 1:
            message = f"{role(unit, 1)} has 1 value for 1 channel: CoreML takes 1 value for several channels only"
            yield Objection("shape", message, "write it as LeakyRelu")
    elif len(found) != 3 or found[1:] != (1, 1):
        message = f"{role(unit, 1)} has shape {list(found)}: CoreML takes [C,1,1] or 1 value"
        yield Objection("shape", message, "reshape the slope to [C,1,1]")


def same_types(unit: NodeUnit, target: Target) -> Objections:
    yield from floats(unit, target)
    if unit.dtype(1) is not unit.dtype(0):
        base, exponent = map(type_name, (unit.dtype(0), unit.dtype(1)))
        message = f"{role(unit, 1)} is {exponent} and the base {base}: {target.name} takes equal types"
        yield Objection("dtype", message, "cast the exponent to the type of the base")


both_bool = dtype(DType.BOOL, slots=(0, 1))
choice = all_of(dtype(DType.BOOL), dtype(DType.FLOAT, DType.FLOAT16, slots=(1, 2)))
PRELU = all_of(rank(3, 4), by_format(constant(1), constant()), slope)

ROWS = (
    Row("Add", since=7),
    Row("Mul", since=7),
    Row("Sub", since=7),
    Row("Div", since=7),
    Row("Pow", since=7, types=same_types),
    Row("Max", formats=ML_PROGRAM),
    Row("And", formats=ML_PROGRAM, types=both_bool),
    Row("Where", formats=ML_PROGRAM, types=choice),
    Row("Sigmoid", since=6),
    Row("Tanh", since=6),
    Row("Relu", since=6),
    Row("LeakyRelu", since=6),
    Row("PRelu", since=6, check=PRELU),
    Row("Gelu", formats=ML_PROGRAM, domains=("", MS_DOMAIN)),
    Row("QuickGelu", formats=ML_PROGRAM, domains=(MS_DOMAIN,)),
    Row("HardSigmoid", formats=ML_PROGRAM),
    Row("Elu", formats=ML_PROGRAM),
    Row("Softplus", formats=ML_PROGRAM),
    Row("Sqrt"),
    Row("Reciprocal"),
    Row("Erf", formats=ML_PROGRAM),
    Row("Round", formats=ML_PROGRAM),
    Row("Exp", formats=ML_PROGRAM),
    Row("Sin", formats=ML_PROGRAM),
    Row("Cos", formats=ML_PROGRAM),
    Row("Ceil", formats=ML_PROGRAM),
    Row("Clip", check=constant(1, 2)),
    Row("Identity", formats=ML_PROGRAM),
)
