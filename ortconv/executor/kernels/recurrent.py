"""Recurrent operators. Attributes and operands as ONNX has them; the layers are those of `algorithms/recurrent_layer.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.half_precision import in_float32, is_narrow
from ortconv.executor.algorithms.recurrent_layer import CELLS, Step, layer_of
from ortconv.executor.algorithms.rounding import dynamic_quantization
from ortconv.executor.kernels.registry import kernel, prepare
from ortconv.executor.replay.work import AT_ONCE, Function, Recordable, Work
from ortconv.ir.tensor import Array


def _register(op: str) -> None:
    @kernel(op)
    @in_float32
    def run(
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        sequence_lens: Array | None = None,
        initial_h: Array | None = None,
        initial_c: Array | None = None,
        p: Array | None = None,
        *,
        n_outputs: int = 1,
        **attributes: Any,
    ) -> Any:
        layer = layer_of(op, w, r, b, p, **attributes)
        return layer.run(AT_ONCE, x, sequence_lens, _states(op, initial_h, initial_c), n_outputs)

    @prepare(op)
    def lay_out(operands: Sequence[Array | None], *, n_outputs: int = 1, **attributes: Any) -> Function | None:
        """Lay the weights out once."""
        w, r, b, p = (operands[i] if i < len(operands) else None for i in (1, 2, 3, 7))
        if w is None or r is None or is_narrow(w.dtype):
            return None
        layer = layer_of(op, w, r, b, p, **attributes)

        def prepared(x: Array, *others: Array | None) -> Any:
            given = _Optional(*others[2:])
            if (given.b is None, given.p is None) != (b is None, p is None):
                return run(x, *others, n_outputs=n_outputs, **attributes)
            return layer.run(AT_ONCE, x, given.sequence_lens, _states(op, given.h, given.c), n_outputs)

        def recorded(work: Work, x: Array, *others: Array | None) -> Any:
            given = _Optional(*others[2:])
            has_lengths = given.sequence_lens is not None
            if layer.loop is None or has_lengths or given.p is not None or (given.b is None) != (b is None):
                return None
            return layer.run(work, x, None, _states(op, given.h, given.c), n_outputs)

        return Recordable(prepared, recorded)


class _Optional(NamedTuple):
    """Operands behind the weights."""

    b: Array | None = None
    sequence_lens: Array | None = None
    h: Array | None = None
    c: Array | None = None
    p: Array | None = None


def _states(op: str, h: Array | None, c: Array | None) -> tuple[Array | None, ...]:
    return (h, c) if op == "LSTM" else (h,)


for _op in CELLS:
    _register(_op)


@kernel("DynamicQuantizeLSTM", domain="com.microsoft")
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
    *,
    n_outputs: int = 1,
    **attributes: Any,
) -> Any:
    """Inputs are quantized as a whole, the hidden state before every step."""
    weights = (_dequantized(w, w_scale, w_zero_point), _dequantized(r, r_scale, r_zero_point))
    layer = layer_of("LSTM", *weights, b, p, **attributes)
    directions = [(one, _with_quantized_state(step)) for one, step in layer.directions()]
    states = _states("LSTM", initial_h, initial_c)
    return layer._replace(directions=lambda: directions, loop=None).run(
        AT_ONCE, _quantized(x), sequence_lens, states, n_outputs
    )


def _dequantized(w: Array, scale: Array, zero_point: Array) -> Array:
    """(directions, inputs, gates) of integers as (directions, gates, inputs) of floats."""
    directions = w.shape[0]
    centered = w.astype(np.float32) - zero_point.astype(np.float32).reshape(directions, 1, -1)
    return np.ascontiguousarray((centered * scale.reshape(directions, 1, -1)).swapaxes(1, 2))


def _quantized(x: Array) -> Array:
    """What x is after quantization to 8 bits."""
    codes, scale, zero = dynamic_quantization(x)
    return np.asarray((codes.astype(np.float32) - np.float32(zero)) * scale)


def _with_quantized_state(step: Step) -> Step:
    return lambda inputs, state: step(inputs, (_quantized(state[0]), *state[1:]))
