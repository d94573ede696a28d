"""Activation functions, of ONNX and of com.microsoft."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import blockwise, gelu_block, gelu_tanh_block, ones
from ortconv.executor.algorithms.half_precision import in_float32, is_narrow, rounding, widen
from ortconv.executor.kernels.elementwise import erf, limit
from ortconv.executor.kernels.registry import kernel
from ortconv.executor.replay.numerics import clip_to
from ortconv.executor.replay.work import AT_ONCE, Work, recordable, recorded_by
from ortconv.ir.tensor import Array

MICROSOFT = "com.microsoft"


def _bounds(low: float, high: float) -> dict[np.dtype[Any], tuple[Array, Array]]:
    """For `limit`, which is several times faster than numpy's maximum and minimum with a scalar."""
    return {np.dtype(t): (np.asarray(low, t), np.asarray(high, t)) for t in (np.float32, np.float64)}


_POSITIVE, _NEGATIVE, _UNIT = _bounds(0, np.inf), _bounds(-np.inf, 0), _bounds(0, 1)


@kernel("Relu")
@in_float32
@recordable
def relu(work: Work, x: Array) -> Array:
    out = work.like(x)
    if x.dtype in _POSITIVE:
        work.do(clip_to, x, *_POSITIVE[x.dtype], out)
    else:
        work.do(partial(np.maximum, out=out), x, x.dtype.type(0))
    return out


@kernel("Sigmoid")
@in_float32
@recordable
def sigmoid(work: Work, x: Array) -> Array:
    out = work.like(x)
    work.do(np.negative, x, out)
    work.do(np.exp, out, out)
    work.do(np.add, out, np.asarray(1, x.dtype), out)
    work.do(np.reciprocal, out, out)
    return out


@kernel("LeakyRelu")
@in_float32
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    if alpha == 0:  # infinity times zero is NaN
        return np.where(x < 0, x * x.dtype.type(0), x)
    out = np.empty_like(x)
    np.multiply(x, alpha, out=out)
    limited = np.maximum if alpha <= 1 else np.minimum
    limited(out, x, out=out)
    return out


@kernel("PRelu", since=7)
@in_float32
def prelu(x: Array, slope: Array) -> Array:
    out = np.asarray(np.multiply(x, slope))
    if slope.size and slope.max() <= 1 and slope.all():
        # Branch free: several times faster than a mask of random signs. Infinity times zero is NaN.
        np.maximum(out, x, out=out)
    else:
        np.copyto(out, x, where=x >= 0)
    return out


@kernel("Elu")
@in_float32
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    out = limit(x, *_NEGATIVE[x.dtype])
    np.expm1(out, out=out)
    np.multiply(out, alpha, out=out)
    return np.add(out, np.maximum(x, 0), out=out)


@kernel("Celu")
@in_float32
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    out = np.empty_like(x)
    np.divide(x, alpha, out=out)
    np.expm1(out, out=out)
    np.multiply(out, alpha, out=out)
    clip_to(out, *_NEGATIVE[x.dtype], out)
    return np.add(out, np.maximum(x, 0), out=out)


@kernel("Selu", until=5)
@in_float32
def selu_1(x: Array, *, alpha: float = 1.6732, gamma: float = 1.0507) -> Any:
    return selu(x, alpha=alpha, gamma=gamma)


@kernel("Selu", since=6)
@in_float32
def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    out: Array = elu(x, alpha=alpha)
    return np.multiply(out, gamma, out=out)


