"""Resizing of images."""

from __future__ import annotations

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.errors import BackendError
from ortconv.ir.schema import attribute
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import Operation
from ortconv.partition.nnapi.resize import sampled_otherwise


def resize(b: Builder, unit: NodeUnit) -> None:
    """Resize to the size of the result. If the channels are last already, the tensor is an NHWC image and stays as it is."""
    value, out = value_of(unit), b.result(unit)
    shape, lengths = shape_of(value), shape_of(out)
    for _, size, scale, length in sampled_otherwise(unit, lengths) if lengths != shape else ():
        message = f"the node scales {size} by {scale:g}, NNAPI by {length}/{size}: it computes other numbers"
        raise BackendError(message, backend="nnapi")
    first = shape[1] == lengths[1]
    rows, columns = lengths[2:] if first else lengths[1:3]
    x = b.operand(value, image=first)
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
