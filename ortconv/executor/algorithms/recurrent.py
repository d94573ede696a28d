"""Recurrent layers with the usual activations and no options: one loop for all directions, without allocations.

sigmoid(x) is tanh(x / 2) / 2 + 1 / 2. So the weights of sigmoid gates are halved, and one tanh computes all gates. The
operands of a step are stored gate by gate, (gates, D, B, H), because numpy is fastest on contiguous memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.gemm import Matrix, matrix
from ortconv.executor.replay.work import AT_ONCE, Function, Work
from ortconv.ir.tensor import Array

Steps = Callable[[Work, Array, Array, Sequence[Array]], tuple[Array, ...]]
"""For some directions: from what the steps read of the input (T, n, D, B, H), the hidden states to fill (T, D, B, H), and the
states before, each (D, B, H), hidden first, to the states after.
"""


class Weights(NamedTuple):
    """The weights of all directions: `w` (D, gates * H, I), `r` (D, gates * H, H), biases (D, gates * H)."""

    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array


class Loop(NamedTuple):
    weights: Matrix
    """(I, D * gates * H)"""
    bias: Array
    """(D, gates, 1, H)"""
    constant: Array
    """(n, D, 1, H): constants that the steps read after the gates' products with the input."""
    steps: Steps

    def run(self, work: Work, x: Array, states: Sequence[Array], backwards: Sequence[bool]) -> tuple[Array, ...]:
        """Y (T, D, B, H) and the last state of each kind (D, B, H), for x (T, B, I)."""
        length, batch, features = x.shape
        directions, gates, _, hidden = self.bias.shape
        products = self.weights.multiply(work, work.contiguous(x).reshape(length * batch, features))
        products = products.reshape(length, batch, directions, gates, hidden).transpose(0, 2, 3, 1, 4)
        inputs = work.empty((length, gates + len(self.constant), directions, batch, hidden), x.dtype)
        work.do(np.copyto, inputs[:, gates:], self.constant)
        y, last = work.empty((length, *states[0].shape), x.dtype), tuple([work.empty(s.shape, x.dtype) for s in states])
        for d, backward in enumerate(backwards):
            work.do(np.add, products[:: -1 if backward else 1, d], self.bias[d], inputs[:, :gates, d])
        for target, state in zip(last, self.steps(work, inputs, y, states), strict=True):
            work.do(np.copyto, target, state)
        for d, backward in enumerate(backwards):
            if backward:
                work.do(np.copyto, y[:, d], work.copied(y[::-1, d]))
        return y, *last


BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

ACTIVATIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}


def prepared(op: str) -> Callable[..., Function | None]:
    """The `prepare` function of RNN, GRU or LSTM: lays out constant weights."""

    def make(operands: Sequence[Array | None], *, layout: int = 0, **options: Any) -> Function | None:
        loop, backwards = _loop_of(op, operands, **options), BACKWARDS.get(options.get("direction", "forward"))
        if loop is None or backwards is None or layout or loop.bias.shape[0] != len(backwards):
            return None
        b, hidden = (*operands, None)[3], loop.bias.shape[-1]

        def run(work: Work, x: Array, w: Array, r: Array, *others: Array | None) -> Any:
            bias, lengths, h, c, p = (list(others) + [None] * 5)[:5]
            if (bias is None) != (b is None) or p is not None or x.dtype != loop.bias.dtype or not x.size:
                return None
            if lengths is not None and (work is not AT_ONCE or (lengths != x.shape[0]).any()):
                return None
            shape = (len(backwards), x.shape[1], hidden)
            given = (h, c) if op == "LSTM" else (h,)
            states = [np.zeros(shape, x.dtype) if s is None else s for s in given]
            if any(s.shape != shape for s in states):
                return None
            return loop.run(work, x, states, backwards)

        return run

    return make


def _loop_of(
    op: str,
    operands: Sequence[Array | None],
    *,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    input_forget: int = 0,
    linear_before_reset: int = 0,
    **_: Any,
) -> Loop | None:
    """The loop of a layer; None if weights are not constant, or if the layer has an option that no loop supports."""
    w, r, b = (*operands, None)[1:4]
    if w is None or r is None or w.dtype not in (np.float32, np.float64):
        return None
    names = ACTIVATIONS[op] * len(w)
    given = tuple(name.lower() for name in activations or names)[: len(names)]
    if given != names or clip or input_forget or (op == "GRU" and not linear_before_reset):
        return None
    gates = r.shape[1]
    biases = np.zeros((len(w), 2 * gates), w.dtype) if b is None else b
    return _LOOPS[op](Weights(w, r, biases[:, :gates], biases[:, gates:]))


def rnn_loop(weights: Weights) -> Loop:
    def steps(work: Work, inputs: Array, y: Array, states: Sequence[Array]) -> tuple[Array, ...]:
        (h,), columns = states, recurrent
        for x, following in zip(inputs[:, 0], y):
            work.do(np.matmul, h, columns, following)
            work.do(np.add, following, x, following)
            work.do(np.tanh, following, following)
            h = following
        return (h,)

    recurrent = _columns(weights.r)
    bias = (weights.input_bias + weights.hidden_bias)[:, None, None]
    return Loop(_side_by_side(weights.w), bias, bias[:0], steps)


