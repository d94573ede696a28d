"""Operators that move elements: shapes, layouts, slices, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortconv.ir.graph import Value
from ortconv.ir.operands import axes_of, ints, stated_ints
from ortconv.ir.schema import attribute
from ortconv.ir.slices import axis_slices
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, constant, dtype, dynamic, no_objection, rank, role
from ortconv.partition.coreml.checks import (
    MAX_RANK,
    OTHER_FORMAT,
    by_format,
    float16_version,
    needs_version,
    rank_within_limit,
    static,
    typed,
)
from ortconv.partition.coreml.row import ML_PROGRAM, NEURAL_NETWORK, CoremlRow
from ortconv.partition.policy import Objection, Objections, Target


def reshape(unit: NodeUnit, target: Target) -> Objections:
    """Require an input of 1 to 5 dimensions, a result of at most 5, and that each 0 in the shape copies a dimension."""
    yield from rank(1, MAX_RANK)(unit, target)
    sizes = ints(unit.input(1))
    if sizes is None:
        return
    yield from rank_within_limit("the result", len(sizes), target)
    if 0 in sizes and unit.target.attr("allowzero", 0):
        yield Objection("empty", f"the shape is {list(sizes)} with allowzero 1: no dimension may be 0")


def unsqueeze(unit: NodeUnit, target: Target) -> Objections:
    axes = axes_of(unit.target)
    if axes is not None and (found := unit.rank(0)) is not None:
        yield from rank_within_limit("the result", found + len(axes), target)


def kept(unit: NodeUnit, target: Target) -> Objections:
    """Require that the slice is not empty."""
    shape = unit.shape(0)
    if shape is None or unit.input(1) is None:
        return
    for start, end, axis, step in axis_slices(unit.target, ints) or ():
        if not range(*slice(start, end, step).indices(shape[axis])):
            message = f"nothing is left of dimension {axis} of size {shape[axis]} from {start} to {end} by {step}"
            yield Objection("empty", f"{message}: {target.name} needs an element")


def split(unit: NodeUnit, target: Target) -> Objections:
    """Require at least two outputs, and parts that are not empty and add up to a known dimension."""
    sizes = stated_ints(unit.target, "split")
    if sizes is None:
        return  # not constant
    count = len(sizes) or len(unit.target.outputs)
    if count < 2:
        yield Objection("outputs", f"the node has {count} output: {target.name} splits into 2 at least", "leave it out")
    value = unit.input(0)
    size = None if value is None else value.dim(unit.target.attr("axis", 0))
    if isinstance(size, int):
        yield from _parts(unit, sizes, size, count, target)
    elif value is not None and value.shape is not None and not target.coreml_static_inputs:
        yield dynamic(value, target.name, "every dimension here")


def _parts(unit: NodeUnit, sizes: Sequence[int], size: int, count: int, target: Target) -> Objections:
    if sizes:
        if min(sizes) < 1 or sum(sizes) != size:
            message = f"the parts of dimension {size} are {list(sizes)}: {target.name} needs all of it, no part 0"
            yield Objection("shape", message)
    elif count > size:
        yield Objection("shape", f"dimension {size} is split into {count} parts: {target.name} needs no part 0")


def pad_amounts(unit: NodeUnit, target: Target) -> Objections:
    """Require amounts of at least 0. In NeuralNetwork format, and in mode reflect, only the last two axes may be padded."""
    pads, found, amounts = ints(unit.input(1)), unit.rank(0) or 0, _amounts(unit)
    if pads is None or amounts is None:
        return
    if min(pads, default=0) < 0:
        yield Objection("attribute", f"pads are {list(pads)}: {target.name} accepts none below 0", "crop with Slice")
    if target.is_mlprogram and attribute(unit.target, "mode") != "reflect":
        return
    first = min((axis for axis, both in amounts.items() if any(both)), default=found)
    if first < found - 2:
        when = "when reflecting" if target.is_mlprogram else "here"
        message = f"axis {first} of {found} is padded: {target.name} pads the last 2 {when}"
        yield Objection("attribute", message, "move the axis to the end with Transpose")


def _amounts(unit: NodeUnit) -> dict[int, tuple[int, int]] | None:
    """By axis, the number of elements before and after; {} if the rank is unknown, None if an input with them is not constant."""
    pads, found = ints(unit.input(1)), unit.rank(0) or 0
    axes = ints(unit.input(3), tuple(range(found)))
    if pads is None or axes is None:
        return None
    ends = zip(pads[: len(axes)], pads[len(axes) :], strict=False)
    return {axis % found: both for axis, both in zip(axes, ends, strict=False)} if found else {}


def pad_form(unit: NodeUnit, target: Target) -> Objections:
    """Require rank 2 at least and a constant_value in NeuralNetwork format; in mode reflect, amounts below the dimension."""
    value, amounts = unit.input(0), _amounts(unit)
    if not target.is_mlprogram:
        yield from rank(2, MAX_RANK)(unit, target)
        if unit.input(2) is None and attribute(unit.target, "mode") == "constant":
            message = f"the node has no constant_value: {target.name} needs one"
            yield Objection("inputs", message, f"state the value 0, or {OTHER_FORMAT}")
    if value is not None and amounts is not None and attribute(unit.target, "mode") == "reflect":
        yield from _reflected(value, amounts, target)


def _reflected(value: Value, amounts: Mapping[int, tuple[int, int]], target: Target) -> Objections:
    sizes = {axis: value.dim(axis) for axis in amounts}
    if not all(isinstance(size, int) for size in sizes.values()) and not target.coreml_static_inputs:
        yield dynamic(value, target.name, "every dimension here")
    for axis, size in sizes.items():
        if isinstance(size, int) and max(amounts[axis]) >= size:
            message = f"axis {axis} of size {size} is padded by {max(amounts[axis])}"
            yield Objection("shape", f"{message}: {target.name} reflects fewer elements than there are")


def depth_to_space(unit: NodeUnit, target: Target) -> Objections:
    """Require a static shape for CRD order, which MLProgram builds from several operations; version 7 for float16 in DCR."""
    if unit.target.attr("mode", "DCR") == "CRD":
        yield from static(unit, target)
    elif unit.dtype(0) is DType.FLOAT16:
        yield from needs_version(f"{unit.op} of float16", 7, target)


def repeats(unit: NodeUnit, target: Target) -> Objections:
    found = ints(unit.input(1))
    if found is not None and any(r < 1 for r in found):
        yield Objection("attribute", f"{role(unit, 1)} is {list(found)}: {target.name} repeats once at least")


def whole_shape(unit: NodeUnit, target: Target) -> Objections:
    yield from attribute_is("start", 0)(unit, target)
    if "end" in unit.target.attrs:
        message = f"end is {unit.target.attrs['end']}: {target.name} accepts none"
        yield Objection("attribute", message, "use Slice behind it")


def some_shape(unit: NodeUnit, target: Target) -> Objections:
    found, start, end = unit.rank(0), unit.target.attr("start", 0), unit.target.attr("end", None)
    if found is not None and not range(found)[start:end]:
        message = f"nothing is left of {found} dimensions from {start} on"
        yield Objection("empty", f"{message}: {target.name} needs an element")


def images_by_channel(unit: NodeUnit, target: Target) -> Objections:
    """Require rank 4 and axis 1: NeuralNetwork concatenates only channels of images."""
    found = unit.rank(0)
    yield from rank(4, 4)(unit, target)
    axis = unit.target.attr("axis", 1)
    if found == 4 and axis % 4 != 1:
        yield Objection("attribute", f"axis is {axis}: {target.name} accepts 1 of 4, the channels", OTHER_FORMAT)


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
    CoremlRow("Flatten", formats=NEURAL_NETWORK, check=rank(1, MAX_RANK)),
    CoremlRow("Squeeze", check=constant(1)),
    CoremlRow("Unsqueeze", formats=ML_PROGRAM, check=all_of(constant(1), unsqueeze)),
    CoremlRow("Transpose"),
    CoremlRow("Concat", check=all_of(several, by_format(images_by_channel, no_objection))),
    CoremlRow("Slice", since=10, types=typed(DType.FLOAT, DType.INT64), check=SLICE),
    CoremlRow("Split", check=all_of(constant(1), split)),
    CoremlRow("Pad", since=11, types=typed(DType.FLOAT), check=PAD),
    CoremlRow("DepthToSpace", check=all_of(rank(4, 4), by_format(attribute_is("mode", "DCR"), depth_to_space))),
    CoremlRow("Tile", types=typed(DType.FLOAT, DType.INT32, DType.INT64, DType.BOOL),
        check=all_of(by_format(constant(1), no_objection), float16_version, repeats)),
    CoremlRow("Shape", types=by_format(dtype(DType.FLOAT), dtype(DType.FLOAT, DType.FLOAT16, DType.INT32, DType.INT64)),
        check=by_format(whole_shape, some_shape)),
)  # fmt: skip
