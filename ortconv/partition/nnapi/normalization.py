"""Normalization, softmax and means."""

from __future__ import annotations

from ortconv.ir.operands import ints
from ortconv.ir.schema import attribute
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import INFERENCE, all_of, constant, rank, role
from ortconv.partition.nnapi.checks import images, nchw_level, output_of_256ths, quantized
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import NUMBERS, Objection, Objections, Target


def softmax(unit: NodeUnit, target: Target) -> Objections:
    """Check rank and axis.

    Softmax before version 13 may have any rank and axis: it runs on a matrix between two Reshapes. Newer versions may have rank 4
    at most; below feature level 29, only rank 2 or 4 and the last axis.
    """
    found = unit.rank(0)
    if found is None or unit.since < 13:
        return
    if target.feature_level >= 29:
        yield from rank(0, 4)(unit, target)
        return
    below = f"below feature level 29 (the target has {target.feature_level})"
    if found not in (2, 4):
        message = f"{role(unit, 0)} has rank {found}: NNAPI accepts 2 or 4 {below}"
        yield Objection("rank", message, "reshape it to a matrix and back")
    axis = attribute(unit.target, "axis")
    if axis not in (-1, found - 1):
        message = f"axis is {axis}: NNAPI accepts {found - 1}, the last, {below}"
        yield Objection("attribute", message, "transpose the axis to the end and back")


def odd_size(unit: NodeUnit, target: Target) -> Objections:
    """Require an odd size: NNAPI sums as many channels before as behind."""
    size = unit.target.attr("size", 1)
    if size % 2 == 0:
        yield Objection(NUMBERS, f"size is {size}: NNAPI sums {size - 1} channels, as many before as behind")


def no_noop(unit: NodeUnit, target: Target) -> Objections:
    """Require that noop_with_empty_axes is 0, even if there are axes."""
    if unit.target.attr("noop_with_empty_axes", 0):
        advice = "leave the attribute out, since there are axes" if ints(unit.input(1)) else "leave the node out"
        yield Objection("attribute", "noop_with_empty_axes is 1: NNAPI accepts 0", advice)


ROWS = (
    NnapiRow("BatchNormalization", since=7, check=all_of(images, rank(0, 4), INFERENCE), takes_empty=True),
    NnapiRow("LRN", level=28, check=all_of(nchw_level("LRN"), rank(4, 4)), runtime=odd_size),
    NnapiRow("Softmax", level=28, check=all_of(softmax, output_of_256ths), qdq=quantized(), runtime=rank(0, 4), takes_empty=True),
    NnapiRow("ReduceMean", level=28, check=all_of(rank(1, 4), constant(1), no_noop)),
)  # fmt: skip
