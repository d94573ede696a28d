"""What a Resize or Upsample does, in any version of these operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ortconv.ir.graph import Floats, Ints, Node, Value
from ortconv.ir.schema import attribute, since_version
from ortconv.ir.symbols import as_dim
from ortconv.ir.tensor import Array
from ortconv.ir.types import Dim, Shape

OPTIONAL_SCALES = 13
"""The operator set from which on a Resize may leave out its region of interest and its scales."""

E = TypeVar("E")
"""An element of the sizes: a number, or what else a caller knows of it."""


class Resizing(NamedTuple, Generic[E]):
    """What a Resize or Upsample does.

    `axes` are those that it may change. `scales` and `sizes` are what it states for them, by axis; None if absent, unknown,
    or not one for each axis. Sizes are reached only if the node `stretches`, instead of keeping the aspect ratio.
    """

    mode: str
    coordinates: str
    rounding: str
    antialias: bool
    stretches: bool
    axes: Sequence[int]
    scales: Mapping[int, float] | None
    sizes: Mapping[int, E] | None

    def keeps(self, axis: int, length: object) -> bool:
        """True if the node states that an axis of this length stays as it is."""
        if axis not in self.axes:
            return True
        if self.scales is not None:
            return self.scales[axis] == 1
        return self.sizes is not None and self.stretches and self.sizes[axis] == length

    def factor(self, axis: int, before: Dim, after: Dim) -> float | None:
        """The scale of an axis with this length before and after; None if it is unknown."""
        if self.scales is not None:
            return self.scales.get(axis, 1)
        if before is not None and before == after:
            return 1
        return after / before if isinstance(before, int) and isinstance(after, int) and before else None

    def shape(self, before: Shape) -> Shape | None:
        """The shape of the result; None if the node states neither scales nor sizes that are reached."""
        made: dict[int, Dim]
        if self.scales is not None:
            made = {axis: _scaled(before[axis], scale) for axis, scale in self.scales.items()}
        elif self.sizes is not None and self.stretches:
            made = {axis: as_dim(size) for axis, size in self.sizes.items()}
        else:
            return None
        return tuple(made.get(axis, dim) for axis, dim in enumerate(before))


def has_sizes(node: Node) -> bool:
    """True for the versions of Resize with a region, coordinates and sizes, whose scales are the third input."""
    return node.op == "Resize" and since_version(node) >= 11


def resizing(node: Node, look: Callable[[Value | None], Sequence[E] | None]) -> Resizing[E]:
    """What a Resize or Upsample does. `look` returns the elements of the sizes."""
    x, modern = node.inputs[0], has_sizes(node)
    rank = 0 if x is None else x.rank or 0
    axes = [axis % rank for axis in node.attr("axes", Ints()) if rank] or range(rank)
    scales: Sequence[float] = node.attr("scales", Floats())
    if not scales and (const := node.constant(2 if modern else 1)) is not None:
        scales = const.numpy().reshape(-1).tolist()
    sizes = (look(node.input(3)) if modern and not scales else None) or ()
    return Resizing(
        mode=attribute(node, "mode"),
        coordinates=attribute(node, "coordinate_transformation_mode") if modern else "asymmetric",
        rounding=attribute(node, "nearest_mode") if modern else "floor",
        antialias=bool(node.attr("antialias", 0)),
        stretches=node.attr("keep_aspect_ratio_policy", "stretch") == "stretch",
        axes=axes,
        scales=_by_axis(axes, scales),
        sizes=_by_axis(axes, sizes),
    )


def _by_axis(axes: Sequence[int], numbers: Sequence[E]) -> dict[int, E] | None:
    """The numbers by axis; None if there are none, or not one for each axis."""
    return dict(zip(axes, numbers)) if axes and len(numbers) == len(axes) else None


def scales_between(before: tuple[int, ...], after: tuple[int, ...]) -> Array | None:
    """The float32 scales from one shape to another, as onnxruntime computes them; None if they do not give these sizes."""
    if 0 in before:
        return None
    sizes = np.array(before, np.float32)
    scales = np.array(after, np.float32) / sizes
    return scales if tuple((sizes * scales).astype(np.int64)) == after else None


def _scaled(dim: Dim, scale: float) -> Dim:
    """A product with a scale, rounded to float32 and down, as in onnxruntime."""
    if scale == 1:
        return dim
    return int(np.float32(dim) * np.float32(scale)) if isinstance(dim, int) else None
