"""Activations that other operators apply to their result: fused convolutions and products, recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortconv.errors import UnsupportedError
from ortconv.ir.tensor import Array

Activation = Callable[[Array], Array]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def leaky_relu(x: Array, alpha: float = 0.01) -> Array:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


def _clip(x: Array, low: float = -np.inf, high: float = np.inf) -> Array:
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


def _affine(x: Array, alpha: float = 1.0, beta: float = 0.0) -> Array:
    return np.asarray(x * x.dtype.type(alpha) + x.dtype.type(beta))


def _hard_sigmoid(x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return _clip(_affine(x, alpha, beta), 0, 1)


def _elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x < 0, x.dtype.type(alpha) * np.expm1(x), x)


def _selu(x: Array, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    return np.asarray(gamma * _elu(x, alpha))


ACTIVATIONS: dict[str, tuple[Callable[..., Array], int]] = {
    "relu": (lambda x: _clip(x, 0), 0),
    "sigmoid": (sigmoid, 0),
    "tanh": (np.tanh, 0),
    "softsign": (lambda x: x / (1 + np.abs(x)), 0),
    "softplus": (lambda x: np.logaddexp(x, x.dtype.type(0)), 0),
    "selu": (_selu, 2),
    "leakyrelu": (leaky_relu, 1),
    "thresholdedrelu": (lambda x, alpha=1.0: np.where(x > alpha, x, x.dtype.type(0)), 1),
    "elu": (_elu, 1),
    "affine": (_affine, 2),
    "scaledtanh": (lambda x, alpha=1.0, beta=1.0: x.dtype.type(alpha) * np.tanh(x * x.dtype.type(beta)), 2),
    "hardsigmoid": (_hard_sigmoid, 2),
    "clip": (_clip, 2),
    "hardswish": (lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), 0),
}
"""Lower-case name to function and number of parameters."""


def activation(name: str, parameters: Sequence[float] = ()) -> Activation | None:
    """The activation with its parameters bound; None for an empty name. UnsupportedError for a name that is not in the table."""
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
