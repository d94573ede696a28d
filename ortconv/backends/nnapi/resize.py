"""Resizing of images."""

from __future__ import annotations

from ortconv.backends.nnapi.builder import Builder, Lowering, shape_of, value_of
from ortconv.errors import BackendError
from ortconv.ir.schema import attribute
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import Operation
from ortconv.partition.nnapi.resize import is_sampled_alike


def resize(b: Builder, unit: NodeUnit) -> None:
    """Resize to the size of the result. If the channels are last already, the tensor is an NHWC image and stays as it is."""
    value, out = value_of(unit), b.result(unit)
    _check_scales(unit, shape_of(value), shape_of(out))
    first = shape_of(value)[1] == shape_of(out)[1]
    rows, columns = shape_of(out)[2:] if first else shape_of(out)[1:3]
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


def _check_scales(unit: NodeUnit, shape: tuple[int, ...], resized: tuple[int, ...]) -> None:
    """Raise BackendError if the scales select other elements than the lengths do: NNAPI uses only the lengths."""
    scales = unit.constant(2)
    corners = attribute(unit.target, "coordinate_transformation_mode") == "align_corners"
    if scales is None or not scales.size or corners or shape == resized:
        return
    is_nearest = attribute(unit.target, "mode") == "nearest"
    for size, length, scale in zip(shape, resized, scales.numpy().ravel().tolist(), strict=True):
        if not is_sampled_alike(size, length, scale, is_nearest=is_nearest):
            message = f"the node scales {size} by {scale:g}, NNAPI by {length}/{size}: it computes other numbers"
            raise BackendError(message, backend="nnapi")


LOWERINGS: dict[str, Lowering] = {"Resize": resize}
