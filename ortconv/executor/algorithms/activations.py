"""Activations that other operators apply to their own result: fused convolutions and products, recurrent cells.

Each takes an array that it may overwrite, then its parameters, and returns the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortconv.errors import UnsupportedError
from ortconv.ir.tensor import Array

Activation = Callable[[Array], Array]


def relu(x: Array) -> Array:
    zero = x.dtype.type(0)
    return np.clip(x, zero, x.dtype.type(np.inf), out=x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)); exp may overflow to infinity, which gives the right zero."""
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1
    return np.reciprocal(x, out=x)


def tanh(x: Array) -> Array:
    return np.tanh(x, out=x)


def leaky_relu(x: Array, alpha: float = 0.01) -> Array:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


def hard_sigmoid(x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    x *= x.dtype.type(alpha)
    x += x.dtype.type(beta)
    return np.clip(x, x.dtype.type(0), x.dtype.type(1), out=x)


def hard_swish(x: Array) -> Array:
    """x * HardSigmoid<1/6, 0.5>(x)"""
    gate = x * x.dtype.type(1 / 6)
    gate += x.dtype.type(0.5)
    x *= np.clip(gate, x.dtype.type(0), x.dtype.type(1), out=gate)
    return x


def clip(x: Array, low: float = -np.inf, high: float = np.inf) -> Array:
    return np.clip(x, x.dtype.type(low), x.dtype.type(high), out=x)


def affine(x: Array, alpha: float = 1.0, beta: float = 0.0) -> Array:
    x *= x.dtype.type(alpha)
    x += x.dtype.type(beta)
    return x


def thresholded_relu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > alpha, x, x.dtype.type(0))


def scaled_tanh(x: Array, alpha: float = 1.0, beta: float = 1.0) -> Array:
    return np.asarray(x.dtype.type(alpha) * np.tanh(x * x.dtype.type(beta)))


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x < 0, x.dtype.type(alpha) * np.expm1(x), x)


def selu(x: Array, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    return np.asarray(gamma * elu(x, alpha))


def softsign(x: Array) -> Array:
    return np.asarray(x / (1 + np.abs(x)))


def softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


ACTIVATIONS: dict[str, tuple[Callable[..., Array], int]] = {
    "relu": (relu, 0), "sigmoid": (sigmoid, 0), "tanh": (tanh, 0), "softsign": (softsign, 0), "softplus": (softplus, 0),
    "selu": (selu, 2), "leakyrelu": (leaky_relu, 1), "thresholdedrelu": (thresholded_relu, 1), "elu": (elu, 1),
    "affine": (affine, 2), "scaledtanh": (scaled_tanh, 2), "hardsigmoid": (hard_sigmoid, 2), "clip": (clip, 2),
    "hardswish": (hard_swish, 0),
}  # fmt: skip
"""Lower-case name to function and number of parameters."""


def activation(name: str, parameters: Sequence[float] = ()) -> Activation | None:
    """The activation with its parameters bound; None for no name. UnsupportedError for a name that is not in the table."""
    if not name:
        return None
    try:
        function, count = ACTIVATIONS[name.lower()]
    except KeyError:
        raise UnsupportedError(
            f"activation {name!r} is not one of {', '.join(sorted(ACTIVATIONS))}", hint="check the attribute's spelling"
        ) from None
    bound = tuple(parameters[:count])
    return lambda x: function(x, *bound)
