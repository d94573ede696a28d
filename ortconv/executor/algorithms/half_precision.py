"""Half precision: arithmetic runs in float32 and is rounded once, at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """True for float16 and bfloat16. Told by name, so that the package that defines bfloat16 is not imported for it."""
    return dtype.char == "e" or (dtype.kind == "V" and dtype.name == "bfloat16")


def compute_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which operators on floats compute: at least float32; that of exact numbers for these."""
    return dtype if dtype in (np.float64, object) else np.dtype(np.float32)


def is_native(*operands: Array | None) -> bool:
    """True for numbers with which numpy computes by itself: no half precision, no exact numbers."""
    return all(x is None or (x.dtype.kind in "biuf" and x.dtype.char != "e") for x in operands)


_ARRAYS = (np.ndarray, np.generic)


def _is_half(x: Any) -> bool:
    return isinstance(x, _ARRAYS) and is_narrow(x.dtype)


def widen(x: Any) -> Any:
    """float16 and bfloat16 arrays as float32, anything else unchanged."""
    return x.astype(np.float32) if _is_half(x) else x


def rounding(dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """What rounds a float32 intermediate result to float16 or bfloat16; for any other type, what does nothing."""
    if not is_narrow(dtype):
        return lambda x: x
    return lambda x: x.astype(dtype).astype(np.float32)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a kernel compute in float32 where its first operand is float16 or bfloat16; float32 results are rounded back.

    Its results are arrays, also where numpy returns a scalar for an operand without axes.
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