def gru_loop(weights: Weights) -> Loop:
    """A GRU whose reset gate is applied to the product. The order of gates is update, reset, candidate."""
    directions, _, n = weights.r.shape

    def steps(work: Work, inputs: Array, y: Array, states: Sequence[Array]) -> tuple[Array, ...]:
        (h,), columns = states, recurrent
        product, products = _products(work, h, 3)
        total, change, half = work.empty((3, *h.shape), h.dtype), work.like(h), np.asarray(0.5, h.dtype)
        gates, (update, reset, candidate) = total[:2], total
        for x, own, following in zip(inputs[:, 1:], inputs[:, 0], y):
            work.do(np.matmul, h, columns, product)
            work.do(np.add, products, x, total)
            work.do(np.tanh, gates, gates)
            work.do(np.multiply, gates, half, gates)
            work.do(np.add, gates, half, gates)
            work.do(np.multiply, candidate, reset, candidate)
            work.do(np.add, candidate, own, candidate)
            work.do(np.tanh, candidate, candidate)
            work.do(np.subtract, h, candidate, change)
            work.do(np.multiply, change, update, change)
            work.do(np.add, change, candidate, following)
            h = following
        return (h,)

    halved = _scaled(weights, (0.5, 0.5, 1))
    bias, constant = (b.reshape(directions, 3, 1, n).copy() for b in (halved.input_bias, halved.hidden_bias))
    bias[:, :2] += constant[:, :2]
    # The candidate comes first, so that its other bias follows the gates.
    order = np.r_[2 * n : 3 * n, : 2 * n]
    columns, bias = _side_by_side(halved.w[:, order]), bias[:, [2, 0, 1]]
    recurrent = _columns(halved.r)
    return Loop(columns, bias, constant[None, :, 2], steps)


def lstm_loop(weights: Weights) -> Loop:
    """An LSTM without peepholes. The order of gates is input, output, forget, cell."""
    directions, _, n = weights.r.shape

    def steps(work: Work, inputs: Array, y: Array, states: Sequence[Array]) -> tuple[Array, ...]:
        (h, c), columns = states, recurrent
        product, products = _products(work, h, 4)
        # The gates input, forget, output, cell, then the cell state: one product makes both of its summands.
        held, summands = work.empty((5, *h.shape), h.dtype), work.empty((2, *h.shape), h.dtype)
        curved, half = work.like(h), np.asarray(0.5, h.dtype)
        gates, sigmoids, output, cell, factors, others = held[:4], held[:3], held[2], held[4], held[:2], held[3:]
        added, kept = summands
        work.do(np.copyto, cell, c)
        for x, following in zip(inputs, y):
            work.do(np.matmul, h, columns, product)
            work.do(np.add, products, x, gates)
            work.do(np.tanh, gates, gates)
            work.do(np.multiply, sigmoids, half, sigmoids)
            work.do(np.add, sigmoids, half, sigmoids)
            work.do(np.multiply, factors, others, summands)
            work.do(np.add, added, kept, cell)
            work.do(np.tanh, cell, curved)
            work.do(np.multiply, curved, output, following)
            h = following
        return h, cell

    order = np.r_[:n, 2 * n : 3 * n, n : 2 * n, 3 * n : 4 * n]
    halved = _scaled(weights, (0.5, 0.5, 0.5, 1))
    recurrent = _columns(halved.r[:, order])
    bias = (halved.input_bias + halved.hidden_bias)[:, order].reshape(directions, 4, 1, n)
    return Loop(_side_by_side(halved.w[:, order]), bias, bias[:0, 0, None], steps)


def _products(work: Work, h: Array, gates: int) -> tuple[Array, Array]:
    """Memory for the products of the hidden state (D, B, H) with the weights of all gates, and a view of it gate by gate."""
    product = work.empty((*h.shape[:2], gates * h.shape[2]), h.dtype)
    return product, product.reshape(*h.shape[:2], gates, h.shape[2]).transpose(2, 0, 1, 3)


def _scaled(weights: Weights, factors: Sequence[float]) -> Weights:
    """Each gate's weights times its factor."""
    row = np.repeat(np.array(factors, weights.w.dtype), weights.r.shape[-1])
    column = row[:, None]
    return Weights(weights.w * column, weights.r * column, weights.input_bias * row, weights.hidden_bias * row)


def _columns(r: Array) -> Array:
    """(D, gates, H) as (D, H, gates), contiguous."""
    return np.ascontiguousarray(r.swapaxes(1, 2))


def _side_by_side(w: Array) -> Matrix:
    """(D, gates, I) as (I, D * gates)."""
    return matrix(w.reshape(-1, w.shape[-1]).T)


_LOOPS = {"RNN": rnn_loop, "GRU": gru_loop, "LSTM": lstm_loop}
