"""Normalisation, softmax and reductions."""

from __future__ import annotations

from ortconv.partition.checks import all_of, attribute_is, constant, rank, single_output
from ortconv.partition.coreml.checks import static
from ortconv.partition.coreml.row import ML_PROGRAM, NEURAL_NETWORK, Row
from ortconv.partition.policy import Target
from ortconv.partition.reasons import Objection, Objections
from ortconv.partition.units import Unit


def reduced_axes(unit: Unit, target: Target) -> Objections:
    """An empty list of axes must mean all axes."""
    if unit.target.attr("noop_with_empty_axes", 0) != 1:
        return
    const = unit.constant(1)
    if (unit.input(1) is None and not unit.target.attr("axes", ())) or (const is not None and const.size == 0):
        message = f"noop_with_empty_axes is 1 and axes are empty: {target.name} needs at least 1 axis"
        yield Objection("attribute", message, "leave the node out")


BATCH = all_of(
    rank(4, 4), constant(1, 2, 3, 4), single_output, attribute_is("spatial", 1), attribute_is("training_mode", 0)
)
SCALED = all_of(constant(1, 2), attribute_is("stash_type", 1), single_output)
REDUCED = all_of(constant(1), reduced_axes)

ROWS = (
    Row("BatchNormalization", since=7, check=BATCH),
    Row("LayerNormalization", formats=ML_PROGRAM, check=SCALED),
    Row("InstanceNormalization", formats=ML_PROGRAM, check=SCALED),
    Row("GroupNormalization", formats=ML_PROGRAM, check=SCALED),
    Row("LRN", formats=NEURAL_NETWORK),
    Row("Softmax", check=static),
    Row("ReduceSum", check=REDUCED),
    Row("ReduceMean", check=REDUCED),
    Row("ReduceMax", formats=ML_PROGRAM, check=REDUCED),
    Row("ReduceMin", formats=ML_PROGRAM, check=REDUCED),
    Row("ReduceProd", formats=ML_PROGRAM, check=REDUCED),
)
