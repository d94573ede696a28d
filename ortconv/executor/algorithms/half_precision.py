"""Half precision: kernels compute in float32 and round the result once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """True for float16 and bfloat16. It compares names, so that ml_dtypes, which defines bfloat16, is not imported."""
    return dtype.char == "e" or (dtype.kind == "V" and dtype.name == "bfloat16")


def compute_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which operators on floats compute: float32, or the type itself if it is float64 or object."""
    return dtype if dtype in (np.float64, object) else np.dtype(np.float32)


def is_native(*operands: Array | None) -> bool:
    """True if numpy computes with these types natively: not for half precision and exact numbers."""
    return all(x is None or (x.dtype.kind in "biuf" and x.dtype.char != "e") for x in operands)


_ARRAYS = (np.ndarray, np.generic)


def _is_half(x: Any) -> bool:
    return isinstance(x, _ARRAYS) and is_narrow(x.dtype)


def widen(x: Any) -> Any:
    """float16 and bfloat16 arrays as float32, anything else unchanged."""
    return x.astype(np.float32) if _is_half(x) else x


def rounding(dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """A function that rounds float32 to float16 or bfloat16, but keeps numbers beyond the range of the type, such as the sum of a
    long Softmax. For any other type, it returns its argument.
    """

    def rounded(x: Array) -> Array:
        with np.errstate(over="ignore"):
            narrow = x.astype(dtype).astype(np.float32)
        return np.where(np.isinf(narrow), x, narrow)

    return rounded if is_narrow(dtype) else lambda x: x


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a kernel compute in float32 if its first operand is float16 or bfloat16; float32 results are rounded back.

    Its results are arrays. numpy itself returns scalars for operands without axes.
    """

    @wraps(function, updated=())
    def call(*operands: Any, **attributes: Any) -> Any:
        if not operands or not _is_half(operands[0]):
            result = function(*operands, **attributes)
            return result if isinstance(result, np.ndarray | tuple) else np.asarray(result)
        dtype = operands[0].dtype
        result = function(*map(widen, operands), **attributes)
        if isinstance(result, tuple):
            return tuple(_narrow(r, dtype) for r in result)
        return _narrow(result, dtype)

    return call


def _narrow(x: Any, dtype: np.dtype[Any]) -> Any:
    if not isinstance(x, np.ndarray | np.generic) or x.dtype != np.float32:
        return x if isinstance(x, np.ndarray) else np.asarray(x)
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(dtype))
