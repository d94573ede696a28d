"""Recurrent layers: one product for all inputs of a direction, then a step for each element of the sequence.

Also recurrent forms of attention, and the causal convolution before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention import merge_heads, split_heads
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.algorithms.recurrent import BACKWARDS, prepared
from ortconv.executor.algorithms.steps import counted
from ortconv.executor.kernels.activation import NAMED, named_activation
from ortconv.executor.kernels.quantize import dequantize_linear, dynamic_quantize_linear
from ortconv.executor.kernels.registry import float_kernel, kernel
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

Activation = Callable[[Array], Array]

State = tuple[Array, ...]
"""The hidden state (B, H), and the cell state of LSTM."""

Step = Callable[[Array, State], State]
"""From the products with the input, (B, gates * H) with its bias, and the state to the next state."""


class Direction(NamedTuple):
    """The parameters of one direction."""

    r: Array
    """(gates * H, H)"""
    bias: Array
    """(gates * H), for the products with the hidden state."""
    peephole: Array
    """(3 * H), zero if there is none."""
    activations: Sequence[Activation]
    clip: float | None = None
    input_forget: int = 0
    linear_before_reset: int = 0

    def gate(self, x: Array, activation: int) -> Array:
        """An activation of x, which is first limited by the attribute clip."""
        limited = np.clip(x, x.dtype.type(-self.clip), x.dtype.type(self.clip)) if self.clip else x
        return self.activations[activation](limited)


def _rnn(d: Direction, inputs: Array, state: State) -> State:
    return (d.gate(inputs + state[0] @ d.r.T + d.bias, 0),)


def _gru(d: Direction, inputs: Array, state: State) -> State:
    """The order of gates is update, reset, candidate."""
    (h,) = state
    n = h.shape[-1]
    gates = d.gate(inputs[:, : 2 * n] + h @ d.r[: 2 * n].T + d.bias[: 2 * n], 0)
    update, reset = gates[:, :n], gates[:, n:]
    r, bias = d.r[2 * n :].T, d.bias[2 * n :]
    product = reset * (h @ r + bias) if d.linear_before_reset else (reset * h) @ r + bias
    candidate = d.gate(inputs[:, 2 * n :] + product, 1)
    return (candidate + update * (h - candidate),)


def _lstm(d: Direction, inputs: Array, state: State) -> State:
    """The order of gates is input, output, forget, cell; of peepholes input, output, forget."""
    h, c = state
    i, o, forget, cell = np.split(inputs + h @ d.r.T + d.bias, 4, axis=1)
    at_input, at_output, at_forget = np.split(d.peephole, 3)
    i = d.gate(i + at_input * c, 0)
    kept = 1 - i if d.input_forget else d.gate(forget + at_forget * c, 0)
    c = kept * c + i * d.gate(cell, 1)
    return d.gate(o + at_output * c, 0) * d.activations[2](c), c


class Cell(NamedTuple):
    activations: tuple[str, ...]
    """The default activations of one direction."""
    states: int
    step: Callable[[Direction, Array, State], State]


CELLS = {
    "RNN": Cell(("Tanh",), 1, _rnn),
    "GRU": Cell(("Sigmoid", "Tanh"), 1, _gru),
    "LSTM": Cell(("Sigmoid", "Tanh", "Tanh"), 2, _lstm),
}


def _layer(
    cell: Cell,
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
    linear_before_reset: int = 0,
    output_sequence: int = 0,
) -> Any:
    """Y (T, directions, B, H) and the last states (directions, B, H), for x (T, B, I); `layout` 1 puts the batch first."""
    if direction not in BACKWARDS:
        raise GraphError(f"there is no direction {direction!r}", hint=f"directions: {', '.join(BACKWARDS)}")
    backwards = BACKWARDS[direction]
    if len(w) != len(backwards):
        raise GraphError(f"direction {direction!r} needs weights for {len(backwards)} directions, they have {len(w)}")
    x = x.swapaxes(0, 1) if layout else x
    (length, batch, _), (count, gates, hidden), each = x.shape, r.shape, len(cell.activations)
    # The schema's default for RNN has two names whatever the number of directions.
    names = tuple(activations or cell.activations * count)[: each * count]
    functions = _activations(names, activation_alpha, activation_beta)
    counted(0 if x.size else length)
    lengths = np.full(batch, length) if sequence_lens is None else sequence_lens
    y = np.zeros((length, count, batch, hidden), x.dtype)
    last = [np.zeros((count, batch, hidden), x.dtype) for _ in range(cell.states)]
    first = [zeros if s is None else _initial(s, zeros.shape, layout) for zeros, s in zip(last, (initial_h, initial_c))]
    for d in range(count):
        biases = np.zeros(2 * gates, w.dtype) if b is None else b[d]
        peephole = np.zeros(3 * hidden, w.dtype) if p is None else p[d]
        mine = functions[d * each : (d + 1) * each]
        one = Direction(r[d], biases[gates:], peephole, mine, clip, input_forget, linear_before_reset)
        state = tuple(s[d] for s in first)
        products = (x.reshape(length * batch, -1) @ w[d].T + biases[:gates]).reshape(length, batch, gates)
        final = _run(partial(cell.step, one), products, state, lengths, backwards[d], y[:, d])
        for target, value in zip(last, final):
            target[d] = np.where(lengths[:, None] > 0, value, 0)  # of an empty sequence, as in onnxruntime
    if layout:
        y, last = np.moveaxis(y, 2, 0), [s.swapaxes(0, 1) for s in last]
    return (y, *last)


def _initial(state: Array, shape: tuple[int, ...], layout: int) -> Array:
    """An initial state (directions, batch, hidden), which must have this shape."""
    state = state.swapaxes(0, 1) if layout else state
    if state.shape != shape:
        raise GraphError(f"an initial state has shape {state.shape}, not (directions, batch, hidden) = {shape}")
    return state


def _run(step: Step, inputs: Array, state: State, lengths: Array, backwards: bool, y: Array) -> State:
    """Fill y (T, B, H) from inputs (T, B, gates * H), and return the last state. Sequences of the batch may end early."""
    length, batch = inputs.shape[:2]
    rows = np.arange(batch)
    for t in range(length):
        active = t < lengths
        at = np.where(active, lengths - 1 - t, t) if backwards else np.full(batch, t)
        following = step(inputs[at, rows], state)
        state = tuple(np.where(active[:, None], new, old) for new, old in zip(following, state))
        y[at[active], rows[active]] = state[0][active]
    return state


def _activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[Activation]:
    """Bind parameters; each list has, in order, the parameters of the activations that accept one."""
    alpha, beta = iter(alphas or ()), iter(betas or ())
    bound = []
    for name in names:
        if not name:
            raise GraphError("an activation has no name", hint="list one activation per gate and direction")
        _, accepted = NAMED.get(name.lower(), (None, ()))
        bound.append(named_activation(name, [next(values, None) for values in (alpha, beta)[: len(accepted)]]))
    return bound


def _register(op: str) -> None:
    @float_kernel(op, prepare=prepared(op))
    def run(*operands: Array | None, **attributes: Any) -> Any:
        return _layer(CELLS[op], *operands, **attributes)  # type: ignore[arg-type]


for _op in CELLS:
    _register(_op)


@kernel("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero_point: Array,
    r_scale: Array,
    r_zero_point: Array,
    **attributes: Any,
) -> Any:
    """Inputs are quantized as a whole, the hidden state before every step."""

    def step(d: Direction, inputs: Array, state: State) -> State:
        return _lstm(d, inputs, (_through_bytes(state[0]), *state[1:]))

    wide = (_dequantized(w, w_scale, w_zero_point), _dequantized(r, r_scale, r_zero_point))
    cell = CELLS["LSTM"]._replace(step=step)
    return _layer(cell, _through_bytes(x), *wide, b, sequence_lens, initial_h, initial_c, p, **attributes)


def _dequantized(w: Array, scale: Array, zero_point: Array) -> Array:
    """(directions, inputs, gates) of integers as (directions, gates, inputs) of floats."""
    directions = w.shape[0]
    centered = w.astype(np.float32) - zero_point.astype(np.float32).reshape(directions, 1, -1)
    return (centered * scale.reshape(directions, 1, -1)).swapaxes(1, 2)


def _through_bytes(x: Array) -> Array:
    """x quantized to 8 bits and dequantized."""
    return np.asarray(dequantize_linear(*dynamic_quantize_linear(x)))


_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""For each update rule: whether the state decays, and whether it is corrected by its prediction."""


