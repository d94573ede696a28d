"""Operations that move elements without computing: RESHAPE."""

from __future__ import annotations

import math

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.checks import rank_at_most, same_quantization
from ortconv.nnapi.operations.table import Call, Dims, operation


def reshape_dims(c: Call) -> Dims:
    dims = c.shape.array.reshape(-1).tolist()
    stretch = [axis for axis, dim in enumerate(dims) if dim == -1]
    if len(stretch) > 1 or min(dims, default=1) < -1:
        raise op_failed(f"the shape {dims} may have one -1 and no other negative")
    rest = math.prod(dim for dim in dims if dim != -1)
    if stretch and rest:
        dims[stretch[0]] = c.x.size // rest
    if math.prod(dims) != c.x.size:
        raise op_failed(f"{c.x.size} elements do not fit the shape {dims}")
    return tuple(dims)


@operation(
    "RESHAPE", "x:T shape:I", types="F Q H@3 S@4 I@6", infer=reshape_dims,
    checks=(rank_at_most(4, "x"), same_quantization("x", "out")),
)  # fmt: skip
def reshape(c: Call) -> Array:
    y: Array = c.x.array.reshape(c.out.dims)
    return y
