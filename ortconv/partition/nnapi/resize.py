"""Resizing of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortconv.ir.schema import attribute
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import CHANGED, PLAIN_RESIZE, all_of, constant, rank, role, sampling_mode, shrinks_evenly
from ortconv.partition.nnapi.checks import float32_or_uint8, needs_level, quantized
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import NUMBERS, Objection, Objections, Target

WIDER = "add a dimension of 1 with a Reshape before and remove it after it; scale it by 1"


def coordinates(unit: NodeUnit, target: Target) -> Objections:
    """Require mode nearest by floor, or linear: asymmetric, or from feature level 30 on half_pixel or align_corners."""
    transform = attribute(unit.target, "coordinate_transformation_mode")
    if attribute(unit.target, "mode") != "linear":
        advice = f"export with asymmetric coordinates and nearest_mode floor, {CHANGED}"
        yield from sampling_mode(unit, target, advice)
    elif transform in ("half_pixel", "align_corners"):
        yield from needs_level(f"coordinate_transformation_mode {transform}", 30, target)
    elif transform != "asymmetric":
        wanted = "NNAPI accepts asymmetric, half_pixel or align_corners"
        message = f"coordinate_transformation_mode is {transform}: {wanted}"
        yield Objection("attribute", message, f"export with asymmetric coordinates, {CHANGED}")


def no_axes(unit: NodeUnit, target: Target) -> Objections:
    axes = unit.target.attr("axes", ())
    if axes:
        yield Objection("attribute", f"axes are {list(axes)}: NNAPI accepts none", "state the scales of all axes")


def extent(unit: NodeUnit, target: Target) -> Objections:
    """Require constant scales or sizes that leave batch and channels unchanged."""
    shape = unit.shape(0)
    slot = 2 if unit.input(2) is not None else 3
    const = unit.constant(slot)
    if unit.input(slot) is None:
        yield Objection("inputs", "the node has neither scales nor sizes: NNAPI needs 1 of them")
    yield from constant(slot)(unit, target)
    if const is None or shape is None or len(shape) != 4:
        return
    values = const.numpy().ravel().tolist()
    if len(values) != 4:
        ending = "" if values else ", and ONNX Runtime's provider ends the process on none"
        advice = "" if values else "give an input that is not used an empty name; convert --use-nnapi does so"
        yield Objection("shape", f"{role(unit, slot)} has {len(values)} elements: NNAPI needs 4{ending}", advice)
        return
    yield from _layout(shape, values, slot, target)


def _layout(shape: tuple[int, ...], values: list[float], slot: int, target: Target) -> Objections:
    name, kept = ("scales", (1, 1, 1, 1)) if slot == 2 else ("sizes", shape)
    nchw = values[1] == kept[1]
    channel = 1 if nchw else 3
    for axis in (0, channel):
        if values[axis] != kept[axis]:
            wanted = f"NNAPI accepts {kept[axis]}, only height and width may change"
            yield Objection("shape", f"{name}[{axis}] is {values[axis]:g}: {wanted}")
    if nchw:
        yield from needs_level("Resize in NCHW layout", 29, target)
    if slot == 2:
        yield from shrinks_evenly(shape, {axis: values[axis] for axis in ((2, 3) if nchw else (1, 2))}, target)


def sampled_places(unit: NodeUnit, target: Target) -> Objections:
    """Require that the coordinates from the scales equal those of NNAPI, which computes scales from the rounded output size."""
    for axis, size, scale, length in sampled_otherwise(unit):
        message = f"dimension {axis} of size {size} is scaled by {scale:g} to {length}"
        advice = f"state sizes instead of scales, {CHANGED}"
        yield Objection(NUMBERS, f"{message}: NNAPI scales it by {length}/{size}", advice)


def sampled_otherwise(unit: NodeUnit, lengths: Sequence[int] | None = None) -> Iterator[tuple[int, int, float, int]]:
    """(axis, size, scale, length) of the axes for which NNAPI has other coordinates. `lengths` are those of the result if known."""
    shape, const = unit.shape(0), unit.constant(2)
    coordinates = attribute(unit.target, "coordinate_transformation_mode")
    if shape is None or const is None or not const.size or coordinates == "align_corners":
        return
    is_nearest = attribute(unit.target, "mode") == "nearest"
    for axis, (size, scale) in enumerate(zip(shape, const.numpy().ravel().tolist(), strict=True)):
        length = int(np.float32(size) * np.float32(scale)) if lengths is None else lengths[axis]
        if not is_sampled_alike(size, length, scale, is_nearest=is_nearest):
            yield axis, size, scale, length


def is_sampled_alike(size: int, length: int, scale: float, *, is_nearest: bool) -> bool:
    """True if an axis of `size` pixels that is resized to `length` has the same coordinates by its scale as by the two lengths."""
    index = np.arange(length)
    by_scale, by_length = index / scale, index * (size / max(length, 1))
    if is_nearest:
        by_scale, by_length = np.floor(by_scale + ROUNDING), np.floor(by_length + ROUNDING)
    return np.allclose(by_scale, by_length, 0, ROUNDING)


ROUNDING = 1e-3
"""Tolerance of a coordinate in the image, in pixels."""


CHECK = all_of(rank(4, 4, fewer="", more=WIDER), coordinates, PLAIN_RESIZE, no_axes, extent)

ROWS = (
    NnapiRow("Resize", since=11, level=lambda unit: 28 if unit.dtype(0) is DType.UINT8 else 29, types=float32_or_uint8,
        check=CHECK, qdq=quantized(), runtime=sampled_places, takes_empty=True),
)  # fmt: skip
