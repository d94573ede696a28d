"""Mixtures of experts: a router chooses a few small networks for each token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict, Unpack

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels.activation import FORMULAS, gelu, softmax
from ortconv.executor.kernels.quantized_weights import unpack_bits
from ortconv.executor.kernels.registry import float_kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

Layer = Callable[[Array, int], Any]
"""The layer of an expert, by its number, applied to some tokens."""


class Activation(TypedDict, total=False):
    activation_type: str
    activation_alpha: float
    activation_beta: float
    swiglu_fusion: int
    swiglu_limit: float


@float_kernel("MoE", domain=MICROSOFT)
def moe(
    x: Array,
    router: Array,
    *layers: Any,
    k: int = 1,
    normalize_routing_weights: int = 0,
    **activation: Unpack[Activation],
) -> Array:
    """`router` has the scores of the experts before softmax; `layers` are weights and biases of the two layers."""
    w1, bias1, w2, bias2 = (*layers, None)[:4]
    chosen, share = _chosen(softmax(router), None, k, normalize_routing_weights)
    return _mixed(x, chosen, share, _dense(w1, bias1), _dense(w2, bias2), activation)


@float_kernel("QMoE", domain=MICROSOFT)
def qmoe(
    x: Array,
    router: Array,
    *layers: Any,
    accuracy_level: int = 0,
    block_size: int = 0,
    expert_weight_bits: int = 4,
    k: int = 1,
    normalize_routing_weights: int = 0,
    weights_prepacked: int = -1,
    **activation: Unpack[Activation],
) -> Array:
    """Weights, scales and biases of two layers and of an unsupported third one, then zero points, then weights of the experts.
    Without these, each share is the softmax of the chosen scores.
    """
    w1, scale1, bias1, w2, scale2, bias2, _, _, _, zero1, zero2, _, weights = (*layers, *(None,) * 8)[:13]
    chosen, share = _chosen(router, weights, k, 0 if weights is None else normalize_routing_weights)
    first = _packed(w1, scale1, zero1, bias1, expert_weight_bits)
    second = _packed(w2, scale2, zero2, bias2, expert_weight_bits)
    return _mixed(x, chosen, softmax(share) if weights is None else share, first, second, activation)


def _chosen(scores: Array, weights: Array | None, k: int, normalize: int) -> tuple[Array, Array]:
    """The experts with the highest scores for each token, and their weights, by default the scores."""
    chosen = np.argsort(scores, axis=-1, kind="stable")[:, ::-1][:, :k]
    share = np.take_along_axis(scores if weights is None else weights, chosen, axis=-1)
    return chosen, share / share.sum(axis=-1, keepdims=True) if normalize else share


def _mixed(x: Array, chosen: Array, share: Array, first: Layer, second: Layer, activation: Activation) -> Array:
    """The sum of the results of the chosen experts."""
    rows = x.reshape(-1, x.shape[-1])
    y = np.zeros_like(rows)
    for expert in np.unique(chosen).tolist():
        tokens, slot = np.nonzero(chosen == expert)
        inner = _activated(first(rows[tokens], expert), activation)
        y[tokens] += share[tokens, slot][:, None] * second(inner, expert)
    return y.reshape(x.shape)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": FORMULAS["Relu"], "gelu": partial(gelu, approximate="tanh"), "silu": FORMULAS["Swish"], "identity": lambda x: x,
}  # fmt: skip


def _activated(x: Array, given: Activation) -> Any:
    kind, limit = given.get("activation_type", "relu"), np.float32(given.get("swiglu_limit", np.inf))
    if kind != "swiglu":
        return _ACTIVATIONS[kind](x)
    if given.get("swiglu_fusion") != 1:
        raise GraphError("the gates and values of SwiGLU must alternate, with swiglu_fusion 1")
    gate, value = np.minimum(x[:, ::2], limit), np.clip(x[:, 1::2], -limit, limit)
    return FORMULAS["Swish"](gate, alpha=given.get("activation_alpha", 1)) * (value + given.get("activation_beta", 0))


def _dense(w: Array, bias: Array | None) -> Layer:
    return lambda x, expert: x @ w[expert].T + (0 if bias is None else bias[expert])


def _packed(w: Array, scales: Array, zeros: Array | None, bias: Array | None, bits: int) -> Layer:
    """Weights (experts, N, K) of a few bits, with scales (experts, N), or (experts, N, blocks) for parts of rows."""

    def run(x: Array, expert: int) -> Any:
        scale, zero = scales[expert].reshape(-1, 1), np.array([1 << (bits - 1)])
        if zeros is not None:
            zero = unpack_bits(zeros[expert].reshape(-1, zeros.shape[-1]), bits, scales.shape[-1]).reshape(-1, 1)
        parts = unpack_bits(w[expert], bits, x.shape[-1]).reshape(scale.size, -1)
        weights = ((parts - zero.astype(np.float32)) * scale).reshape(-1, x.shape[-1])
        return x @ weights.T + (0 if bias is None else bias[expert])

    return run
