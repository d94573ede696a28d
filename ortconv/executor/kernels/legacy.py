"""Operators before opset 7: they broadcast only on request, and BatchNormalization trains unless is_test is set. Also operators
that ONNX has removed: ONNX Runtime computes them up to opset 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels import activation, matmul, normalization
from ortconv.executor.kernels.registry import Function, kernel, lookup, table
from ortconv.ir.tensor import Array

_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater")


def _limited(op: str) -> Function:
    """An operator whose second operand broadcasts only if `broadcast` is set, from `axis` on or over the last axes."""
    found = lookup("", op, 7)
    assert found is not None
    function = found.reference

    def run(a: Array, b: Array, *, broadcast: int = 0, axis: int | None = None) -> Any:
        return function(a, _aligned(a, b, axis) if broadcast else _equal_shape(a, b))

    return run


def _equal_shape(a: Array, b: Array) -> Array:
    if a.shape != b.shape:
        raise GraphError(f"shapes {list(a.shape)} and {list(b.shape)} differ, and broadcast is not set")
    return b


def _aligned(a: Array, b: Array, axis: int | None) -> Array:
    """b with ones appended to its shape, so that its first axis aligns with `axis` of a."""
    if b.size == 1:
        return b.reshape(())
    start = a.ndim - b.ndim if axis is None else axis % a.ndim
    beside = a.shape[max(start, 0) :][: b.ndim]
    if start < 0 or len(beside) < b.ndim or any(m not in (1, n) for m, n in zip(b.shape, beside)):
        raise GraphError(f"shape {list(b.shape)} is no part of {list(a.shape)} from axis {start} on")
    return b.reshape(*b.shape, *(1,) * (a.ndim - start - b.ndim))


table({op: _limited(op) for op in _BINARY}, until=6)


@kernel("Gemm", until=6)
def gemm_1(a: Array, b: Array, c: Array, *, broadcast: int = 0, **attributes: Any) -> Any:
    y = matmul.general_product(a, b, c, **attributes)
    if not broadcast:
        _equal_shape(y, c)
    return y


@kernel("PRelu", until=6)
def prelu_1(x: Array, slope: Array) -> Any:
    """A vector of slopes belongs to the channels."""
    per_channel = slope.ndim == 1 and slope.size > 1 and x.ndim > 1
    return activation.prelu(x, slope.reshape(-1, *(1,) * (x.ndim - 2)) if per_channel else slope)


@kernel("BatchNormalization", until=6)
def batch_normalization_1(
    x: Array, *statistics: Array, epsilon: float = 1e-5, is_test: int = 0, momentum: float = 0.9, spatial: int = 1
) -> Any:
    """In training, also the running and the saved statistics; without `spatial`, one for each feature."""
    options = {"epsilon": epsilon, "momentum": momentum, "spatial": spatial, "training_mode": not is_test}
    found = normalization.batch_normalization(x, *statistics, **options)
    axes = (0, *range(2, x.ndim)) if spatial else (0,)
    return found if is_test else (*found, x.mean(axis=axes), x.var(axis=axes))


@kernel("Crop")
def crop(x: Array, *, border: Sequence[int], scale: Sequence[int] | None = None) -> Any:
    """`border` is left, top, right, bottom; `scale`, the height and width of the result, replaces right and bottom."""
    left, top, right, bottom = border
    height, width = scale or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    found = x[:, :, top : top + height, left : left + width]
    if min(height, width) < 0 or found.shape[2:] != (height, width):
        raise GraphError(f"border {list(border)} leaves no {height} x {width} pixels of {list(x.shape[2:])}")
    return found


table({
    "Scale": lambda x, *, scale=1.0: x * x.dtype.type(scale),
    # The bias is one for each channel.
    "ImageScaler": lambda x, *, bias, scale=1.0: x * x.dtype.type(scale) + np.array(bias, x.dtype).reshape(-1, 1, 1),
})  # fmt: skip
