"""Half precision: kernels compute in float32 and round the result once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ortconv.executor.replay.numerics import clip_to
from ortconv.executor.replay.work import Work
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
    """A function that rounds float32 to float16 or bfloat16. For any other type it returns its argument."""
    if not is_narrow(dtype):
        return lambda x: x
    return lambda x: x.astype(dtype).astype(np.float32)


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


# float16 and float32 as integers: a float32 has 13 more bits of mantissa, and an exponent that is 112 larger.


def _bits(number: int) -> Array:
    return np.asarray(number & 0xFFFFFFFF, np.uint32).view(np.int32)


_MORE_MANTISSA, _FROM_SIGN = _bits(13), _bits(16)
_WIDENED, _MAGNITUDE, _SIGN = _bits(0x8FFFE000), _bits(0x7FFF), _bits(0x8000)
_UP, _DOWN = np.asarray(2.0**112, np.float32), np.asarray(2.0**-112, np.float32)

_INFINITE = np.asarray(2.0**16, np.float32)
"""Replaces infinity: the number with the same bits, except for the larger exponent."""

_EXPONENT, _LEAST, _MOST = _bits(0x7F800000), _bits((127 - 14) << 23), _bits((127 + 17) << 23)
_SHIFT = _bits((13 << 23) | 1 << 22)
"""Makes 3 * 2**(e + 12) of 2**e: added to a number with exponent e, that leaves the 11 bits that float16 has."""


def widen_block(work: Work, x: Array, out: Array) -> None:
    """float16 to float32, in contiguous memory. numpy converts one element at a time."""
    bits = out.view(np.int32)
    work.do(np.copyto, bits, x.view(np.int16))
    work.do(np.left_shift, bits, _MORE_MANTISSA, bits)
    work.do(np.bitwise_and, bits, _WIDENED, bits)
    work.do(np.multiply, out, _UP, out)
    work.do(_widen_infinite, x, out)


def _widen_infinite(x: Array, out: Array) -> None:
    if out.max() >= _INFINITE or out.min() <= -_INFINITE:
        np.copyto(out, x)


def narrow_block(work: Work, x: Array, out: Array) -> None:
    """float32 to the nearest float16, ties to even, in contiguous memory.

    numpy converts one element at a time, and needs 40 times as long for numbers below 2**-14.
    """
    rounded, magnitude = work.like(x), work.like(x)
    bits, other = rounded.view(np.int32), magnitude.view(np.int32)
    work.do(np.bitwise_and, x.view(np.int32), _EXPONENT, other)
    work.do(clip_to, other, _LEAST, _MOST, other)
    work.do(np.add, other, _SHIFT, other)
    work.do(np.add, x, magnitude, rounded)
    work.do(np.subtract, rounded, magnitude, rounded)
    work.do(clip_to, rounded, -_INFINITE, _INFINITE, rounded)
    work.do(np.multiply, rounded, _DOWN, rounded)
    work.do(np.right_shift, bits, _MORE_MANTISSA, bits)
    work.do(np.bitwise_and, bits, _MAGNITUDE, bits)
    work.do(np.right_shift, x.view(np.int32), _FROM_SIGN, other)
    work.do(np.bitwise_and, other, _SIGN, other)
    work.do(np.bitwise_or, bits, other, bits)
    work.do(_copy_low_bits, bits, out.view(np.int16))


def _copy_low_bits(bits: Array, out: Array) -> None:
    np.copyto(out, bits, casting="unsafe")