@kernel("LinearAttention")
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> Any:
    gated, corrected = _RULES[update_rule]
    if (gated and decay is None) or (corrected and beta is None):
        raise GraphError(f"update rule {update_rule!r} needs {'decay' if gated and decay is None else 'beta'}")
    q = split_heads(widen(query), q_num_heads)
    k, v = split_heads(widen(key), kv_num_heads), split_heads(widen(value), kv_num_heads)
    gate = np.exp(split_heads(widen(decay), kv_num_heads)) if gated and decay is not None else None
    rate = split_heads(widen(beta), beta.shape[-1]) if corrected and beta is not None else None
    batch, _, length, width = k.shape
    state = np.zeros((batch, kv_num_heads, width, v.shape[-1]), k.dtype) if past_state is None else widen(past_state)
    y = np.empty((batch, q_num_heads, length, v.shape[-1]), q.dtype)
    factor = q.dtype.type(scale or 1 / np.sqrt(width))
    shared = q_num_heads // kv_num_heads
    for t in range(length):
        kt, vt = k[:, :, t], v[:, :, t]
        if gate is not None:
            state = gate[:, :, t, :, None] * state
        if rate is not None:
            vt = rate[:, :, t] * (vt - np.einsum("bhkv,bhk->bhv", state, kt))
        state = state + kt[..., :, None] * vt[..., None, :]
        grouped = q[:, :, t].reshape(batch, kv_num_heads, shared, width)
        y[:, :, t] = (factor * np.matmul(grouped, state)).reshape(batch, q_num_heads, -1)
    kept = query.dtype if past_state is None else past_state.dtype
    return merge_heads(y).astype(query.dtype, copy=False), state.astype(kept, copy=False)


@float_kernel("CausalConvWithState")
def causal_conv_with_state(
    x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *, activation: str = "none"
) -> Any:
    taps, length = weight.shape[-1], x.shape[-1]
    before = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past_state is None else past_state
    whole = np.concatenate([before, x], axis=-1)
    y = np.zeros_like(x)
    for i in range(taps):
        y += whole[..., i : i + length] * weight[:, :, i]
    if bias is not None:
        y += bias[:, None]
    if activation in ("silu", "swish"):
        y = y / (1 + np.exp(-y))
    return y, whole[..., whole.shape[-1] - (taps - 1) :].copy()
