"""Arithmetic, comparison, logic and rounding, one element at a time."""

from __future__ import annotations

import math
from functools import cache, partial, reduce
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import blockwise, erf_block
from ortconv.executor.algorithms.half_precision import in_float32, is_narrow, widen
from ortconv.executor.kernels.registry import kernel, table
from ortconv.executor.replay.work import Function, Recordable, Work, recordable
from ortconv.ir.tensor import Array


def _unary(function: Function) -> Function:
    def run(x: Array) -> Array:
        return np.asarray(function(x))

    return _recordable(in_float32(run), function)


def _binary(function: Function) -> Function:
    def run(a: Array, b: Array) -> Array:
        return np.asarray(function(a, b))

    return _recordable(in_float32(run), function)


def _recordable(run: Function, function: Function) -> Function:
    """The kernel of a ufunc, which is called with memory for its result where it is recorded."""

    def record(work: Work, *operands: Array) -> Array | None:
        if any(is_narrow(x.dtype) for x in operands):
            return None
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        model = next((x for x in operands if x.shape == shape), None)
        out = work.empty(shape, operands[0].dtype) if model is None else work.like(model)
        work.do(function, *operands, out)
        return out

    return Recordable(run, record)


def _comparison(function: Function) -> Function:
    def run(a: Array, b: Array) -> Array:
        return np.asarray(function(widen(a), widen(b)), dtype=bool)

    return run


def _fold(function: Function) -> Function:
    def run(x: Array, *others: Array) -> Array:
        return np.asarray(reduce(function, others, x))

    return in_float32(run)


table({
    "Abs": _unary(np.abs), "Neg": _unary(np.negative), "Sign": _unary(np.sign), "Reciprocal": _unary(np.reciprocal),
    "Ceil": _unary(np.ceil), "Floor": _unary(np.floor), "Round": _unary(np.rint),
    "Sqrt": _unary(np.sqrt), "Exp": _unary(np.exp), "Log": _unary(np.log),
    "Sin": _unary(np.sin), "Cos": _unary(np.cos), "Tan": _unary(np.tan),
    "Asin": _unary(np.arcsin), "Acos": _unary(np.arccos), "Atan": _unary(np.arctan),
    "Sinh": _unary(np.sinh), "Cosh": _unary(np.cosh), "Tanh": _unary(np.tanh),
    "Asinh": _unary(np.arcsinh), "Acosh": _unary(np.arccosh), "Atanh": _unary(np.arctanh),
    "Not": _unary(np.logical_not), "BitwiseNot": _unary(np.invert),
    "Max": _fold(np.maximum), "Min": _fold(np.minimum), "Sum": _fold(np.add),
})  # fmt: skip

table({
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply),
    "And": _binary(np.logical_and), "Or": _binary(np.logical_or), "Xor": _binary(np.logical_xor),
    "BitwiseAnd": _binary(np.bitwise_and), "BitwiseOr": _binary(np.bitwise_or), "BitwiseXor": _binary(np.bitwise_xor),
    "Equal": _comparison(np.equal), "Less": _comparison(np.less), "LessOrEqual": _comparison(np.less_equal),
    "Greater": _comparison(np.greater), "GreaterOrEqual": _comparison(np.greater_equal),
}, since=7)  # fmt: skip


@kernel("Div", since=7)
@in_float32
def div(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":
        return truncated_quotient(a, b)
    return np.asarray(np.divide(a, b))


def truncated_quotient(a: Array, b: Array) -> Array:
    """Integer quotient rounded toward zero."""
    quotient = np.asarray(np.floor_divide(a, b))
    if a.dtype.kind == "i":
        inexact = np.not_equal(quotient * b, a)
        np.add(quotient, inexact & (np.bitwise_xor(a, b) < 0), out=quotient, casting="unsafe")
    return quotient


@kernel("Mod")
@in_float32
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


@kernel("Mean")
@in_float32
def mean(x: Array, *others: Array) -> Array:
    return np.asarray(reduce(np.add, others, x) / x.dtype.type(1 + len(others)))


@kernel("Pow", since=7)
@in_float32
def pow_(x: Array, y: Array) -> Array:
    if y.size == 1 and y.ndim <= x.ndim and y.reshape(()) in (2, 3):
        square = np.asarray(np.multiply(x, x))
        return square if y.reshape(()) == 2 else np.asarray(np.multiply(square, x))
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return _integer_power(x, y)
    if x.dtype == y.dtype:
        return np.asarray(np.power(x, y))
    return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64))).astype(x.dtype)


def _integer_power(x: Array, y: Array) -> Array:
    if y.dtype.kind == "u" or not np.any(y < 0):
        return np.asarray(np.power(x, y.astype(x.dtype)))
    # A negative exponent leaves a fraction, which truncates to 0 unless the base is 1 or -1.
    return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64))).astype(x.dtype)


@kernel("BitShift")
def bit_shift(x: Array, y: Array, *, direction: str) -> Array:
    return np.asarray(np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y))


@kernel("IsNaN")
def is_nan(x: Array) -> Array:
    return np.asarray(np.isnan(widen(x)))


@kernel("IsInf")
def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    x = widen(x)
    if detect_negative and detect_positive:
        return np.asarray(np.isinf(x))
    if not (detect_negative or detect_positive):
        return np.zeros(x.shape, dtype=bool)
    return np.asarray(x == (-np.inf if detect_negative else np.inf))


_FLOAT32_MAX = float(np.finfo(np.float32).max)


@kernel("Clip", until=10)
@in_float32
def clip_6(x: Array, *, min: float = -_FLOAT32_MAX, max: float = _FLOAT32_MAX) -> Array:
    return limit(x, np.asarray(min, x.dtype), np.asarray(max, x.dtype))


@kernel("Clip", since=11)
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    # A missing bound of a float tensor is its largest finite number: infinities do not pass.
    least, greatest = _range(x.dtype)
    return limit(x, least if low is None else low.reshape(()), greatest if high is None else high.reshape(()))


def limit(x: Array, low: Array, high: Array) -> Array:
    """x between two scalars of its type, `high` where they contradict each other; NaN stays.

    numpy's clip is several times faster than maximum and minimum with a scalar, and half precision has no clip of its own.
    """
    if is_narrow(x.dtype):
        return np.asarray(np.minimum(np.maximum(x, low), high))
    return np.asarray(x.clip(low, high))


@cache
def _range(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The lowest and the highest finite number of a type."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.asarray(info.min, dtype), np.asarray(info.max, dtype)
    largest = _largest(dtype)
    return np.asarray(-largest, dtype), np.asarray(largest, dtype)


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    from ml_dtypes import finfo

    return float(finfo(dtype).max)


@kernel("Where")
@recordable
def where(work: Work, condition: Array, x: Array, y: Array) -> Array:
    out = work.empty(np.broadcast(condition, x, y).shape, x.dtype)
    work.do(np.copyto, out, y)
    work.do(partial(np.copyto, where=condition), out, x)
    return out


@kernel("Erf")
@in_float32
def erf(x: Array) -> Array:
    if x.dtype == np.float32:
        return np.asarray(blockwise(erf_block)(x))
    out = np.empty_like(x)
    out[...] = np.frompyfunc(math.erf, 1, 1)(x) if x.dtype.kind == "f" else erf(x.astype(np.float32))
    return out
