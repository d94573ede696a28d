"""Resizing of images."""

from __future__ import annotations

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.ir.schema import attribute
from ortconv.nnapi import Operation
from ortconv.partition.units import Unit


def resize(b: Builder, unit: Unit) -> None:
    """To the size of the result. Where the channels come last already, the tensor is an NHWC image as it is."""
    value, out = value_of(unit), b.result(unit)
    first = shape_of(value)[1] == shape_of(out)[1]
    rows, columns = shape_of(out)[2:] if first else shape_of(out)[1:3]
    x = b.image(value) if first else b.operand(value)
    made = b.make(out, image=first, like=x)
    inputs = [x, b.int32(columns), b.int32(rows)]
    if b.level > 28:
        inputs.append(b.boolean(b.nchw and first))
    if attribute(unit.target, "mode") == "nearest":
        b.add(Operation.RESIZE_NEAREST_NEIGHBOR, inputs, [made])
        return
    coordinates = attribute(unit.target, "coordinate_transformation_mode")
    if b.level >= 30 and coordinates in ("align_corners", "half_pixel"):
        inputs.append(b.boolean(coordinates == "align_corners"))
        if coordinates == "half_pixel":
            inputs.append(b.boolean(True))
    b.add(Operation.RESIZE_BILINEAR, inputs, [made])


LOWERINGS: dict[str, Lowering] = {"Resize": resize}
