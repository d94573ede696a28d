"""Recurrent layers: one product for all inputs, then one small product per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.activations import ACTIVATIONS, Activation
from ortconv.executor.algorithms.activations import activation as named_activation
from ortconv.executor.algorithms.recurrent import Loop, Weights, gru_loop, lstm_loop, rnn_loop
from ortconv.executor.replay.work import Work, counted
from ortconv.ir.tensor import Array

Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
"""From the products with the input (B, gates * H) and the state, each (B, H), hidden first, to the next state."""


class Direction(NamedTuple):
    """The weights of one direction: `w` (gates * H, I), `r` (gates * H, H), biases (gates * H)."""

    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array
    peephole: Array | None
    activations: tuple[Activation, ...]

    def merged(self, rows: slice) -> Direction:
        """The hidden bias of these rows added to the input's."""
        input_bias, hidden_bias = self.input_bias.copy(), self.hidden_bias.copy()
        input_bias[rows] += hidden_bias[rows]
        hidden_bias[rows] = 0
        return self._replace(input_bias=input_bias, hidden_bias=hidden_bias)


class Options(NamedTuple):
    clip: float | None
    input_forget: bool
    linear_before_reset: bool


class Cell(NamedTuple):
    """What distinguishes the layers."""

    activations: tuple[str, ...]
    make_step: Callable[[Direction, Options], tuple[Direction, Step]]
    """From the weights of a direction to those with which the products with the input are made, and the step."""
    make_loop: Callable[[Weights], Loop]


class Layer(NamedTuple):
    """A layer with its weights laid out."""

    directions: Callable[[], Sequence[tuple[Direction, Step]]]
    backwards: tuple[bool, ...]
    hidden: int
    layout: int
    loop: Loop | None = None
    """All directions at once, for sequences of one length."""

    def run(
        self, work: Work, x: Array, sequence_lens: Array | None, states: Sequence[Array | None], n_outputs: int
    ) -> Array | tuple[Array, ...]:
        """Y and the last state of each kind, as many as are wanted."""
        if not x.size:
            counted(x.shape[self.layout])
        if self.layout:
            x = np.swapaxes(x, 0, 1)
            states = [None if s is None else np.swapaxes(s, 0, 1) for s in states]
        shape = (len(self.backwards), x.shape[1], self.hidden)
        before = [np.zeros(shape, x.dtype) if s is None else s for s in states]
        if self.loop is not None and (sequence_lens is None or (sequence_lens == x.shape[0]).all()):
            y, *last = self.loop.run(work, x, before, self.backwards)
        else:
            y, last = np.zeros((x.shape[0], *shape), x.dtype), [np.zeros(shape, x.dtype) for _ in states]
            for d, ((one, step), backwards) in enumerate(zip(self.directions(), self.backwards)):
                state = tuple(s[d] for s in before)
                for target, final in zip(last, _run_direction(x, one, step, state, sequence_lens, backwards, y[:, d])):
                    target[d] = final
        if self.layout:
            y, last = np.moveaxis(y, 2, 0), [np.swapaxes(s, 0, 1) for s in last]
        return (y, *last)[:n_outputs] if n_outputs > 1 else y


