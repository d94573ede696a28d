"""Recurrent layers with the usual activations and no options: all directions in one loop, which allocates nothing.

sigmoid(x) is tanh(x / 2) / 2 + 1 / 2: with the weights of its gates halved, one tanh does for all gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ortconv.ir.tensor import Array

Steps = Callable[[Array, Array, Sequence[Array]], tuple[Array, ...]]
"""From what the steps read of the input (T, D, B, width), the hidden states to fill (T, D, B, H), and the states before, each
(D, B, H), hidden first, to the states after.
"""


class Weights(NamedTuple):
    """Those of all directions: `w` (D, gates * H, I), `r` (D, gates * H, H), biases (D, gates * H)."""

    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array


class Loop(NamedTuple):
    w: Array
    """(I, D * gates * H)"""
    bias: Array
    """(D, 1, gates * H)"""
    constant: Array
    """(D, 1, n): what the steps read behind the products with the input."""
    steps: Steps

    def run(self, x: Array, states: Sequence[Array], backwards: Sequence[bool]) -> tuple[Array, ...]:
        """Y (T, D, B, H) and the last state of each kind (D, B, H), for x (T, B, I)."""
        length, batch, features = x.shape
        directions, _, gates = self.bias.shape
        products = (x.reshape(length * batch, features) @ self.w).reshape(length, batch, directions, gates)
        inputs = np.empty((length, directions, batch, gates + self.constant.shape[-1]), x.dtype)
        inputs[..., gates:] = self.constant
        y = np.empty((length, *states[0].shape), x.dtype)
        for d, backward in enumerate(backwards):
            np.add(products[:: -1 if backward else 1, :, d], self.bias[d], out=inputs[:, d, :, :gates])
        last = self.steps(inputs, y, states)
        for d, backward in enumerate(backwards):
            if backward:
                y[:, d] = y[::-1, d].copy()
        return y, *last


def rnn_loop(weights: Weights) -> Loop:
    def steps(inputs: Array, y: Array, states: Sequence[Array]) -> tuple[Array, ...]:
        (h,) = states
        for x, following in zip(inputs, y):
            np.matmul(h, recurrent, following)
            np.add(following, x, following)
            h = np.tanh(following, following)
        return (h.copy(),)

    recurrent = _columns(weights.r)
    bias = weights.input_bias + weights.hidden_bias
    return Loop(_side_by_side(weights.w), bias[:, None], bias[:, None, :0], steps)


def gru_loop(weights: Weights) -> Loop:
    """The reset gate applied to the product. Gates lie in the order update, reset, candidate."""
    n = weights.r.shape[-1]

    def steps(inputs: Array, y: Array, states: Sequence[Array]) -> tuple[Array, ...]:
        (h,) = states
        total, change = np.empty((*h.shape[:2], 3 * n), h.dtype), np.empty_like(h)
        half = np.asarray(0.5, h.dtype)
        gates, update, reset, candidate = (
            total[..., : 2 * n],
            total[..., :n],
            total[..., n : 2 * n],
            total[..., 2 * n :],
        )
        for x, own, following in zip(inputs[..., n:], inputs[..., :n], y):
            np.matmul(h, recurrent, total)
            np.add(total, x, total)
            np.tanh(gates, gates)
            np.multiply(gates, half, gates)
            np.add(gates, half, gates)
            np.multiply(candidate, reset, candidate)
            np.add(candidate, own, candidate)
            np.tanh(candidate, candidate)
            np.subtract(h, candidate, change)
            np.multiply(change, update, change)
            h = np.add(change, candidate, following)
        return (h.copy(),)

    halved = _scaled(weights, np.repeat([0.5, 0.5, 1], n))
    recurrent = _columns(halved.r)
    bias = halved.input_bias + np.where(np.arange(3 * n) < 2 * n, halved.hidden_bias, 0)
    # The candidate's products come first, so that its other bias follows those of the gates.
    order = np.r_[2 * n : 3 * n, : 2 * n]
    return Loop(
        _side_by_side(halved.w[:, order]),
        bias[:, None, order].astype(weights.w.dtype),
        halved.hidden_bias[:, None, 2 * n :],
        steps,
    )


def lstm_loop(weights: Weights) -> Loop:
    """Without peepholes. Gates lie in the order input, output, forget, cell."""
    n = weights.r.shape[-1]

    def steps(inputs: Array, y: Array, states: Sequence[Array]) -> tuple[Array, ...]:
        h, c = states
        # Gates in the order input, forget, output, cell, then the cell state: one product for both of its summands.
        work, summands, curved = (np.empty((*h.shape[:2], k * n), h.dtype) for k in (5, 2, 1))
        half = np.asarray(0.5, h.dtype)
        gates, sigmoids, output, cell = (
            work[..., : 4 * n],
            work[..., : 3 * n],
            work[..., 2 * n : 3 * n],
            work[..., 4 * n :],
        )
        factors, others = work[..., : 2 * n], work[..., 3 * n :]
        added, kept = summands[..., :n], summands[..., n:]
        cell[...] = c
        for x, following in zip(inputs, y):
            np.matmul(h, recurrent, gates)
            np.add(gates, x, gates)
            np.tanh(gates, gates)
            np.multiply(sigmoids, half, sigmoids)
            np.add(sigmoids, half, sigmoids)
            np.multiply(factors, others, summands)
            np.add(added, kept, cell)
            np.tanh(cell, curved)
            h = np.multiply(curved, output, following)
        return h.copy(), cell.copy()

    order = np.r_[:n, 2 * n : 3 * n, n : 2 * n, 3 * n : 4 * n]
    halved = _scaled(weights, np.repeat([0.5, 0.5, 0.5, 1], n))
    recurrent = _columns(halved.r[:, order])
    bias = (halved.input_bias + halved.hidden_bias)[:, None, order]
    return Loop(_side_by_side(halved.w[:, order]), bias, bias[..., :0], steps)


def _scaled(weights: Weights, factors: Array) -> Weights:
    factors = factors.astype(weights.w.dtype)
    column = factors[:, None]
    return Weights(weights.w * column, weights.r * column, weights.input_bias * factors, weights.hidden_bias * factors)


def _columns(r: Array) -> Array:
    """(D, gates, H) as (D, H, gates), contiguous."""
    return np.ascontiguousarray(r.swapaxes(1, 2))


def _side_by_side(w: Array) -> Array:
    """(D, gates, I) as (I, D * gates), contiguous."""
    return np.ascontiguousarray(w.reshape(-1, w.shape[-1]).T)
