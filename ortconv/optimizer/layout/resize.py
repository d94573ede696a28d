"""Linear Resize of 8-bit images in float32, which ONNX Runtime computes in half the time with the same results."""

from __future__ import annotations

from ortconv.ir.resize import has_sizes, resizing
from ortconv.ir.types import DType, TensorType
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P
from ortconv.optimizer.quantizers import BYTES
from ortconv.optimizer.shapes import dim_of, elements

MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
"""The coordinates for which ONNX Runtime has a loop over images."""
IMAGE = 4


@rule("LinearResizeOfBytes", P("Resize", "x", ...))
def resize_as_float(m: Match) -> Replacement:
    """Resize<linear>(x) of 8-bit images with channels first  ->  Cast(Resize<linear>(Cast(x)))

    Counterpart: none: beyond ONNX Runtime, which computes in float32, too, but converts each element four times
    """
    x, does = m.x, resizing(m.root, elements)
    if x.dtype not in BYTES or x.rank != IMAGE or does.mode != "linear" or does.antialias or not has_sizes(m.root):
        return None
    if does.coordinates not in MODES or not all(does.keeps(axis, dim_of(x, axis)) for axis in range(2)):
        return None  # other Resizes of bytes compute in fixed point
    numbers = New("Cast", [x], {"to": int(DType.FLOAT)}, types=[TensorType(DType.FLOAT, x.shape)])
    resized = TensorType(DType.FLOAT, m.root.out.shape)
    result = New("Resize", [numbers, *m.root.inputs[1:]], like=m.root, types=[resized])
    return New("Cast", [result], {"to": int(x.dtype)})
