"""Pooling and sampling of images."""

from __future__ import annotations

from ortconv.ir.schema import attribute
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import CHANGED, all_of, attribute_is, kernel_rank, no_objection, ones, rank, single_output
from ortconv.partition.coreml.checks import by_format
from ortconv.partition.coreml.row import ML_PROGRAM, CoremlRow
from ortconv.partition.policy import Objection, Objections, Target

WINDOW = all_of(
    rank(4, 4),
    kernel_rank,
    attribute_is("storage_order", 0),
    ones("dilations"),
    single_output,
    by_format(attribute_is("ceil_mode", 0), no_objection),
)


def reflection(unit: NodeUnit, target: Target) -> Objections:
    padding = attribute(unit.target, "padding_mode")
    if padding == "reflection" and not attribute(unit.target, "align_corners"):
        message = f"padding_mode is reflection with align_corners 0: {target.name} accepts that with align_corners 1"
        yield Objection("attribute", message, f"export with align_corners 1 or padding_mode zeros, {CHANGED}")


ROWS = (
    *(CoremlRow(op, check=WINDOW) for op in ("AveragePool", "MaxPool")),
    *(CoremlRow(op, check=rank(4, 4)) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    CoremlRow("GridSample", formats=ML_PROGRAM,
        check=all_of(rank(4, 4), attribute_is("mode", "linear", "bilinear"), reflection)),
)  # fmt: skip
