"""Operators that move elements: shapes, layouts, slices, padding."""

from __future__ import annotations

import numpy as np

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.ir.operands import ints, stated_ints
from ortconv.ir.slices import axis_slices, selected
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import Operation

NHWC_AXES = (0, 3, 1, 2)
"""Position in NHWC of each axis of NCHW."""


def concat(b: Builder, unit: NodeUnit) -> None:
    values = [operand.value for operand in unit.inputs if operand is not None]
    rank = len(shape_of(values[0]))
    axis = unit.target.attr("axis", 1) % rank
    image = rank == 4 and all(map(b.is_image, values))
    inputs = [b.operand(v, image=image) for v in values]
    out = b.make(b.result(unit), image, like=inputs[0])
    b.add(Operation.CONCATENATION, [*inputs, b.int32(NHWC_AXES[axis] if image else axis)], [out])


def reshape(b: Builder, unit: NodeUnit) -> None:
    """Reshape, Flatten and Unsqueeze: RESHAPE to the shape of the result."""
    x = b.operand(value_of(unit))
    out = b.make(b.result(unit), like=x)
    b.add(Operation.RESHAPE, [x, b.ints(b.dims(out))], [out])


def squeeze(b: Builder, unit: NodeUnit) -> None:
    shape = shape_of(value_of(unit))
    axes = stated_ints(unit.target, "axes") or [axis for axis, size in enumerate(shape) if size == 1]
    if not axes:
        b.alias(b.result(unit), value_of(unit))
        return
    x = b.operand(value_of(unit))
    b.emit(unit, Operation.SQUEEZE, [x, b.ints([axis % len(shape) for axis in axes])])


def transpose(b: Builder, unit: NodeUnit) -> None:
    x = b.operand(value_of(unit))
    order = unit.target.attr("perm", tuple(reversed(range(len(b.dims(x))))))
    b.add(Operation.TRANSPOSE, [x, b.ints(order)], [b.make(b.result(unit), like=x)])


def identity(b: Builder, unit: NodeUnit) -> None:
    b.alias(b.result(unit), value_of(unit))


def gather(b: Builder, unit: NodeUnit) -> None:
    """GATHER. A scalar index becomes a vector of one element, and its dimension is removed from the result."""
    x = b.operand(value_of(unit))
    shape, indices = shape_of(value_of(unit)), shape_of(value_of(unit, 1))
    axis = unit.target.attr("axis", 0) % len(shape)
    const = unit.constant(1)
    at = b.operand(value_of(unit, 1)) if const is None else b.constant(const.numpy().astype(np.int32))
    if indices:
        b.emit(unit, Operation.GATHER, [x, b.int32(axis), at])
        return
    found = b.temporary(b.kind(x), (*shape[:axis], 1, *shape[axis + 1 :]))
    b.add(Operation.GATHER, [x, b.int32(axis), at], [found])
    b.emit(unit, Operation.SQUEEZE, [found, b.ints([axis])])


def slice_(b: Builder, unit: NodeUnit) -> None:
    """SLICE if all steps are 1 and the feature level has it, else STRIDED_SLICE."""
    x = b.operand(value_of(unit))
    ranges = _ranges(unit)
    begin = b.ints([r.start for r in ranges])
    out = b.make(b.result(unit))
    if all(r.step == 1 for r in ranges) and b.level >= 29:
        b.add(Operation.SLICE, [x, begin, b.ints([len(r) for r in ranges])], [out])
        return
    to_the_end = sum(1 << axis for axis, r in enumerate(ranges) if r.stop < 0)
    steps = b.ints([r.step for r in ranges])
    masks = [b.int32(0), b.int32(to_the_end), b.int32(0)]
    b.add(Operation.STRIDED_SLICE, [x, begin, b.ints([r.stop for r in ranges]), steps, *masks], [out])


def _ranges(unit: NodeUnit) -> list[range]:
    """The indices that a Slice selects along each dimension."""
    shape, parts = shape_of(value_of(unit)), axis_slices(unit.target, ints)
    assert parts is not None
    ranges = [range(size) for size in shape]
    for start, end, axis, step in parts:
        ranges[axis] = selected(start, end, step, shape[axis])
    return ranges or [range(1)]


def split(b: Builder, unit: NodeUnit) -> None:
    value = value_of(unit)
    x = b.operand(value)
    made = [b.temporary(b.kind(x)) if v is None else b.make(v, like=x) for v in unit.target.outputs]
    b.add(Operation.SPLIT, [x, b.int32(unit.target.attr("axis", 0) % len(shape_of(value))), b.int32(len(made))], made)


def pad(b: Builder, unit: NodeUnit) -> None:
    x = b.operand(value_of(unit))
    value = unit.constant(2)
    margins = b.constant(np.array(ints(unit.input(1)) or (), np.int32).reshape(2, -1).T)
    fill = b.float32(0.0 if value is None else float(value.item()))
    b.emit(unit, Operation.PAD_V2, [x, margins, fill])


def depth_to_space(b: Builder, unit: NodeUnit) -> None:
    x = b.operand(value_of(unit), image=True)
    block = b.int32(unit.target.attr("blocksize", 1))
    b.emit(unit, Operation.DEPTH_TO_SPACE, [x, block, *b.layout_flag()], image=True)


LOWERINGS: dict[str, Lowering] = {
    "Concat": concat,
    "Reshape": reshape,
    "Flatten": reshape,
    "Squeeze": squeeze,
    "Unsqueeze": reshape,
    "Transpose": transpose,
    "Identity": identity,
    "Gather": gather,
    "Slice": slice_,
    "Split": split,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
}
