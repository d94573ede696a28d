"""Convolutions."""

from __future__ import annotations

from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import CHANGED, all_of, constant, rank, role
from ortconv.partition.nnapi.checks import (
    bias_scale,
    coarser_output,
    is_quantized,
    nchw_level,
    needs_level,
    quantized,
    window,
)
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import NUMBERS, Objection, Objections, Target


def constant_bias(unit: NodeUnit, target: Target) -> Objections:
    if is_quantized(unit):
        yield from constant(2)(unit, target)


def dilations(unit: NodeUnit, target: Target) -> Objections:
    """Limit dilations: they need feature level 29, and an ordinary or depthwise convolution."""
    values: tuple[int, ...] = unit.target.attr("dilations", ())
    if all(d == 1 for d in values):
        return
    yield from needs_level(f"dilations {list(values)}", 29, target)
    if inside := _groups(unit):
        wanted = "NNAPI dilates convolutions of 1 group, or of 1 channel per group"
        yield Objection("attribute", f"dilations are {list(values)} in {inside}: {wanted}")


def groups(unit: NodeUnit, target: Target) -> Objections:
    """Require feature level 29, and elements, for groups of several channels, which become GROUPED_CONV_2D."""
    if found := _groups(unit):
        yield from needs_level(f"a convolution of {found}", 29, target)
        if 0 in (unit.shape(0) or ()):
            yield Objection("empty", f"{role(unit, 0)} has no elements: a convolution of {found} needs some")


def _groups(unit: NodeUnit) -> str:
    """The number of groups, and of the channels of each, as text; empty for one group, or one channel in each."""
    weights, group = unit.shape(1), unit.target.attr("group", 1)
    several = group != 1 and weights is not None and len(weights) > 1 and weights[1] != 1
    return f"{group} groups of {weights[1]} channels" if several and weights else ""


def padding(unit: NodeUnit, target: Target) -> Objections:
    weights = unit.shape(1)
    if weights is not None:
        yield from window(unit, weights[2:])


def scales_of_outputs(unit: NodeUnit, target: Target) -> Objections:
    """Require scales along dimension 0 of the weights, if there are several: NNAPI takes them for those of the output channels."""
    value = unit.target.input(1)
    dq = None if value is None or not unit.is_group else value.producer
    scale = None if dq is None else dq.constant(1)
    if dq is None or scale is None or scale.size == 1:
        return
    along = scale.shape[0] == scale.size if len(scale.shape) > 1 else dq.attr("axis", 1) in (0, -4)
    if not along:
        message = f"{role(unit, 1)} has {scale.size} scales along another dimension than 0"
        advice = f"quantize per output channel, {CHANGED}"
        yield Objection(NUMBERS, f"{message}: NNAPI applies them to dimension 0", advice)


WIDER = "add a dimension of 1 to image and weights with Reshapes, and remove it after the node"
WEIGHTS = quantized(weights=1)
CHECK = all_of(nchw_level("convolution"), rank(4, 4, 1, fewer="", more=WIDER), constant(1), constant_bias, dilations)
RUNTIME = all_of(groups, padding, coarser_output(29), scales_of_outputs, bias_scale)

ROWS = (
    NnapiRow("Conv", level=28, check=CHECK, qdq=WEIGHTS, runtime=RUNTIME, takes_empty=True),
    NnapiRow("QLinearConv", level=28, types=WEIGHTS, check=CHECK, runtime=RUNTIME, takes_empty=True),
)
