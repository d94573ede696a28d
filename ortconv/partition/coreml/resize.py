"""Resizing of images."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from ortconv.ir.operands import ints
from ortconv.ir.resize import resizing
from ortconv.ir.schema import attribute
from ortconv.ir.types import Dim, Shape
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import (
    CHANGED,
    PLAIN_RESIZE,
    all_of,
    constant,
    dynamic,
    rank,
    role,
    sampling_mode,
    shrinks_evenly,
)
from ortconv.partition.coreml.checks import OTHER_FORMAT, by_format
from ortconv.partition.coreml.row import CoremlRow
from ortconv.partition.policy import Objection, Objections, Target


def coordinates(unit: NodeUnit, target: Target) -> Objections:
    """Require mode linear or nearest, with coordinates that the model format supports."""
    transform = attribute(unit.target, "coordinate_transformation_mode")
    advice = f"export with asymmetric coordinates, {CHANGED}"
    if attribute(unit.target, "mode") != "linear":
        yield from sampling_mode(unit, target, advice)
    elif not target.is_mlprogram:
        if transform != "asymmetric":
            message = f"coordinate_transformation_mode is {transform}: {target.name} accepts asymmetric"
            yield Objection("attribute", message, f"{OTHER_FORMAT}, or {advice}")
    elif transform == "asymmetric":
        if given_by(unit) == 2:
            message = "mode linear has asymmetric coordinates and scales: CoreML MLProgram accepts them with sizes"
            yield Objection("attribute", message, "state sizes instead of scales")
    elif transform not in ("half_pixel", "align_corners", "pytorch_half_pixel"):
        wanted = "half_pixel, align_corners, pytorch_half_pixel or asymmetric"
        yield Objection("attribute", f"coordinate_transformation_mode is {transform}: {target.name} accepts {wanted}")


def given_by(unit: NodeUnit) -> int:
    """The input slot in use: 2 for scales, 3 for sizes. A constant of scales without elements counts as absent."""
    const = unit.constant(2)
    return 2 if unit.input(2) is not None and (const is None or const.size) else 3


def extent(unit: NodeUnit, target: Target) -> Objections:
    """Require constant scales or sizes that change only the last two dimensions, by factors that the model format supports."""
    slot = given_by(unit)
    value, const = unit.input(0), unit.constant(slot)
    if unit.input(slot) is None:
        yield Objection("inputs", f"the node has neither scales nor sizes: {target.name} needs 1 of them")
    yield from constant(slot)(unit, target)
    if value is None or value.shape is None or const is None or len(value.shape) < 3:
        return
    does = resizing(unit.target, ints)
    wanted = does.scales if slot == 2 else does.sizes
    if wanted is None:
        yield Objection("shape", f"{role(unit, slot)} has {const.size} elements for {len(does.axes)} axes")
    elif _sizes_are_known(value.shape, slot, target):
        yield from _resized(unit, value.shape, wanted, target)
    elif not target.coreml_static_inputs:
        yield dynamic(value, target.name, "every dimension here")


def _sizes_are_known(shape: Shape, slot: int, target: Target) -> bool:
    """Scales need a known height and width, sizes need all dimensions in NeuralNetwork format and none in MLProgram format."""
    needed = shape[-2:] if slot == 2 else () if target.is_mlprogram else shape
    return all(isinstance(d, int) for d in needed)


def _resized(unit: NodeUnit, shape: Shape, wanted_of: Mapping[int, float], target: Target) -> Objections:
    """Objections to the scales or sizes of axes."""
    by_scale, first = given_by(unit) == 2, len(shape) - 2
    if by_scale and target.is_mlprogram:
        yield from shrinks_evenly(shape, {axis: scale for axis, scale in wanted_of.items() if axis >= first}, target)
    for axis, wanted in wanted_of.items():
        size = shape[axis]
        if axis < first:
            yield from _unchanged(axis, wanted, 1 if by_scale else size, target)
        elif by_scale and isinstance(size, int):
            yield from _scaled(axis, wanted, size, target)
            yield from _half_pixel(unit, axis, floor(size * wanted), target)
        elif not by_scale:
            yield from _sized(axis, int(wanted), size, target)
            yield from _half_pixel(unit, axis, int(wanted), target)


def _unchanged(axis: int, wanted: float, kept: object, target: Target) -> Objections:
    if wanted != kept:
        message = f"axis {axis} changes to {wanted:g} from {kept}"
        yield Objection("shape", f"{message}: {target.name} changes the last 2 axes only")


def _scaled(axis: int, scale: float, size: int, target: Target) -> Objections:
    """Require a scale that is a whole number. MLProgram accepts some below 1."""
    message = f"axis {axis} of size {size} is scaled by {scale:g}: {target.name} accepts whole numbers"
    if scale > 1 and scale != round(scale):
        yield Objection("shape", message, "state sizes instead of scales")
    elif scale < 1 and not target.is_mlprogram:
        yield Objection("shape", message, OTHER_FORMAT)


def _sized(axis: int, wanted: int, size: Dim, target: Target) -> Objections:
    """Require a multiple of the size in NeuralNetwork format."""
    if not target.is_mlprogram and isinstance(size, int) and (size == 0 or wanted % size):
        message = f"axis {axis} of size {size} becomes {wanted}: {target.name} needs a multiple"
        yield Objection("shape", message, OTHER_FORMAT)


def _half_pixel(unit: NodeUnit, axis: int, result: int, target: Target) -> Objections:
    """Require, for pytorch_half_pixel, a result of more than one element along the axis: there it equals half_pixel."""
    transform = attribute(unit.target, "coordinate_transformation_mode")
    if transform == "pytorch_half_pixel" and target.is_mlprogram and result <= 1:
        message = f"axis {axis} becomes {result}: {target.name} accepts pytorch_half_pixel for more than 1"
        yield Objection("attribute", message, f"export with half_pixel coordinates, {CHANGED}")


CHECK = all_of(by_format(rank(4, 4), rank(3, 5)), coordinates, PLAIN_RESIZE, extent)

ROWS = (CoremlRow("Resize", since=11, check=CHECK, empty=True),)
