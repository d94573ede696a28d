"""Recurrent layers: one product for all inputs, then one small product per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.kernels.fused_activation import ACTIVATIONS, Activation
from ortconv.executor.kernels.fused_activation import activation as named_activation
from ortconv.executor.kernels.precision import in_float32
from ortconv.executor.registry import kernel
from ortconv.ir.tensor import Array

Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
"""From the products with the input (B, gates * H) and the state, each (B, H), hidden first, to the next state."""


class Direction(NamedTuple):
    """The weights and initial state of one direction. `w` (gates * H, I), `r` (gates * H, H), biases (gates * H)."""

    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array
    state: tuple[Array, ...]
    peephole: Array | None
    activations: tuple[Activation, ...]


def _activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """Bind parameters; those of each list go, in order, to the activations that take one."""
    alpha, beta = iter(alphas or ()), iter(betas or ())
    bound = []
    for name in names:
        count = ACTIVATIONS[name.lower()][1] if name.lower() in ACTIVATIONS else 0
        given = [next(alpha, None)] if count >= 1 else []
        if count == 2:
            given.append(next(beta, None))
        defaults = _DEFAULTS.get(name.lower(), ())
        parameters = [default if value is None else value for value, default in zip(given, defaults)]
        function = named_activation(name, parameters)
        if function is None:
            raise GraphError("an activation has no name", hint="list one activation per gate and direction")
        bound.append(function)
    return bound


_DEFAULTS = {
    "leakyrelu": (0.01,), "thresholdedrelu": (1.0,), "elu": (1.0,),
    "affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5),
}  # fmt: skip


def _run(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    states: Sequence[Array | None],
    make_step: Callable[[Direction], Step],
    *,
    direction: str,
    hidden_size: int | None,
    activations: Sequence[str],
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    layout: int,
    peephole: Array | None = None,
) -> tuple[Array, ...]:
    """Y and the last state of each kind."""
    if layout:
        x = np.swapaxes(x, 0, 1)
        states = [None if s is None else np.swapaxes(s, 0, 1) for s in states]
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    length, batch, _ = x.shape
    hidden, gates = r.shape[2], r.shape[1]
    if w.shape[0] != len(reverse):
        raise GraphError(f"direction {direction!r} needs weights for {len(reverse)} directions, they have {w.shape[0]}")
    functions = _activations(activations, activation_alpha, activation_beta)
    each = len(functions) // len(reverse)
    y = np.zeros((length, len(reverse), batch, hidden), x.dtype)
    last = [np.zeros((len(reverse), batch, hidden), x.dtype) for _ in states]
    biases = np.zeros((len(reverse), 2 * gates), x.dtype) if b is None else b
    for d, backwards in enumerate(reverse):
        start = tuple(np.zeros((batch, hidden), x.dtype) if s is None else s[d] for s in states)
        p = None if peephole is None else peephole[d]
        one = Direction(
            w[d], r[d], biases[d, :gates], biases[d, gates:], start, p, tuple(functions[d * each : (d + 1) * each])
        )
        for target, final in zip(last, _run_direction(x, one, make_step(one), sequence_lens, backwards, y[:, d])):
            target[d] = final
    if layout:
        return np.moveaxis(y, 2, 0), *(np.swapaxes(s, 0, 1) for s in last)
    return y, *last


def _run_direction(
    x: Array, one: Direction, step: Step, sequence_lens: Array | None, backwards: bool, y: Array
) -> tuple[Array, ...]:
    """Fill y (T, B, H); return the last state."""
    length, batch, features = x.shape
    inputs = (x.reshape(length * batch, features) @ one.w.T + one.input_bias).reshape(length, batch, -1)
    state = one.state
    if sequence_lens is None or (sequence_lens == length).all():
        for t in range(length - 1, -1, -1) if backwards else range(length):
            state = step(inputs[t], state)
            y[t] = state[0]
        return state
    rows = np.arange(batch)
    for t in range(length):
        active = t < sequence_lens
        at = np.where(active, sequence_lens - 1 - t, t) if backwards else np.full(batch, t)
        following = step(inputs[at, rows], state)
        state = tuple(np.where(active[:, None], new, old) for new, old in zip(following, state))
        y[at[active], rows[active]] = state[0][active]
    return state


def _clipped(x: Array, limit: float | None) -> Array:
    return x if not limit else np.clip(x, x.dtype.type(-limit), x.dtype.type(limit), out=x)


@kernel("RNN")
@in_float32
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
    n_outputs: int = 2,
) -> Any:
    def make_step(one: Direction) -> Step:
        (f,) = one.activations

        def step(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (f(_clipped(inputs + (state[0] @ one.r.T + one.hidden_bias), clip)),)

        return step

    # The schema's default has two names whatever the number of directions.
    names = tuple(activations or ("Tanh",) * len(w))[: len(w)]
    outputs = _run(
        x, w, r, b, sequence_lens, (initial_h,), make_step, direction=direction, hidden_size=hidden_size, activations=names,
        activation_alpha=activation_alpha, activation_beta=activation_beta, layout=layout,
    )  # fmt: skip
    return outputs[:n_outputs] if n_outputs > 1 else outputs[0]


@kernel("GRU")
@in_float32
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
    n_outputs: int = 2,
) -> Any:
    hidden = r.shape[2]

    def make_step(one: Direction) -> Step:
        f, g = one.activations
        gates, candidate = one.r[: 2 * hidden].T, one.r[2 * hidden :].T
        gate_bias, candidate_bias = one.hidden_bias[: 2 * hidden], one.hidden_bias[2 * hidden :]

        def step(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            zr = f(_clipped(inputs[:, : 2 * hidden] + (h @ gates + gate_bias), clip))
            z, reset = zr[:, :hidden], zr[:, hidden:]
            if linear_before_reset:
                through = reset * (h @ candidate + candidate_bias)
            else:
                through = (reset * h) @ candidate + candidate_bias
            n = g(_clipped(inputs[:, 2 * hidden :] + through, clip))
            return (n + z * (h - n),)

        return step

    names = activations or ("Sigmoid", "Tanh") * len(w)
    outputs = _run(
        x, w, r, b, sequence_lens, (initial_h,), make_step, direction=direction, hidden_size=hidden_size, activations=names,
        activation_alpha=activation_alpha, activation_beta=activation_beta, layout=layout,
    )  # fmt: skip
    return outputs[:n_outputs] if n_outputs > 1 else outputs[0]


@kernel("LSTM")
@in_float32
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
    n_outputs: int = 3,
) -> Any:
    def make_step(one: Direction) -> Step:
        return _lstm_step(one, clip, bool(input_forget))

    names = activations or ("Sigmoid", "Tanh", "Tanh") * len(w)
    outputs = _run(
        x, w, r, b, sequence_lens, (initial_h, initial_c), make_step, direction=direction, hidden_size=hidden_size,
        activations=names, activation_alpha=activation_alpha, activation_beta=activation_beta, layout=layout, peephole=p,
    )  # fmt: skip
    return outputs[:n_outputs] if n_outputs > 1 else outputs[0]


def _lstm_step(one: Direction, clip: float | None, input_forget: bool) -> Step:
    """Gates lie in the order input, output, forget, cell; peepholes in the order input, output, forget."""
    f, g, finish = one.activations
    n = one.r.shape[1]
    weights, bias, peephole = one.r.T, one.hidden_bias, one.peephole

    def plain(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c = state
        gates = h @ weights
        gates += bias
        gates += inputs
        gates = _clipped(gates, clip)
        iof, cell = f(gates[:, : 3 * n]), g(gates[:, 3 * n :])
        forget = 1 - iof[:, :n] if input_forget else iof[:, 2 * n :]
        c = forget * c
        c += iof[:, :n] * cell
        return iof[:, n : 2 * n] * finish(c.copy()), c

    def with_peepholes(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        assert peephole is not None
        h, c = state
        gates = h @ weights + bias + inputs
        i = f(_clipped(gates[:, :n] + peephole[:n] * c, clip))
        forget = 1 - i if input_forget else f(_clipped(gates[:, 2 * n : 3 * n] + peephole[2 * n :] * c, clip))
        c = forget * c + i * g(_clipped(gates[:, 3 * n :], clip))
        o = f(_clipped(gates[:, n : 2 * n] + peephole[n : 2 * n] * c, clip))
        return o * finish(c.copy()), c

    return plain if peephole is None else with_peepholes