@kernel("HardSigmoid")
@in_float32
@recordable
def hard_sigmoid(work: Work, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    out = work.like(x)
    work.do(np.multiply, x, np.asarray(alpha, x.dtype), out)
    work.do(np.add, out, np.asarray(beta, x.dtype), out)
    work.do(clip_to, out, *_UNIT[x.dtype], out)
    return out


@kernel("HardSwish")
@in_float32
def hard_swish(x: Array) -> Array:
    out = hard_sigmoid(x, alpha=1 / 6, beta=0.5)
    return np.multiply(out, x, out=out)


@kernel("Softplus")
@in_float32
def softplus(x: Array) -> Array:
    out = np.empty_like(x)
    np.abs(x, out=out)
    np.negative(out, out=out)
    np.exp(out, out=out)
    np.log1p(out, out=out)
    return np.add(out, np.maximum(x, 0), out=out)


@kernel("Softsign")
@in_float32
def softsign(x: Array) -> Array:
    out = np.empty_like(x)
    np.abs(x, out=out)
    np.add(out, 1, out=out)
    return np.divide(x, out, out=out)


@kernel("Mish")
@in_float32
def mish(x: Array) -> Array:
    out = softplus(x)
    np.tanh(out, out=out)
    return np.multiply(out, x, out=out)


@kernel("Swish")
@in_float32
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    scaled = np.empty_like(x)
    np.multiply(x, alpha, out=scaled)
    out = sigmoid(scaled)
    return np.multiply(out, x, out=out)


@kernel("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Any:
    return swish(x, alpha=alpha)


@kernel("SwiGLU")
@in_float32
def swiglu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    out = swish(a, alpha=alpha)
    return np.multiply(out, b, out=out)


@kernel("ThresholdedRelu")
@in_float32
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    return _where(x > alpha, x)


def _where(mask: Array, x: Array) -> Array:
    """x where the mask is true, else 0. Without branches, which masks of random elements make slow."""
    bits = x.view(f"i{x.itemsize}")
    return np.asarray((bits & -mask.astype(bits.dtype)).view(x.dtype))


@kernel("Shrink")
@in_float32
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    low = x < -lambd
    above, below = (np.asarray(v).astype(x.dtype) for v in (x - bias, x + bias))
    return np.asarray(_where((x > lambd) & ~low, above) + _where(low, below))


def _record_gelu(work: Work, x: Array, *, approximate: str = "none") -> Any:
    return work.call(_OF_FLOAT32[approximate], x) if x.dtype == np.float32 else None


_OF_FLOAT32 = {"none": blockwise(gelu_block), "tanh": blockwise(gelu_tanh_block)}


@kernel("Gelu", since=20)
@recorded_by(_record_gelu)
@in_float32
def gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return _gelu_tanh(x)
    if x.dtype == np.float32:
        return np.asarray(blockwise(gelu_block)(x))
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    if x.dtype == np.float32:
        return np.asarray(blockwise(gelu_tanh_block)(x))
    # 0.5 (1 + tanh u) is sigmoid(2 u), which is cheaper.
    twice_u = np.empty_like(x)
    np.multiply(x, x, out=twice_u)
    np.multiply(twice_u, 2 * math.sqrt(2 / math.pi) * 0.044715, out=twice_u)
    np.add(twice_u, 2 * math.sqrt(2 / math.pi), out=twice_u)
    np.multiply(twice_u, x, out=twice_u)
    out = sigmoid(twice_u)
    return np.multiply(out, x, out=out)


@kernel("Gelu", domain=MICROSOFT)
@recorded_by(_record_gelu)
def microsoft_gelu(x: Array) -> Any:
    return gelu(x)


@kernel("BiasGelu", domain=MICROSOFT)
@in_float32
def bias_gelu(x: Array, bias: Array) -> Any:
    return gelu(np.asarray(np.add(x, bias)))


@kernel("FastGelu", domain=MICROSOFT)
@in_float32
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    return _gelu_tanh(x if bias is None else np.asarray(np.add(x, bias)))


@kernel("Softmax", since=13)
@recordable
def softmax(work: Work, x: Array, *, axis: int = -1) -> Array | None:
    """Half precision is rounded after each step of the operator's function body."""
    if not is_narrow(x.dtype):
        return _softmax(work, x, axis)
    if work is not AT_ONCE:
        return None
    if not x.size:
        return np.empty_like(x)
    wide, rounded = widen(x), rounding(x.dtype)
    out = rounded(np.exp(rounded(wide - wide.max(axis=axis, keepdims=True))))
    total = rounded(out.sum(axis=axis, keepdims=True))
    return np.divide(out, total, out=out).astype(x.dtype)


_SHORT_ROW, _MANY = 32, 1 << 12
"""To reduce at least so many elements in so short rows costs more than to make columns of the rows."""


def _softmax(work: Work, x: Array, axis: int) -> Array:
    axis %= x.ndim
    if x.strides[axis] == x.itemsize and x.shape[axis] <= _SHORT_ROW and x.size >= _MANY:
        x = work.contiguous(x.swapaxes(0, axis)).swapaxes(0, axis)
    out, one_each = work.like(x), [1 if i == axis else n for i, n in enumerate(x.shape)]
    if not x.size:
        return out
    with work.scratch():
        peak, total = work.empty(one_each, x.dtype), work.empty(one_each, x.dtype)
        work.do(np.maximum.reduce, x, axis, None, peak, True)
        work.do(np.subtract, x, peak, out)
        work.do(np.exp, out, out)
        size = x.shape[axis]
        if axis == x.ndim - 1 and out.flags.c_contiguous:
            work.do(np.dot, out.reshape(-1, size), ones(size, x.dtype), total.reshape(-1))
        else:
            work.do(np.add.reduce, out, axis, None, total, True)
        work.do(np.divide, out, total, out)
    return out


@kernel("LogSoftmax", since=13)
@in_float32
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    if not x.size:
        return np.empty_like(x)
    shifted = np.asarray(x - x.max(axis=axis, keepdims=True))
    shifted -= np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return shifted


@kernel("Hardmax", since=13)
@in_float32
def hardmax(x: Array, *, axis: int = -1) -> Array:
    out = np.zeros_like(x)
    if x.size:
        np.put_along_axis(out, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
    return out


def _as_matrix(x: Array, axis: int) -> Array:
    axis = axis % x.ndim if x.ndim else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@kernel("Softmax", until=12)
@in_float32
@recordable
def softmax_1(work: Work, x: Array, *, axis: int = 1) -> Array:
    rows = work.reshaped(x, _as_matrix(x, axis).shape)
    return _softmax(work, rows, 1).reshape(x.shape)


@kernel("LogSoftmax", until=12)
@in_float32
def log_softmax_1(x: Array, *, axis: int = 1) -> Any:
    return log_softmax(_as_matrix(x, axis)).reshape(x.shape)


@kernel("Hardmax", until=12)
@in_float32
def hardmax_1(x: Array, *, axis: int = 1) -> Any:
    return hardmax(_as_matrix(x, axis)).reshape(x.shape)
