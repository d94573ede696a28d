"""Shapes of results that follow from the shapes of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ortconv.ir.graph import Ints, Node
from ortconv.ir.symbols import broadcast_shapes, is_anonymous, plus
from ortconv.ir.types import Dim, Shape


def multiplied(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a product of matrices or vectors; None if it is unknown."""
    if not a or not b:
        return None
    outer = broadcast_shapes([a[:-2], b[:-2]])
    return None if outer is None else (*outer, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


D = TypeVar("D")


def squeezed(dims: Sequence[D], axes: Sequence[int]) -> tuple[D, ...] | None:
    """The dimensions without these axes, or without those of 1 if there are no axes; None if it is unknown which are 1."""
    if axes:
        return tuple(d for i, d in enumerate(dims) if i not in axes and i - len(dims) not in axes)
    return tuple(d for d in dims if d != 1) if all(isinstance(d, int) for d in dims) else None


def unsqueezed(dims: Sequence[D], axes: Sequence[int]) -> tuple[D | int, ...] | None:
    """The dimensions with new ones of 1 at these axes of the result; None if two axes are equal."""
    rank, rest = len(dims) + len(axes), iter(dims)
    new = {a % rank for a in axes}
    return tuple(1 if i in new else next(rest) for i in range(rank)) if len(new) == len(axes) else None


def joined(shapes: Sequence[Shape], axis: int) -> Shape | None:
    """The shape of values joined along an axis; None if there are none, or if they do not have this axis."""
    if not shapes or not -len(shapes[0]) <= axis < len(shapes[0]):
        return None
    dims: list[Dim] = [min(sides, key=_vagueness) for sides in zip(*shapes)]
    dims[axis] = plus(*(s[axis] for s in shapes))
    return tuple(dims)


def _vagueness(dim: Dim) -> int:
    """Orders equal dimensions: numbers first, then symbols of the model, then invented ones, unknown ones last."""
    return 0 if isinstance(dim, int) else 3 if dim is None else 2 if is_anonymous(dim) else 1


def spatial_pads(node: Node, rank: int) -> tuple[int, ...] | None:
    """The padding of a Conv or pooling node with `rank` spatial axes; None if it depends on the input's shape."""
    auto_pad = node.attr("auto_pad", "NOTSET")
    if auto_pad == "VALID":
        return (0,) * (2 * rank)
    if auto_pad not in ("NOTSET", ""):
        return None
    pads = tuple(node.attr("pads", Ints((0,) * (2 * rank))))
    return pads if len(pads) == 2 * rank else None


def window_shape(node: Node, spatial: Shape, kernel: Sequence[Dim]) -> Shape:
    """The spatial dimensions of the result of a Conv or pooling node."""
    rank, pads = len(spatial), spatial_pads(node, len(spatial))
    strides, dilations = (node.attr(name, Ints((1,) * rank)) for name in ("strides", "dilations"))
    if not len(strides) == len(dilations) == len(kernel) == rank:
        return (None,) * rank
    if pads is None:  # SAME_UPPER or SAME_LOWER
        return tuple(-(-n // s) if isinstance(n, int) else n if s == 1 else None for n, s in zip(spatial, strides))
    spans = [(k - 1) * d + 1 if isinstance(k, int) else None for k, d in zip(kernel, dilations)]
    ceils = bool(node.attr("ceil_mode", 0))
    return tuple(_windows(*axis, ceils) for axis in zip(spatial, spans, strides, pads, pads[rank:]))


def _windows(size: Dim, span: int | None, stride: int, before: int, behind: int, ceils: bool) -> Dim:
    """The number of windows along an axis; None if it is unknown. ceil_mode counts no window that begins in the padding behind.

    onnx and onnxruntime divide toward zero: a window that exceeds the padded image by less than the stride counts.
    """
    if span is None or not isinstance(size, int):
        return size if span is not None and stride == 1 and before + behind == span - 1 else None
    room = size + before + behind - span
    steps = -(-room // stride) if ceils else int(room / stride)
    count = steps if ceils and steps * stride >= size + before else steps + 1
    return count if count >= 0 else None
