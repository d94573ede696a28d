"""Operators that move elements: shapes, layouts, slices, padding."""

from __future__ import annotations

import math

from ortconv.ir.operands import ints, is_only_quantized
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, constant, not_empty, rank, role
from ortconv.partition.nnapi.checks import EVERY, float32_or_uint8, images, keeps_parameters, nchw_level, quantized
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import Objection, Objections, Target


def reshape(unit: NodeUnit, target: Target) -> Objections:
    """Require that each 0 in the shape copies a dimension other than 0."""
    sizes, source = ints(unit.input(1)), unit.shape(0)
    if sizes is None or source is None:
        return
    for axis, size in enumerate(sizes):
        if size != 0:
            continue
        if unit.target.attr("allowzero", 0):
            yield Objection("empty", f"the shape is {list(sizes)} with allowzero 1: no dimension may be 0")
            return
        if axis < len(source) and source[axis] == 0:
            message = f"the shape {list(sizes)} copies dimension {axis} of {list(source)}"
            yield Objection("empty", f"{message}: it may not be 0")


def flatten(unit: NodeUnit, target: Target) -> Objections:
    shape = unit.shape(0)
    if shape is None:
        return
    axis = unit.target.attr("axis", 1)
    axis += len(shape) if axis < 0 else 0
    result = [math.prod(shape[:axis]), math.prod(shape[axis:])]
    if 0 in result:
        yield Objection("empty", f"the result has shape {result}: no dimension may be 0")


def concat(unit: NodeUnit, target: Target) -> Objections:
    if target.feature_level < 29:
        yield from keeps_parameters(unit, target)


def gather(unit: NodeUnit, target: Target) -> Objections:
    if unit.dtype(1) is not DType.INT32:
        yield from constant(1)(unit, target)


def no_negative_indices(unit: NodeUnit, target: Target) -> Objections:
    """Require indices of at least 0: GATHER does not count from the end."""
    indices = unit.constant(1)
    least = 0 if indices is None else int(indices.numpy().min(initial=0))
    if least < 0:
        message = f"{role(unit, 1)} holds {least}: NNAPI accepts indices from 0"
        yield Objection("constant", message, "add the size of the dimension to the indices below 0")


def split(unit: NodeUnit, target: Target) -> Objections:
    shape = unit.shape(0)
    axis = unit.target.attr("axis", 0)
    yield from constant(1)(unit, target)
    if not shape or not -len(shape) <= axis < len(shape):
        return
    size, parts = shape[axis], ints(unit.input(1))
    count = unit.target.attr("num_outputs", len(unit.target.outputs))
    if parts is not None and (len(set(parts)) > 1 or sum(parts) != size):
        found = f"the parts of dimension {size} are {list(parts)}"
    elif unit.input(1) is None and (count < 1 or size % count):
        found = f"dimension {size} is split into {count} parts"
    else:
        return
    yield Objection("shape", f"{found}: NNAPI needs them equal", "write it as Slice nodes")


def pad(unit: NodeUnit, target: Target) -> Objections:
    """Require mode constant and constant amounts of at least 0 on all axes."""
    inputs = unit.target.inputs
    if len(inputs) > 2 and inputs[2] is None:
        message = "constant_value is listed with an empty name: NNAPI needs a constant"
        yield Objection("constant", message, "state the value, or end the inputs before it")
    pads, source = ints(unit.input(1)), unit.rank(0)
    if pads is None:
        return
    if min(pads, default=0) < 0:
        yield Objection("attribute", f"pads are {list(pads)}: NNAPI accepts none below 0", "crop with Slice")
    all_axes = tuple(range(source or 0))
    if source is not None and ints(unit.input(3), all_axes) != all_axes:
        message = f"pads are {list(pads)} on some axes: NNAPI needs {2 * source} pads"
        yield Objection("attribute", message, "pad the other axes by 0")


def separate(unit: NodeUnit, target: Target) -> Objections:
    """Require another node between the operator and QuantizeLinear: the provider takes it for a QDQ group without inputs."""
    if is_only_quantized(unit.target):
        message = f"{unit.op} is between values that are not quantized and QuantizeLinear"
        yield Objection("group", message, "convert --use-nnapi puts an Identity after it")


def stated_axes(unit: NodeUnit, target: Target) -> Objections:
    """Require axes if there are steps: the provider looks for a constant without a name."""
    inputs = unit.target.inputs
    if len(inputs) > 4 and inputs[3] is None:
        yield Objection("constant", "axes are listed with an empty name: NNAPI needs a constant", "state the axes")


def no_int32_number(unit: NodeUnit, target: Target) -> Objections:
    """Require int64 or a rank for a single index: the provider drops the axis of an int32 number without an operation."""
    if unit.rank(1) == 0 and unit.dtype(1) is DType.INT32:
        yield Objection("attribute", f"{role(unit, 1)} is a single number of int32", "give it as int64")


SHAPED = rank(1, 4)
MOVED = rank(1, 4, fewer="", more="")
CONSTANT = attribute_is("mode", "constant", instead="write it as Slice nodes and Concat")
CHANNELS = "reorder the channels with Gather before it, and use mode DCR"

ROWS = (
    NnapiRow("Concat", types=float32_or_uint8, check=all_of(SHAPED, concat), qdq=quantized(EVERY), takes_empty=True),
    NnapiRow("Reshape", since=5, check=all_of(MOVED, constant(1), reshape), qdq=quantized()),
    NnapiRow("Flatten", check=all_of(MOVED, flatten)),
    NnapiRow("Squeeze", level=28, check=all_of(MOVED, constant(1))),
    NnapiRow("Unsqueeze", check=all_of(MOVED, constant(1))),
    NnapiRow("Transpose", level=28, types=float32_or_uint8, check=SHAPED, qdq=quantized(), takes_empty=True),
    NnapiRow("Identity", takes_empty=True),
    NnapiRow("Gather", level=29, check=all_of(SHAPED, not_empty, gather), runtime=all_of(no_negative_indices, no_int32_number)),
    NnapiRow("Slice", since=10, level=28, check=all_of(rank(0, 4), not_empty, constant(1, 2, 3, 4), stated_axes)),
    NnapiRow("Split", since=13, level=29, check=split),
    NnapiRow("Pad", since=11, level=29, check=all_of(SHAPED, not_empty, CONSTANT, constant(1, 2), pad),
        runtime=separate),
    NnapiRow("DepthToSpace",
        check=all_of(nchw_level("DepthToSpace"), images, rank(4, 4), attribute_is("mode", "DCR", instead=CHANNELS))),
)  # fmt: skip
