"""Activation functions, of ONNX and of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ortconv.errors import UnsupportedError
from ortconv.executor.algorithms.half_precision import in_float32, rounding, widen
from ortconv.executor.kernels.elementwise import erf
from ortconv.executor.kernels.registry import Function, float_kernel, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


@float_kernel("Relu")
def relu(x: Array) -> Array:
    return np.asarray(np.maximum(x.dtype.type(0), x))


@float_kernel("Sigmoid")
def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@float_kernel("LeakyRelu")
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


@float_kernel("PRelu", since=7)
def prelu(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


@float_kernel("Elu")
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    return np.where(x < 0, alpha * np.expm1(x), x)


@float_kernel("Celu")
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    zero = x.dtype.type(0)
    return np.asarray(np.minimum(alpha * np.expm1(x / alpha), zero) + np.maximum(x, zero))


@float_kernel("Selu", until=5)
def selu_1(x: Array, *, alpha: float = 1.6732, gamma: float = 1.0507) -> Array:
    return selu(x, alpha=alpha, gamma=gamma)  # type: ignore[no-any-return]


@float_kernel("Selu", since=6)
def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    return np.asarray(gamma * (elu(x, alpha=alpha) + 0))  # a zero without a sign, as in onnxruntime


@float_kernel("HardSigmoid")
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return np.clip(alpha * x + beta, x.dtype.type(0), x.dtype.type(1))


@float_kernel("HardSwish")
def hard_swish(x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, x.dtype.type(0), x.dtype.type(1))


@float_kernel("Softplus")
def softplus(x: Array) -> Array:
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, x.dtype.type(0)))


@float_kernel("Softsign")
def softsign(x: Array) -> Array:
    return np.asarray(x / (1 + np.abs(x)))


@float_kernel("Mish")
def mish(x: Array) -> Array:
    return np.asarray(x * np.tanh(softplus(x)))


@float_kernel("Swish")
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    return np.asarray(x / (1 + np.exp(-alpha * x)))


@float_kernel("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    return swish(x, alpha=alpha)  # type: ignore[no-any-return]


@float_kernel("SwiGLU")
def swiglu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    return np.asarray(swish(a, alpha=alpha) * b)


@float_kernel("ThresholdedRelu")
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    return np.where(x > alpha, x, x.dtype.type(0))


@float_kernel("Shrink")
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    shrunk = np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, x.dtype.type(0)))
    return shrunk.astype(x.dtype, copy=False)


@float_kernel("Gelu", since=20)
@float_kernel("Gelu", domain=MICROSOFT)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))
    return np.asarray(x / 2 * (1 + erf(x / math.sqrt(2))))


@float_kernel("BiasGelu", domain=MICROSOFT)
def bias_gelu(x: Array, bias: Array) -> Array:
    return gelu(x + bias)  # type: ignore[no-any-return]


@float_kernel("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    return gelu(x if bias is None else x + bias, approximate="tanh")  # type: ignore[no-any-return]


@kernel("Softmax", since=13)
def softmax(x: Array, *, axis: int = -1) -> Array:
    """Half precision is rounded after each step of the operator's function body."""
    wide, rounded = widen(x), rounding(x.dtype)
    powers = rounded(np.exp(rounded(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))))
    return (powers / rounded(powers.sum(axis=axis, keepdims=True))).astype(x.dtype, copy=False)


@float_kernel("LogSoftmax", since=13)
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


@float_kernel("Hardmax", since=13)
def hardmax(x: Array, *, axis: int = -1) -> Array:
    out = np.zeros_like(x)
    if x.size:
        np.put_along_axis(out, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
    return out


def _of_matrix(function: Function) -> Function:
    """The function over all axes from `axis` on, as before opset 13."""

    def run(x: Array, *, axis: int = 1) -> Array:
        axis = axis % x.ndim if x.ndim else 0
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return np.asarray(function(rows).reshape(x.shape))

    return in_float32(run)


table({"Softmax": _of_matrix(softmax), "LogSoftmax": _of_matrix(log_softmax), "Hardmax": _of_matrix(hardmax)}, until=12)


def affine(x: Array, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    return np.asarray(alpha * x + beta)


def scaled_tanh(x: Array, *, alpha: float = 1.0, beta: float = 1.0) -> Array:
    return np.asarray(alpha * np.tanh(beta * x))


def _clip(x: Array, *, low: float = -np.inf, high: float = np.inf) -> Array:
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


NAMED: dict[str, tuple[Callable[..., Array], tuple[str, ...]]] = {
    "relu": (relu, ()), "sigmoid": (sigmoid, ()), "tanh": (np.tanh, ()), "softsign": (softsign, ()),
    "softplus": (softplus, ()), "hardswish": (hard_swish, ()), "leakyrelu": (leaky_relu, ("alpha",)),
    "thresholdedrelu": (thresholded_relu, ("alpha",)), "elu": (elu, ("alpha",)), "selu": (selu, ("alpha", "gamma")),
    "affine": (affine, ("alpha", "beta")), "scaledtanh": (scaled_tanh, ("alpha", "beta")),
    "hardsigmoid": (hard_sigmoid, ("alpha", "beta")), "clip": (_clip, ("low", "high")),
}  # fmt: skip
"""Activations that other operators apply to their results: lower-case name to function and names of its parameters."""


def named_activation(name: str, parameters: Sequence[float | None] = ()) -> Callable[[Array], Array] | None:
    """The activation with its parameters bound, None for a default; None for an empty name. UnsupportedError for a name
    that is not in the table.
    """
    if not name:
        return None
    try:
        function, names = NAMED[name.lower()]
    except KeyError:
        raise UnsupportedError(
            f"activation {name!r} is not one of {', '.join(sorted(NAMED))}", hint="check the attribute's spelling"
        ) from None
    return partial(function, **{key: value for key, value in zip(names, parameters) if value is not None})
