"""Normalization, softmax and reductions."""

from __future__ import annotations

from ortconv.ir.operands import ints
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import INFERENCE, all_of, attribute_is, constant, dtype, rank, single_output
from ortconv.partition.coreml.checks import static
from ortconv.partition.coreml.row import ML_PROGRAM, NEURAL_NETWORK, CoremlRow
from ortconv.partition.policy import Objection, Objections, Target


def reduced_axes(unit: NodeUnit, target: Target) -> Objections:
    """Require, in NeuralNetwork format, that an empty list of axes means all axes."""
    if unit.target.attr("noop_with_empty_axes", 0) and not target.is_mlprogram and not ints(unit.input(1)):
        message = f"noop_with_empty_axes is 1 and axes are empty: {target.name} needs at least 1 axis"
        yield Objection("attribute", message, "leave the node out")


def softmax(unit: NodeUnit, target: Target) -> Objections:
    """Require a static shape below version 13, where dimensions are merged."""
    if unit.since < 13:
        yield from static(unit, target)


SCALED = all_of(constant(1, 2), attribute_is("stash_type", 1), single_output)
REDUCED = all_of(constant(1), reduced_axes)

ROWS = (
    CoremlRow("BatchNormalization", since=7, check=all_of(rank(4, 4), INFERENCE)),
    *(CoremlRow(op, formats=ML_PROGRAM, types=dtype(DType.FLOAT, DType.FLOAT16), check=SCALED)
      for op in ("LayerNormalization", "InstanceNormalization", "GroupNormalization")),
    CoremlRow("LRN", formats=NEURAL_NETWORK, check=rank(3, 4)),
    CoremlRow("Softmax", check=softmax),
    *(CoremlRow(op, check=REDUCED) for op in ("ReduceSum", "ReduceMean")),
    *(CoremlRow(op, formats=ML_PROGRAM, check=REDUCED) for op in ("ReduceMax", "ReduceMin", "ReduceProd")),
)  # fmt: skip
