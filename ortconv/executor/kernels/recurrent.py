"""Recurrent layers: one product for all inputs of a direction, then a step for each element of the sequence.

Also recurrent forms of attention, and the causal convolution before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.attention import merge_heads, split_heads
from ortconv.executor.algorithms.half_precision import widen
from ortconv.executor.algorithms.recurrent import ACTIVATIONS, BACKWARDS, prepared
from ortconv.executor.algorithms.steps import counted
from ortconv.executor.kernels.activation import FORMULAS, NAMED, named_activation
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


_STEPS: dict[str, Callable[[Direction, Array, State], State]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def _layer(
    op: str,
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
    step: Callable[[Direction, Array, State], State] | None = None,
) -> Any:
    """Y (T, directions, B, H) and the last states (directions, B, H), for x (T, B, I); `layout` 1 puts the batch first."""
    if direction not in BACKWARDS:
        raise GraphError(f"there is no direction {direction!r}", hint=f"directions: {', '.join(BACKWARDS)}")
    backwards = BACKWARDS[direction]
    if len(w) != len(backwards):
        raise GraphError(f"direction {direction!r} needs weights for {len(backwards)} directions, they have {len(w)}")
    x = x.swapaxes(0, 1) if layout else x
    (length, batch, _), (count, gates, hidden), defaults = x.shape, r.shape, ACTIVATIONS[op]
    if hidden_size not in (None, hidden):
        raise GraphError(f"hidden_size is {hidden_size}, the recurrent weights have shape {list(r.shape)}")
    # The schema's default for RNN has two names whatever the number of directions.
    each = len(defaults)
    names = tuple(activations or defaults * count)[: each * count]
    functions = _activations(names, activation_alpha, activation_beta)
    counted(0 if x.size else length)
    lengths = np.full(batch, length) if sequence_lens is None else _lengths(sequence_lens, batch, length)
    y = np.zeros((length, count, batch, hidden), x.dtype)
    last = [np.zeros((count, batch, hidden), x.dtype) for _ in range(2 if op == "LSTM" else 1)]
    first = [zeros if s is None else _initial(s, zeros.shape, layout) for zeros, s in zip(last, (initial_h, initial_c))]
    for d in range(count):
        biases = np.zeros(2 * gates, w.dtype) if b is None else b[d]
        peephole = np.zeros(3 * hidden, w.dtype) if p is None else p[d]
        mine = functions[d * each : (d + 1) * each]
        one = Direction(r[d], biases[gates:], peephole, mine, clip, input_forget, linear_before_reset)
        state = tuple(s[d] for s in first)
        products = (x.reshape(length * batch, x.shape[2]) @ w[d].T + biases[:gates]).reshape(length, batch, gates)
        final = _run(partial(step or _STEPS[op], one), products, state, lengths, backwards[d], y[:, d])
        for target, value in zip(last, final):
            target[d] = np.where(lengths[:, None] > 0, value, 0)  # of an empty sequence, as in onnxruntime
    if layout:
        y, last = np.moveaxis(y, 2, 0), [s.swapaxes(0, 1) for s in last]
    return (y, *last)


def _lengths(given: Array, batch: int, longest: int) -> Array:
    if given.shape != (batch,) or ((given < 0) | (given > longest)).any():
        raise GraphError(f"sequence_lens {given.tolist()} are not {batch} numbers of [0, {longest}]")
    return given


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
        return _layer(op, *operands, **attributes)  # type: ignore[arg-type]


for _op in _STEPS:
    _register(_op)


@kernel("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(x: Array, w: Array, r: Array, *others: Any, **attributes: Any) -> Any:
    """Inputs are quantized as a whole, the hidden state before every step. Behind the inputs of LSTM are scale and zero point of
    both weights.
    """

    def step(d: Direction, inputs: Array, state: State) -> State:
        return _lstm(d, inputs, (_through_bytes(state[0]), *state[1:]))

    wide = _dequantized(w, *others[5:7]), _dequantized(r, *others[7:])
    return _layer("LSTM", _through_bytes(x), *wide, *others[:5], step=step, **attributes)


def _dequantized(w: Array, scale: Array, zero_point: Array) -> Array:
    """(directions, inputs, gates) of integers as (directions, gates, inputs) of floats."""
    centered = w.astype(np.float32) - zero_point.astype(np.float32).reshape(len(w), 1, -1)
    return (centered * scale.reshape(len(w), 1, -1)).swapaxes(1, 2)


def _through_bytes(x: Array) -> Array:
    """x quantized to 8 bits and dequantized."""
    return np.asarray(dequantize_linear(*dynamic_quantize_linear(x)))


_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""For each update rule: whether the state decays, and whether it is corrected by its prediction."""


