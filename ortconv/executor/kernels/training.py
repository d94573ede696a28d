"""Losses, and steps of optimizers.

Scores are (N, C, d1, ..., dk), labels and losses (N, d1, ..., dk). The inputs of an optimizer are the learning rate, the update
count, then all variables, all gradients, all states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels.activation import log_softmax
from ortconv.executor.kernels.registry import float_kernel, kernel
from ortconv.ir.tensor import Array

_DOMAIN = "ai.onnx.preview.training"


@float_kernel("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Array:
    classes = x.shape[1]
    if target.shape != (len(x), *x.shape[2:]):
        raise GraphError(f"labels of shape {list(target.shape)} do not go with scores of shape {list(x.shape)}")
    ignored = np.zeros(target.shape, bool) if ignore_index is None else target == ignore_index
    label = np.where(ignored, 0, target)
    if label.size and (label.min() < 0 or label.max() >= classes):
        raise GraphError(f"a class label is outside [0, {classes})")
    weights = np.ones((), x.dtype) if weight is None else weight[label]
    weights = np.where(ignored, x.dtype.type(0), weights)
    picked = np.take_along_axis(x, label[:, None], axis=1)[:, 0]
    # An ignored sample counts nothing, not even a NaN.
    loss = np.where(ignored, x.dtype.type(0), -picked * weights)
    if reduction == "none":
        return loss
    if reduction not in ("sum", "mean"):
        raise GraphError(f"there is no reduction '{reduction}', only none, sum and mean")
    total = loss.sum(dtype=x.dtype)
    return np.asarray(total if reduction == "sum" else total / weights.sum(dtype=x.dtype))


@float_kernel("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    x: Array, labels: Array, weights: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Any:
    log_prob = log_softmax(x, axis=1)
    loss = negative_log_likelihood_loss(log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss, log_prob


def _updated(update: Callable[..., Sequence[Any]], kinds: int, tensors: Sequence[Array]) -> tuple[Array, ...]:
    """All new variables, then all new states of each kind. `update` computes those of one variable from its `kinds` tensors."""
    if len(tensors) % kinds:
        raise GraphError(f"an optimizer step takes {kinds} tensors per variable, got {len(tensors)}")
    count = len(tensors) // kinds
    new = [update(*tensors[i::count]) for i in range(count)]
    return tuple(np.asarray(x, old.dtype) for kind in zip(*new) for x, old in zip(kind, tensors))


@kernel("Adagrad", domain=_DOMAIN)
def adagrad(
    rate: Array, t: Array, *tensors: Array, decay_factor: float = 0, epsilon: float = 1e-6, norm_coefficient: float = 0
) -> tuple[Array, ...]:
    step = rate.item() / (1 + t.item() * decay_factor)

    def update(x: Array, gradient: Array, squares: Array) -> Sequence[Any]:
        g = norm_coefficient * x + gradient
        h = squares + g * g
        return x - step * g / (np.sqrt(h) + epsilon), h

    return _updated(update, 3, tensors)


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

    def update(x: Array, gradient: Array, mean: Array, squares: Array) -> Sequence[Any]:
        g = norm_coefficient * x + gradient
        v = alpha * mean + (1 - alpha) * g
        h = beta * squares + (1 - beta) * g * g
        return (1 - norm_coefficient_post) * (x - step * v / (np.sqrt(h) + epsilon)), v, h

    return _updated(update, 4, tensors)


@kernel("Momentum", domain=_DOMAIN)
def momentum(
    rate: Array, count: Array, *tensors: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    if mode not in ("standard", "nesterov"):
        raise GraphError(f"Momentum has no mode '{mode}', only standard and nesterov")
    step, scale = rate.item(), beta if count.item() > 0 else 1.0

    def update(x: Array, gradient: Array, velocity: Array) -> Sequence[Any]:
        g = norm_coefficient * x + gradient
        v = alpha * velocity + scale * g
        return x - step * (g + alpha * v if mode == "nesterov" else v), v

    return _updated(update, 3, tensors)
