"""Loss functions. Scores are (N, C, d1, ..., dk), labels and losses (N, d1, ..., dk)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels.activation import log_softmax
from ortconv.executor.kernels.registry import float_kernel
from ortconv.ir.tensor import Array


@float_kernel("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    log_prob: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    classes = log_prob.shape[1]
    if target.shape != (len(log_prob), *log_prob.shape[2:]):
        raise GraphError(f"labels of shape {list(target.shape)} do not go with scores of shape {list(log_prob.shape)}")
    ignored = np.zeros(target.shape, bool) if ignore_index is None else target == ignore_index
    label = np.where(ignored, 0, target)
    if label.size and (label.min() < 0 or label.max() >= classes):
        raise GraphError(f"a class label is outside [0, {classes})")
    weights = np.ones((), log_prob.dtype) if weight is None else weight[label]
    weights = np.where(ignored, log_prob.dtype.type(0), weights)
    picked = np.take_along_axis(log_prob, label[:, None], axis=1)[:, 0]
    # An ignored sample counts nothing, not even a NaN.
    loss = np.where(ignored, log_prob.dtype.type(0), -picked * weights)
    if reduction == "none":
        return loss
    if reduction not in ("sum", "mean"):
        raise GraphError(f"there is no reduction '{reduction}', only none, sum and mean")
    total = loss.sum(dtype=log_prob.dtype)
    return np.asarray(total if reduction == "sum" else total / weights.sum(dtype=log_prob.dtype))


@float_kernel("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    log_prob = log_softmax(scores, axis=1)
    loss = negative_log_likelihood_loss(log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss, log_prob
