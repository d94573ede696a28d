"""Operators that move elements: shapes, layouts, slices, padding."""

from __future__ import annotations

from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, constant, dtype, dynamic, no_objection, rank, role
from ortconv.partition.coreml.checks import (
    MAX_RANK,
    OTHER_FORMAT,
    by_format,
    float16_version,
    result_rank,
    static,
    typed,
)
from ortconv.partition.coreml.row import ML_PROGRAM, NEURAL_NETWORK, CoremlRow
from ortconv.partition.policy import Target
from ortconv.partition.reasons import Objection, Objections


def numbers(unit: NodeUnit, slot: int) -> list[int] | None:
    """The elements of a constant input; None if it is not constant."""
    const = unit.constant(slot)
    return None if const is None else const.numpy().ravel().tolist()


def reshape(unit: NodeUnit, target: Target) -> Objections:
    """Require a result of at most 5 dimensions, and that each 0 in the shape copies a dimension."""
    sizes = numbers(unit, 1)
    if sizes is None:
        return
    yield from result_rank(unit, len(sizes), target)
    if 0 in sizes and unit.target.attr("allowzero", 0):
        yield Objection("empty", f"the shape is {sizes} with allowzero 1: no dimension may be 0")


def unsqueeze(unit: NodeUnit, target: Target) -> Objections:
    axes = numbers(unit, 1) if unit.since >= 13 else unit.target.attr("axes", ())
    if axes is not None and (found := unit.rank(0)) is not None:
        yield from result_rank(unit, found + len(axes), target)


def kept(unit: NodeUnit, target: Target) -> Objections:
    """Require that the slice is not empty."""
    shape = unit.shape(0)
    starts, ends, axes, steps = (numbers(unit, slot) for slot in (1, 2, 3, 4))
    if shape is None or starts is None or ends is None:
        return
    if unit.input(3) is None:
        axes = list(range(len(starts)))
    if unit.input(4) is None:
        steps = [1] * len(starts)
    for axis, start, end, step in zip(axes or (), starts, ends, steps or (), strict=False):
        if -len(shape) <= axis < len(shape) and not range(*slice(start, end, step).indices(shape[axis])):
            message = f"nothing is left of dimension {axis} of size {shape[axis]} from {start} to {end} by {step}"
            yield Objection("empty", f"{message}: {target.name} needs an element")


def split(unit: NodeUnit, target: Target) -> Objections:
    """Require at least two outputs, and parts that are not empty and add up to the dimension; without sizes, equal parts."""
    count = sum(v is not None for v in unit.target.outputs)
    axis, value = unit.target.attr("axis", 0), unit.input(0)
    if count < 2:
        yield Objection("outputs", f"the node has {count} output: {target.name} splits into 2 at least", "leave it out")
    size = None if value is None else value.dim(axis)
    if value is not None and value.shape is not None and not isinstance(size, int):
        if not target.coreml_static_inputs:
            yield dynamic(value, target.name, "every dimension here")
        return
    parts = numbers(unit, 1)
    if parts is not None and (0 in parts or sum(parts) != size):
        yield Objection("shape", f"the parts of dimension {size} are {parts}: {target.name} needs all of it, no part 0")
    elif unit.input(1) is None and isinstance(size, int) and size % max(count, 1):
        yield Objection("shape", f"dimension {size} is split into {count} parts: {target.name} needs them equal")


def pad_amounts(unit: NodeUnit, target: Target) -> Objections:
    """Require amounts of at least 0. In NeuralNetwork format, and in mode reflect, only the last two axes may be padded."""
    pads, axes, found = numbers(unit, 1), numbers(unit, 3), unit.rank(0)
    if pads is None or found is None or (unit.input(3) is not None and axes is None):
        return
    if any(p < 0 for p in pads):
        yield Objection("attribute", f"pads are {pads}: {target.name} takes none below 0", "crop with Slice")
    on = list(range(found)) if axes is None else [a % found for a in axes] if found else []
    begins, ends = pads[: len(on)], pads[len(on) :]
    padded = sorted(axis for axis, *both in zip(on, begins, ends, strict=False) if any(both))
    reflects = unit.target.attr("mode", "constant") == "reflect"
    if (reflects or not target.is_mlprogram) and padded and padded[0] < found - 2:
        what = "when reflecting" if reflects and target.is_mlprogram else "here"
        message = f"axis {padded[0]} of {found} is padded: {target.name} pads the last 2 {what}"
        yield Objection("attribute", message, "move the axis to the end with Transpose")


