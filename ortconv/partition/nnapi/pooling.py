"""Pooling over windows and over whole images."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, kernel_rank, ones, rank, single_output
from ortconv.partition.nnapi.checks import float32_or_uint8, keeps_parameters, nchw_level, quantized, window
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import Objections, Target

WIDER = "pool over 2 dimensions, one of them 1, between Reshapes"


def padding(unit: NodeUnit, target: Target) -> Objections:
    yield from window(unit, unit.target.attr("kernel_shape", ()))


LEVEL = nchw_level("pooling")
WHOLE = all_of(LEVEL, rank(4, 4))
WINDOW = all_of(LEVEL, rank(4, 4, fewer="", more=WIDER), kernel_rank, attribute_is("ceil_mode", 0), ones("dilations"))
AVERAGE = all_of(
    WINDOW,
    attribute_is("count_include_pad", 0, instead="pad with Pad before, from feature level 29 on"),
    keeps_parameters,
)
MAXIMUM = all_of(WINDOW, attribute_is("storage_order", 0), single_output)

ROWS = (
    NnapiRow("AveragePool", level=28, check=AVERAGE, qdq=quantized(), runtime=padding, takes_empty=True),
    NnapiRow("QLinearAveragePool", level=28, types=quantized(), domains=(MICROSOFT,),
        check=all_of(AVERAGE, attribute_is("channels_last", 0)), runtime=padding, takes_empty=True),
    NnapiRow("MaxPool", level=28, types=float32_or_uint8, check=MAXIMUM, runtime=padding, takes_empty=True),
    *(NnapiRow(op, level=28, check=WHOLE, takes_empty=True) for op in ("GlobalAveragePool", "GlobalMaxPool")),
)  # fmt: skip
