"""One step of an optimizer. Inputs are the learning rate, the update count, then all variables, all gradients, all states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels.registry import kernel
from ortconv.ir.tensor import Array

_DOMAIN = "ai.onnx.preview.training"


def _groups(tensors: Sequence[Array], kinds: int) -> list[tuple[Array, ...]]:
    """(x, g, state...) of every variable, from all x, all g, ... one after the other."""
    if len(tensors) % kinds:
        raise GraphError(f"an optimizer step takes {kinds} tensors per variable, got {len(tensors)}")
    count = len(tensors) // kinds
    return [tuple(tensors[i::count]) for i in range(count)]


def _outputs(updated: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """All new variables, then all new states of each kind."""
    return tuple(x for kind in zip(*updated) for x in kind)


def _typed(values: tuple[Any, ...], dtype: np.dtype[Any]) -> tuple[Array, ...]:
    return tuple(np.asarray(v, dtype=dtype) for v in values)


@kernel("Adagrad", domain=_DOMAIN)
def adagrad(
    rate: Array,
    count: Array,
    *tensors: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    step = rate.item() / (1 + count.item() * decay_factor)
    updated = []
    for x, gradient, squares in _groups(tensors, 3):
        g = norm_coefficient * x + gradient
        h = squares + g * g
        updated.append(_typed((x - step * g / (np.sqrt(h) + epsilon), h), x.dtype))
    return _outputs(updated)


@kernel("Adam", domain=_DOMAIN)
def adam(
    rate: Array,
    count: Array,
    *tensors: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    step, t = rate.item(), count.item()
    if t > 0:
        step *= np.sqrt(1 - beta**t) / (1 - alpha**t)
    updated = []
    for x, gradient, mean, squares in _groups(tensors, 4):
        g = norm_coefficient * x + gradient
        v = alpha * mean + (1 - alpha) * g
        h = beta * squares + (1 - beta) * g * g
        moved = x - step * v / (np.sqrt(h) + epsilon)
        updated.append(_typed(((1 - norm_coefficient_post) * moved, v, h), x.dtype))
    return _outputs(updated)


@kernel("Momentum", domain=_DOMAIN)
def momentum(
    rate: Array, count: Array, *tensors: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    if mode not in ("standard", "nesterov"):
        raise GraphError(f"Momentum has no mode '{mode}', only standard and nesterov")
    step = rate.item()
    scale = beta if count.item() > 0 else 1.0
    updated = []
    for x, gradient, velocity in _groups(tensors, 3):
        g = norm_coefficient * x + gradient
        v = alpha * velocity + scale * g
        direction = g + alpha * v if mode == "nesterov" else v
        updated.append(_typed((x - step * direction, v), x.dtype))
    return _outputs(updated)
