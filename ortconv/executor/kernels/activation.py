"""Activation functions, of ONNX and of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ortconv.errors import UnsupportedError
from ortconv.executor.algorithms.half_precision import in_float32, rounding, widen
from ortconv.executor.kernels.elementwise import erf
from ortconv.executor.kernels.reduction import precise_sum
from ortconv.executor.kernels.registry import Function, float_kernel, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

_FORMULAS: dict[str, Function] = {
    "Relu": lambda x: np.maximum(x.dtype.type(0), x),
    "LeakyRelu": lambda x, *, alpha=0.01: np.where(x < 0, x * x.dtype.type(alpha), x),
    "ThresholdedRelu": lambda x, *, alpha=1.0: np.where(x > alpha, x, x.dtype.type(0)),
    "Elu": lambda x, *, alpha=1.0: np.where(x < 0, alpha * np.expm1(x), x),
    "Celu": lambda x, *, alpha=1.0: (
        np.minimum(alpha * np.expm1(x / alpha), x.dtype.type(0)) + np.maximum(x, x.dtype.type(0))
    ),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, x.dtype.type(0), x.dtype.type(1)),
    "Swish": lambda x, *, alpha=1.0: x / (1 + np.exp(-alpha * x)),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, x.dtype.type(0), x.dtype.type(1)),
    "Softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, x.dtype.type(0)),
    "ParametricSoftplus": lambda x, *, alpha, beta: alpha * np.logaddexp(beta * x, x.dtype.type(0)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Affine": lambda x, *, alpha=1.0, beta=0.0: alpha * x + beta,
    "ScaledTanh": lambda x, *, alpha=1.0, beta=1.0: alpha * np.tanh(beta * x),
    "Mish": lambda x: x * np.tanh(FORMULAS["Softplus"](x)),
    "SwiGLU": lambda a, b, *, alpha=1.0: FORMULAS["Swish"](a, alpha=alpha) * b,
}
FORMULAS: dict[str, Function] = {op: in_float32(formula) for op, formula in _FORMULAS.items()}
table(FORMULAS)


@float_kernel("PRelu", since=7)
def prelu(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


@float_kernel("Selu", since=6)
def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Any:
    return gamma * (FORMULAS["Elu"](x, alpha=alpha) + 0)  # a zero without a sign, as in onnxruntime


table({"Selu": lambda x, *, alpha=1.6732, gamma=1.0507: selu(x, alpha=alpha, gamma=gamma)}, until=5)


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


_MICROSOFT: dict[str, Function] = {
    "BiasGelu": lambda x, bias: gelu(x + bias),
    "FastGelu": lambda x, bias=None: gelu(x if bias is None else x + bias, approximate="tanh"),
    "QuickGelu": lambda x, *, alpha=1.702: FORMULAS["Swish"](x, alpha=alpha),
}
table({op: in_float32(formula) for op, formula in _MICROSOFT.items()}, domain=MICROSOFT)


@kernel("Softmax", since=13)
def softmax(x: Array, *, axis: int = -1) -> Array:
    """Half precision is rounded after each step of the operator's function body."""
    wide, rounded = widen(x), rounding(x.dtype)
    powers = rounded(np.exp(rounded(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))))
    return (powers / rounded(precise_sum(powers, (axis,)))).astype(x.dtype, copy=False)


@float_kernel("LogSoftmax", since=13)
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(precise_sum(np.exp(shifted), (axis,))))


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


def _clip(x: Array, *, low: float = -np.inf, high: float = np.inf) -> Array:
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


_PARAMETERS = {
    "Relu": (), "Sigmoid": (), "Softsign": (), "Softplus": (), "HardSwish": (), "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",), "Elu": ("alpha",), "Affine": ("alpha", "beta"), "ScaledTanh": ("alpha", "beta"),
    "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip
NAMED: dict[str, tuple[Function, Sequence[str]]] = {
    "tanh": (np.tanh, ()), "selu": (selu, ("alpha", "gamma")), "clip": (_clip, ("low", "high")),
    **{op.lower(): (FORMULAS[op], names) for op, names in _PARAMETERS.items()},
}  # fmt: skip
"""Activations that other operators apply to their results: lower-case name to function and names of its parameters."""


def named_activation(name: str, parameters: Sequence[float | None] = ()) -> Callable[[Array], Array]:
    """The activation with its parameters bound, None for a default; the identity for an empty name. UnsupportedError for a
    name that is not in the table.
    """
    if not name:
        return lambda x: x
    try:
        function, names = NAMED[name.lower()]
    except KeyError:
        raise UnsupportedError(
            f"activation {name!r} is not one of {', '.join(sorted(NAMED))}", hint="check the attribute's spelling"
        ) from None
    return partial(function, **{key: value for key, value in zip(names, parameters) if value is not None})