@kernel("LinearAttention")
@kernel("LinearAttention", domain=MICROSOFT)
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
    q, v = split_heads(widen(query), q_num_heads), split_heads(widen(value), kv_num_heads)
    k = split_heads(widen(key), key.shape[-1] // max(1, q.shape[-1]))
    gate = np.exp(split_heads(widen(decay), kv_num_heads)) if gated and decay is not None else None
    rate = split_heads(widen(beta), beta.shape[-1]) if corrected and beta is not None else None
    state = np.zeros((*v.shape[:2], k.shape[3], v.shape[3]), k.dtype) if past_state is None else widen(past_state)
    y, state = _recurrence(state, q, k, v, gate, rate)
    y = merge_heads(y * q.dtype.type(scale or 1 / np.sqrt(q.shape[3])))
    kept = query.dtype if past_state is None else past_state.dtype
    return y.astype(query.dtype, copy=False), state.astype(kept, copy=False)


def _recurrence(
    state: Array, q: Array, k: Array, v: Array, gate: Array | None, rate: Array | None
) -> tuple[Array, Array]:
    """The results (B, heads, T, V) and the last state, for a state (B, heads, K, V), queries and keys (B, heads, T, K), values (B,
    heads, T, V), decay of the state (B, heads, T, K or 1), and update rates (B, heads, T, 1).
    """
    q, k = (np.repeat(x, max(1, v.shape[1] // x.shape[1]), axis=1) for x in (q, k))  # their heads may be shared
    y = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    for t in range(q.shape[2]):
        kt, vt = k[:, :, t], v[:, :, t]
        if gate is not None:
            state = gate[:, :, t, :, None] * state
        if rate is not None:
            vt = rate[:, :, t] * (vt - np.einsum("bhkv,bhk->bhv", state, kt))
        state = state + kt[..., :, None] * vt[..., None, :]
        grouped = q[:, :, t].reshape(*v.shape[:2], q.shape[1] // v.shape[1], q.shape[3])
        y[:, :, t] = np.matmul(grouped, state).reshape(y.shape[0], y.shape[1], y.shape[3])
    return y, state


@kernel("GatedDeltaNet", domain=MICROSOFT)
def gated_delta_net(
    query: Array,
    *others: Any,
    beta_activation: str = "none",
    chunk_size: int = 64,
    gate_activation: str = "none",
    gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> Any:
    """LinearAttention of sequences one after another. The other inputs are key, value, ends of the sequences, decay, update rate,
    state (B, heads, V, K), and logarithm of a rate and bias of the decay. Without key and value, the query contains them.
    """
    key, value, ends, decay, beta, state, a_log, bias = (*others, *(None,) * 8)[:8]
    if key is None:
        size, width = state.shape[2:]
        parts = np.split(query, np.array([1, 2]) * ((query.shape[-1] - state.shape[1] * size) // 2), axis=-1)
        query, key, value = (x.reshape(*x.shape[:-1], -1, n) for x, n in zip(parts, (width, width, size)))
    # All tokens are one sequence (1, heads, tokens, ...).
    q, k, v = (widen(x).reshape(-1, *x.shape[-2:]).swapaxes(0, 1)[None] for x in (query, key, value))
    n, heads = v.shape[2], v.shape[1]
    gate, rate = (None if x is None else widen(x).reshape(n, heads, -1).swapaxes(0, 1)[None] for x in (decay, beta))
    gate = None if gate is None else np.exp(_log_decay(gate, a_log, bias, gate_activation, gate_lower_bound))
    rate = FORMULAS["Sigmoid"](rate) if rate is not None and beta_activation == "sigmoid" else rate
    if qk_l2_norm:
        tiny = np.float32(1e-6 if gate_activation in ("sigmoid", "kda") else 1e-12)  # as in onnxruntime
        q, k = (x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + tiny) for x in (q, k))
    ends = np.arange(len(state) + 1) * (n // len(state)) if ends is None else ends
    states = np.zeros((len(ends) - 1, heads, v.shape[3], k.shape[3]), np.float32) if state is None else state
    steps: list[Any] = [q, k, v, gate, rate]
    spans = zip(states.swapaxes(2, 3), pairwise(ends.tolist()))
    cuts = ([before[None], *(x if x is None else x[:, :, a:b] for x in steps)] for before, (a, b) in spans)
    results, last = zip(*(_recurrence(*cut) for cut in cuts))
    y = np.concatenate(results, axis=2)[0].swapaxes(0, 1) * np.float32(scale or 1 / np.sqrt(k.shape[3]))
    y = y.reshape(*query.shape[:-2], *y.shape[1:]).astype(query.dtype, copy=False)
    return y, np.concatenate(last).swapaxes(2, 3)


def _log_decay(x: Array, a_log: Array, bias: Array | None, activation: str, lowest: float) -> Any:
    """The logarithm of the decay (1, heads, T, K or 1)."""
    if activation == "none":
        return x
    x = x if bias is None else x + bias.reshape(x.shape[1], 1, -1)
    rate = np.exp(a_log)[:, None, None]
    is_bounded = activation in ("sigmoid", "kda")
    return lowest * FORMULAS["Sigmoid"](rate * x) if is_bounded else -rate * FORMULAS["Softplus"](x)


@kernel("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(a: Array, dt_bias: Array, decay_scale: Array, b: Array | None = None) -> Any:
    decay = decay_scale * FORMULAS["Softplus"](widen(a) + dt_bias)
    return decay.astype(a.dtype), None if b is None else FORMULAS["Sigmoid"](b)


@float_kernel("CausalConvWithState")
@float_kernel("CausalConvWithState", domain=MICROSOFT)
def causal_conv_with_state(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
) -> Any:
    """The result, and the end of x, which the next call gets as `past_state`."""
    if channels_last:
        moved = [v if v is None else v.reshape(*v.shape[:2], prod(v.shape[2:])).swapaxes(1, 2) for v in (x, past_state)]
        found = causal_conv_with_state(moved[0], weight, bias, moved[1], activation=activation, dilation=dilation)
        return tuple(v.swapaxes(1, 2).reshape(len(x), v.shape[2], *x.shape[2:]) for v in found)
    taps, length = weight.shape[-1], x.shape[-1]
    before = np.zeros((*x.shape[:2], (taps - 1) * dilation), x.dtype) if past_state is None else past_state
    whole = np.concatenate([before, x], axis=-1)
    y = sum(whole[..., i * dilation : i * dilation + length] * weight[:, :, i] for i in range(taps))
    y = y if bias is None else y + bias[:, None]
    return FORMULAS["Swish"](y) if activation in ("silu", "swish") else y, whole[..., length:].copy()
