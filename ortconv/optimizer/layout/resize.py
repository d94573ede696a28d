"""Linear Resize of 8-bit images in float32, which ONNX Runtime computes in half the time with the same results."""

from __future__ import annotations

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.conditions import wide
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import BYTES
from ortconv.optimizer.shapes import dim_of, elements

MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
IMAGE = 4


@rule("LinearResizeOfBytes", P("Resize", "x", ...))
def resize_as_float(m: Match) -> Replacement:
    """Resize<linear>(x) of 8-bit images with channels first  ->  Cast(Resize<linear>(Cast(x)))

    Counterpart: none: beyond ONNX Runtime, which computes in float32, too, but converts each element four times
    """
    x = m.x
    if x.dtype not in BYTES or x.rank != IMAGE or not _is_linear(m.root) or not _keeps_outer_axes(m.root, x):
        return None
    numbers = New("Cast", [x], {"to": int(DType.FLOAT)}, types=[TensorType(DType.FLOAT, x.shape)])
    resized = TensorType(DType.FLOAT, m.root.out.shape)
    result = New("Resize", [numbers, *m.root.inputs[1:]], like=m.root, types=[resized])
    return New("Cast", [result], {"to": int(x.dtype)})


def _is_linear(node: Node) -> bool:
    """True for the Resizes for which ONNX Runtime has a loop over images."""
    mode = attribute(node, "coordinate_transformation_mode")
    return attribute(node, "mode") == "linear" and mode in MODES and not node.attr("antialias", 0)


def _keeps_outer_axes(node: Node, x: Value) -> bool:
    """True if the sizes of batch and channels stay as they are: other Resizes of bytes compute in fixed point."""
    axes = node.attrs.get("axes")
    if axes is not None:
        return isinstance(axes, Ints) and sorted(a % IMAGE for a in axes) == [2, 3]
    scales, sizes = node.input(2), node.input(3)
    if sizes is not None:
        known = elements(sizes)
        return known is not None and len(known) == IMAGE and known[:2] == tuple(dim_of(x, i) for i in range(2))
    return scales is not None and scales.constant is not None and tuple(wide(scales).reshape(-1)[:2]) == (1, 1)