def layer_of(
    op: str,
    w: Array,
    r: Array,
    b: Array | None,
    peepholes: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Layer:
    cell, backwards = CELLS[op], _BACKWARDS[direction]
    if w.shape[0] != len(backwards):
        raise GraphError(
            f"direction {direction!r} needs weights for {len(backwards)} directions, they have {w.shape[0]}"
        )
    each, gates = len(cell.activations), r.shape[1]
    # The schema's default for RNN has two names whatever the number of directions.
    names = tuple(activations or cell.activations * len(backwards))[: each * len(backwards)]
    functions = _activations(names, activation_alpha, activation_beta)
    biases = np.zeros((len(backwards), 2 * gates), w.dtype) if b is None else b
    options = Options(clip or None, bool(input_forget), bool(linear_before_reset))
    loop = None
    is_plain = [name.lower() for name in names] == [name.lower() for name in cell.activations] * len(backwards)
    if (
        is_plain
        and peepholes is None
        and not (options.clip or options.input_forget)
        and (op != "GRU" or linear_before_reset)
    ):
        loop = cell.make_loop(Weights(w, r, biases[:, :gates], biases[:, gates:]))

    @cache
    def directions() -> Sequence[tuple[Direction, Step]]:
        made = []
        for d in range(len(backwards)):
            peephole = None if peepholes is None else peepholes[d]
            mine = tuple(functions[d * each : (d + 1) * each])
            made.append(
                cell.make_step(Direction(w[d], r[d], biases[d, :gates], biases[d, gates:], peephole, mine), options)
            )
        return made

    return Layer(directions, backwards, r.shape[2], layout, loop)


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


def _run_direction(
    x: Array,
    one: Direction,
    step: Step,
    state: tuple[Array, ...],
    sequence_lens: Array | None,
    backwards: bool,
    y: Array,
) -> tuple[Array, ...]:
    """Fill y (T, B, H); return the last state."""
    length, batch, features = x.shape
    inputs = x.reshape(length * batch, features) @ one.w.T
    inputs += one.input_bias
    inputs = inputs.reshape(length, batch, -1)
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


def _rnn_step(one: Direction, options: Options) -> tuple[Direction, Step]:
    (f,) = one.activations
    weights = np.ascontiguousarray(one.r.T)

    def step(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        total = state[0] @ weights
        total += inputs
        return (f(_clipped(total, options.clip)),)

    return one.merged(_EVERY), step


def _gru_step(one: Direction, options: Options) -> tuple[Direction, Step]:
    """Gates lie in the order update, reset, candidate."""
    clip, linear_before_reset = options.clip, options.linear_before_reset
    f, g = one.activations
    n = one.r.shape[1]
    one = one.merged(slice(0, 2 * n) if linear_before_reset else _EVERY)
    gates, candidate = (np.ascontiguousarray(part.T) for part in (one.r[: 2 * n], one.r[2 * n :]))
    candidate_bias = one.hidden_bias[2 * n :]

    def step(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        (h,) = state
        zr = h @ gates
        zr += inputs[:, : 2 * n]
        zr = f(_clipped(zr, clip))
        z, reset = zr[:, :n], zr[:, n:]
        through = reset * (h @ candidate + candidate_bias) if linear_before_reset else (reset * h) @ candidate
        through += inputs[:, 2 * n :]
        new = g(_clipped(through, clip))
        return (new + z * (h - new),)

    return one, step


def _lstm_step(one: Direction, options: Options) -> tuple[Direction, Step]:
    """Gates lie in the order input, output, forget, cell; peepholes in the order input, output, forget."""
    clip, input_forget = options.clip, options.input_forget
    f, g, finish = one.activations
    n = one.r.shape[1]
    one = one.merged(_EVERY)
    weights = np.ascontiguousarray(one.r.T)
    peephole = np.zeros(3 * n, one.r.dtype) if one.peephole is None else one.peephole

    def step(inputs: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        h, c = state
        gates = h @ weights + inputs
        i = f(_clipped(gates[:, :n] + peephole[:n] * c, clip))
        forget = 1 - i if input_forget else f(_clipped(gates[:, 2 * n : 3 * n] + peephole[2 * n :] * c, clip))
        c = forget * c + i * g(_clipped(gates[:, 3 * n :], clip))
        o = f(_clipped(gates[:, n : 2 * n] + peephole[n : 2 * n] * c, clip))
        return o * finish(c.copy()), c

    return one, step


CELLS = {
    "RNN": Cell(("Tanh",), _rnn_step, rnn_loop),
    "GRU": Cell(("Sigmoid", "Tanh"), _gru_step, gru_loop),
    "LSTM": Cell(("Sigmoid", "Tanh", "Tanh"), _lstm_step, lstm_loop),
}

_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_EVERY = slice(None)


_DEFAULTS = {
    "leakyrelu": (0.01,), "thresholdedrelu": (1.0,), "elu": (1.0,),
    "affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5),
}  # fmt: skip
