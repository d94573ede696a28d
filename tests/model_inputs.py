"""Random inputs of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from ortconv.ir.tensor import Array

Numbers = Callable[[np.random.Generator, list[int], np.dtype[Any]], Array]
"""Draws numbers of a shape, for a type to which they are then converted."""


def drawn(proto: onnx.ModelProto, numbers: Numbers, seed: int = 0, size: int = 3, **sizes: int) -> dict[str, Array]:
    """Values for the tensors that a caller must give. `sizes` has those of symbols, `size` is that of all others."""
    rng = np.random.default_rng(seed)
    given = {t.name for t in proto.graph.initializer}
    found = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        if value.name in given or not value.type.HasField("tensor_type"):
            continue
        shape = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, size) for d in tensor.shape.dim]
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype.kind == "O":
            found[value.name] = rng.choice(np.array(["a", "b", "zebra"], object), shape)
        elif dtype.kind == "b":
            found[value.name] = np.asarray(rng.random(shape) < 0.5)
        else:
            found[value.name] = np.asarray(numbers(rng, shape, dtype)).astype(dtype)
    return found
