"""Resizing in forms that NNAPI supports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import constant_of, ints
from ortconv.ir.resize import OPTIONAL_SCALES, has_sizes, resizing, scales_between
from ortconv.ir.schema import attribute
from ortconv.ir.tensor import Array
from ortconv.optimizer.engine import New, NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import integers, is_float, op
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.standard_forms import with_axes

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn")
"""The coordinates of Resizes that are rewritten."""


def _is_empty(node: Node, slot: int) -> bool:
    """True for an absent input or a constant without elements, which have the same meaning."""
    value = node.input(slot)
    return value is None or _is_empty_constant(value)


def _shapes(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of the input and the output of a Resize or Upsample; None if one is unknown or has no elements."""
    x = node.inputs[0]
    source, result = None if x is None else x.static_shape, node.out.static_shape
    return None if source is None or result is None or 0 in (*source, *result) else (source, result)


def _scales(node: Node) -> list[float] | None:
    """The scale of every axis of a Resize or Upsample; None if it is unknown."""
    shapes = _shapes(node)
    if shapes is None:
        return None
    does = resizing(node, ints)
    if does.scales is not None:
        return [does.scales.get(axis, 1.0) for axis in range(len(shapes[0]))]
    by_sizes = has_sizes(node) and _is_empty(node, 2) and does.stretches
    return [k / n for n, k in zip(*shapes)] if by_sizes else None


def _sources(node: Node, coordinates: str, rounding: str) -> list[Array] | None:
    """For each axis, the input index of each output index; None if a position is so near a tie that rounding matters."""
    from ortconv.executor.kernels import resize as kernels

    shapes, scales = _shapes(node), _scales(node)
    if shapes is None or scales is None or coordinates not in COORDINATES or rounding not in kernels.NEAREST:
        return None
    if shapes[0] == shapes[1]:
        return [np.arange(n) for n in shapes[0]]  # ONNX Runtime copies the elements, whatever the scales
    place, rounded = kernels.COORDINATES[coordinates], kernels.NEAREST[rounding]
    found = []
    for n, k, scale in zip(*shapes, scales, strict=True):
        axes = (kernels.Axis(n, k, dtype(scale)) for dtype in (np.float64, np.float32))
        exact, single = (np.clip(rounded(place(np.arange(k, dtype=a.scale.dtype), a), a), 0, n - 1) for a in axes)
        if scale == 1 and n == k:
            exact = single = np.arange(n)
        if not np.array_equal(exact, single):
            return None
        found.append(exact.astype(np.int64))
    return found


def _nearest(node: Node) -> list[Array] | None:
    """The input indices of a Resize or Upsample with nearest neighbors, for each axis; None if unknown."""
    does = resizing(node, ints)
    if does.mode != "nearest" or does.antialias:
        return None
    return _sources(node, does.coordinates, does.rounding)


@rule("ResizeToPlainResize", P("Resize", "x", ..., where=lambda node: node.opset >= 11))
def plain_resize(m: Match) -> Replacement:
    """Resize with empty inputs, of some axes, or in coordinates that are here equal to plainer ones  ->  Resize in the plain form

    Nearest neighbors become asymmetric and rounded down; pytorch_half_pixel becomes half_pixel if no axis shrinks to 1.

    Opt-in: useful only for an accelerator that has only the plain forms.
    """
    node, shapes, scales = m.root, _shapes(m.root), _scales(m.root)
    if scales is None or shapes is None or attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    shape, out = shapes
    attrs = _plain_attributes(node, shape, out)
    if attrs == node.attrs and not any(_is_empty_constant(v) for v in node.inputs[2:]):
        return None
    by_scale, needs_both = not _is_empty(node, 2), node.opset < OPTIONAL_SCALES
    if not by_scale and not needs_both:
        return New("Resize", [m.x, None, None, integers(out)], attrs, like=node)
    stated = np.array(scales, np.float32) if by_scale else scales_between(shape, out)
    if stated is None:
        return None
    return New("Resize", [m.x, node.input(1) if needs_both else None, stated], attrs, like=node)


def _plain_attributes(node: Node, shape: Sequence[int], out: Sequence[int]) -> dict[str, Attribute]:
    """The attributes without axes, and in plainer coordinates if these are equal."""
    attrs: dict[str, Attribute] = {k: v for k, v in node.attrs.items() if k != "axes"}
    if attribute(node, "mode") == "nearest":
        own, plain = _nearest(node), _sources(node, "asymmetric", "floor")
        if own is not None and plain is not None and all(map(np.array_equal, own, plain)):
            attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return attrs
    halves = attribute(node, "coordinate_transformation_mode") == "pytorch_half_pixel"
    if halves and all(k > 1 or n == 1 for n, k in zip(shape, out)):
        attrs["coordinate_transformation_mode"] = "half_pixel"
    return attrs


def _is_empty_constant(value: Value | None) -> bool:
    const = constant_of(value)
    return const is not None and const.size == 0


@rule("ResizeToGather", P(("Resize", "Upsample"), "x", ...))
def nearest(m: Match) -> Replacement:
    """Resize<nearest>(x) or Upsample<nearest>(x)  ->  Gather of the nearest elements along each axis

    Opt-in: more nodes; useful only if an accelerator supports Gather but not this Resize.
    """
    found = _nearest(m.root) if is_float(m.x) else None
    if found is None:
        return None
    y: NewInput = m.x
    for axis, index in enumerate(found):
        if m.x.dim(axis) != len(index) or not np.array_equal(index, np.arange(len(index))):
            y = op("Gather", y, index, axis=axis)
    return y if isinstance(y, New) else op("Identity", y)


ONE_ROW = 3
"""Rank of what becomes images of one row."""


@rule("ResizeToImages", P("Resize", "x", ..., where=lambda node: node.opset >= OPTIONAL_SCALES))
def images_of_one_row(m: Match) -> Replacement:
    """Resize(x) of rank 3  ->  Squeeze(Resize(Unsqueeze(x))) on images of one row, as models of sound stretch time

    Opt-in: two more nodes; useful only if an accelerator resizes only images.
    """
    node, scales, out = m.root, _scales(m.root), m.root.out.static_shape or ()
    if scales is None or len(out) != ONE_ROW or not is_float(m.x):
        return None
    if attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return None
    attrs = {name: value for name, value in node.attrs.items() if name != "axes"}
    x, by_sizes = with_axes("Unsqueeze", m.x, (2,), m.graph), _is_empty(node, 2)
    stated = (
        [None, integers((*out[:2], 1, out[2]))] if by_sizes else [np.array([*scales[:2], 1, scales[2]], np.float32)]
    )
    inputs: list[NewInput] = [x, None, *stated]
    return with_axes("Squeeze", New("Resize", inputs, attrs, like=node), (2,), m.graph)
