"""Arithmetic, comparison, logic and rounding, element by element."""

from __future__ import annotations

import math
from functools import cache, reduce
from importlib import import_module
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import blockwise, erf_block, of_ufunc
from ortconv.executor.algorithms.half_precision import in_float32, is_narrow
from ortconv.executor.kernels.registry import Function, float_kernel, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


def _ufunc(function: Function) -> Function:
    return in_float32(lambda *operands: function(*operands))


def _fold(function: Function) -> Function:
    return in_float32(lambda *operands: reduce(function, operands))


_UNARY = {
    "Abs": np.abs, "Neg": np.negative, "Sign": np.sign, "Reciprocal": np.reciprocal,
    "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log,
    "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan,
    "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh,
    "Not": np.logical_not, "BitwiseNot": np.invert,
}  # fmt: skip
_BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "And": np.logical_and, "Or": np.logical_or,
    "Xor": np.logical_xor, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
}  # fmt: skip
for _op, _function in (*_UNARY.items(), *_BINARY.items()):
    kernel(_op, since=7 if _op in _BINARY else 1, record=of_ufunc(_function))(_ufunc(_function))

table({
    "Max": _fold(np.maximum), "Min": _fold(np.minimum), "Sum": _fold(np.add), "IsNaN": _ufunc(lambda x: x != x),
    "BitShift": lambda x, y, *, direction: np.asarray((np.left_shift if direction == "LEFT" else np.right_shift)(x, y)),
    "Mod": in_float32(lambda a, b, *, fmod=0: (np.fmod if fmod else np.mod)(a, b)),
    "IsInf": in_float32(lambda x, *, detect_negative=1, detect_positive=1: (
        (x == -np.inf) & bool(detect_negative) | (x == np.inf) & bool(detect_positive)
    )),
    "Mean": in_float32(lambda x, *others: reduce(np.add, others, x) / x.dtype.type(1 + len(others))),
    "Where": lambda condition, x, y: np.where(condition, x, y),
})  # fmt: skip
table({
    "Equal": _ufunc(np.equal), "Less": _ufunc(np.less), "LessOrEqual": _ufunc(np.less_equal),
    "Greater": _ufunc(np.greater), "GreaterOrEqual": _ufunc(np.greater_equal),
}, since=7)  # fmt: skip


@float_kernel("Div", since=7)
def div(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return truncated_quotient(a, b)
    return np.asarray(np.divide(a, b))


def truncated_quotient(a: Array, b: Array) -> Array:
    """Integer quotient rounded toward zero."""
    return np.asarray((a - np.fmod(a, b)) // b)


@float_kernel("Pow", since=7)
def pow_(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        # A negative exponent leaves a fraction, which truncates to 0 unless the base is 1 or -1.
        y = y.astype(np.float64 if np.any(y < 0) else x.dtype)
    if x.dtype == y.dtype:
        return np.asarray(np.power(x, y))
    return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64))).astype(x.dtype)


_FLOAT32_MAX = float(np.finfo(np.float32).max)


@float_kernel("Clip", until=10)
def clip_6(x: Array, *, min: float = -_FLOAT32_MAX, max: float = _FLOAT32_MAX) -> Array:
    return limit(x, np.asarray(min, x.dtype), np.asarray(max, x.dtype))


@kernel("Clip", since=11)
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    # A missing bound of a float tensor is its largest finite number: infinities do not pass.
    least, greatest = _range(x.dtype)
    return limit(x, least if low is None else low.reshape(()), greatest if high is None else high.reshape(()))


def limit(x: Array, low: Array, high: Array) -> Array:
    """x clipped to two scalars of its type; `high` if they contradict each other; NaN is kept.

    numpy's clip is several times faster than maximum and minimum with a scalar, but does not support half precision.
    """
    if is_narrow(x.dtype):
        return np.asarray(np.minimum(np.maximum(x, low), high))
    return np.asarray(x.clip(low, high))


@cache
def _range(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The lowest and the highest finite number of a type."""
    if dtype.kind == "O":
        return np.asarray(-np.inf, dtype), np.asarray(np.inf, dtype)
    finfo = np.finfo if dtype.isbuiltin == 1 else import_module("ml_dtypes").finfo
    info: Any = np.iinfo(dtype) if dtype.kind in "iu" else finfo(dtype)
    return np.asarray(info.min, dtype), np.asarray(info.max, dtype)


@float_kernel("Erf")
def erf(x: Array) -> Array:
    """numpy has no erf: float32 is computed by a rational function, other types element by element."""
    return np.asarray(blockwise(erf_block)(x) if x.dtype == np.float32 else _erf(x), x.dtype)


_erf = np.frompyfunc(lambda x: x.erf() if hasattr(x, "erf") else math.erf(x), 1, 1)
table({"GatedAdd": lambda x, y, gate: x + y * gate}, domain=MICROSOFT)