def pad_form(unit: NodeUnit, target: Target) -> Objections:
    """Require rank 2 or more and an explicit constant_value in NeuralNetwork format. In mode reflect, amounts must be less than the
    dimension.
    """
    shape, pads = unit.shape(0), numbers(unit, 1)
    if not target.is_mlprogram:
        yield from rank(2, MAX_RANK)(unit, target)
        if unit.input(2) is None and attribute(unit.target, "mode") == "constant":
            message = f"the node has no constant_value: {target.name} needs one"
            yield Objection("inputs", message, f"state the value 0, or {OTHER_FORMAT}")
    elif unit.rank(0) == 0:
        yield from rank(1, MAX_RANK)(unit, target)
    if shape is not None and pads is not None and attribute(unit.target, "mode") == "reflect":
        axes = [a % len(shape) for a in numbers(unit, 3) or range(len(shape))]
        for axis, *amounts in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=False):
            if max(amounts) >= shape[axis]:
                message = f"axis {axis} of size {shape[axis]} is padded by {max(amounts)}"
                yield Objection("shape", f"{message}: {target.name} reflects fewer elements than there are")


def depth_to_space(unit: NodeUnit, target: Target) -> Objections:
    """Require a static shape for CRD order: MLProgram builds it from several operations."""
    if unit.since >= 11 and unit.target.attr("mode", "DCR") == "CRD":
        yield from static(unit, target)


def repeats(unit: NodeUnit, target: Target) -> Objections:
    found = numbers(unit, 1)
    if found is not None and any(r < 1 for r in found):
        yield Objection("attribute", f"{role(unit, 1)} is {found}: {target.name} repeats once at least")


def whole_shape(unit: NodeUnit, target: Target) -> Objections:
    yield from attribute_is("start", 0)(unit, target)
    if "end" in unit.target.attrs:
        yield Objection(
            "attribute", f"end is {unit.target.attrs['end']}: {target.name} takes none", "use Slice behind it"
        )


def images_by_channel(unit: NodeUnit, target: Target) -> Objections:
    """Require rank 4 and axis 1: NeuralNetwork concatenates only channels of images."""
    found = unit.rank(0)
    yield from rank(4, 4)(unit, target)
    axis = unit.target.attr("axis", 1)
    if found == 4 and axis % 4 != 1:
        yield Objection("attribute", f"axis is {axis}: {target.name} takes 1 of 4, the channels", OTHER_FORMAT)


def several(unit: NodeUnit, target: Target) -> Objections:
    if len(unit.inputs) < 2:
        yield Objection("inputs", f"the node has 1 input: {target.name} joins 2 at least", "leave it out")


PAD = all_of(
    by_format(attribute_is("mode", "constant"), attribute_is("mode", "constant", "reflect")),
    constant(1, 2, 3),
    pad_form,
    pad_amounts,
)
SLICE = all_of(static, constant(1, 2, 3, 4), float16_version, kept)

ROWS = (
    CoremlRow("Reshape", since=5, check=all_of(static, constant(1), reshape)),
    CoremlRow("Flatten", formats=NEURAL_NETWORK),
    CoremlRow("Squeeze", check=constant(1)),
    CoremlRow("Unsqueeze", formats=ML_PROGRAM, check=all_of(constant(1), unsqueeze)),
    CoremlRow("Transpose"),
    CoremlRow("Concat", check=all_of(several, by_format(images_by_channel, no_objection))),
    CoremlRow("Slice", since=10, types=typed(DType.FLOAT, DType.INT64), check=SLICE),
    CoremlRow("Split", since=13, check=all_of(constant(1), split)),
    CoremlRow("Pad", since=11, types=typed(DType.FLOAT), check=PAD),
    CoremlRow("DepthToSpace", check=all_of(rank(4, 4), by_format(attribute_is("mode", "DCR", since=11), depth_to_space))),
    CoremlRow("Tile", types=typed(DType.FLOAT, DType.INT32, DType.INT64, DType.BOOL),
        check=all_of(by_format(constant(1), no_objection), float16_version, repeats)),
    CoremlRow("Shape", types=by_format(dtype(DType.FLOAT), dtype(DType.FLOAT, DType.FLOAT16, DType.INT32, DType.INT64)),
        check=by_format(whole_shape, no_objection)),
)  # fmt: skip
