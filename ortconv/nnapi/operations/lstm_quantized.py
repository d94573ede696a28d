"""LSTM cells in integer arithmetic: QUANTIZED_16BIT_LSTM and QUANTIZED_LSTM.

Gates are 16-bit fixed-point numbers: 3 integer bits before an activation, none after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.arithmetic import multiply, scale_by, shift_right
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.fixed_point import SHORT, inverse_root
from ortconv.nnapi.operations.lstm import GATES, sizes
from ortconv.nnapi.operations.shapes import fits
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

INTEGER_BITS = 3  # before an activation
BEFORE = 1 << 12  # steps per unit there


def exponent(scale: float) -> int:
    """The base-2 logarithm of a scale. Raises OP_FAILED unless it is an integer, up to a tolerance of 0.001."""
    n = math.log2(scale) if scale > 0 else math.inf
    if scale <= 0 or abs(n - round(n)) > 1e-3:
        raise op_failed(f"the cell's scale {scale:g} must be a power of 2")
    return round(n)


def product(a: Array, b: Array) -> Array:
    """The rounded product of two 16-bit numbers, the second without integer bits."""
    return shift_right(a.astype(np.int64) * b, 15)


def cell_16_dims(c: OperationCall) -> list[Dims]:
    (batch, inputs), size = c.x.dims, c.state.dims[1]
    kinds = {"w": (size, inputs), "r": (size, size), "b": (size,)}
    shapes = {f"{kind}_{gate}": dims for kind, dims in kinds.items() for gate in GATES}
    fits(c, shapes | {"state": (batch, size), "cell": (batch, size)})
    _quantized_as(c, ("x", "state", "out"), 1 / 128, 128)
    if exponent(c.cell.scale) != -11 or not c.cell.same_quantization(c.cell_out):
        raise op_failed(f"the cells {c.cell} and {c.cell_out} must have scale 1/2048")
    _quantized_as(c, [name for name in shapes if name[0] in "wr"], c.w_i.scale, c.w_i.zero_point)
    _quantized_as(c, [name for name in shapes if name[0] == "b"], c.w_i.scale / 128, 0)
    return [(batch, size), (batch, size)]


def _quantized_as(c: OperationCall, names: Iterable[str], scale: float, zero_point: int) -> None:
    for name in names:
        x = c.args[name]
        if x.scale != scale or x.zero_point != zero_point:
            raise op_failed(f"{name} must have scale {scale:g} and zero point {zero_point}, not {x}")


@operation(
    "QUANTIZED_16BIT_LSTM",
    "x:Q w_i:Q w_f:Q w_c:Q w_o:Q r_i:Q r_f:Q r_c:Q r_o:Q b_i:I b_f:I b_c:I b_o:I cell:S16 state:Q",
    outputs="cell_out:S16 out:Q", level=3, infer=cell_16_dims, checks=(rank("x", 2), rank("cell", 2), rank("state", 2)),
)  # fmt: skip
def quantized_16bit_lstm(c: OperationCall) -> list[Array]:
    """Inputs and outputs have 7 fraction bits, cells 11.

    The reference stores the columns of the recurrent weights before those of the input weights, but the input before
    the state; the test vectors confirm it.
    """
    joined = np.concatenate([c.x.centered, c.state.centered], axis=1).astype(np.int64)

    def gate(name: str) -> Array:
        w, r, b = (c.args[f"{kind}_{name}"] for kind in "wrb")
        weights = np.concatenate([r.centered, w.centered], axis=1).astype(np.int64)
        return SHORT.limited(scale_by(joined @ weights.T + b.array, BEFORE * float(b.scale)))

    into, forget, output = (SHORT.sigmoid(gate(name), INTEGER_BITS) for name in "ifo")
    fresh = SHORT.tanh(gate("c"), INTEGER_BITS)
    cell = SHORT.limited(shift_right(product(into, fresh), 4) + product(forget, c.cell.array))
    h = shift_right(product(output, SHORT.tanh(cell, 4)), 8)
    return [cell, np.clip(h, -128, 127) + 128]


GATE_SLOTS = (
    "w_i:S8? w_f:S8 w_c:S8 w_o:S8 r_i:S8? r_f:S8 r_c:S8 r_o:S8 p_i:S16? p_f:S16? p_o:S16? b_i:I? b_f:I b_c:I b_o:I "
    "projection:S8? projection_bias:I? state:S cell:S16 n_i:S16? n_f:S16? n_c:S16? n_o:S16? "
    "cell_clip:f32 projection_clip:f32 scale_i:f32 scale_f:f32 scale_c:f32 scale_o:f32 hidden_zero_point:i hidden_scale:f32"
)


def quantized_dims(c: OperationCall) -> list[Dims]:
    batch, inputs = c.x.dims
    units, size = sizes(c, batch, inputs)
    if exponent(c.cell.scale) > -9:
        raise op_failed(f"the cell's scale {c.cell.scale:g} must be 1/512 or less")
    return [(batch, size), (batch, units), (batch, size)]


def normalized(x: Array, norm: Any, bias: Any) -> Array:
    """Rows with mean 0 and variance 1 in 10 fraction bits, times the weights, plus the bias: input of an activation."""
    total = x.sum(axis=1, keepdims=True) * 1024
    mean = np.sign(total) * (np.abs(total) // x.shape[1])
    squares = np.square(x).sum(axis=1, keepdims=True) * ((1 << 20) // x.shape[1])
    variance = np.maximum((squares - mean * mean) >> 20, 1)
    rows = multiply(1024 * x - mean, *inverse_root(variance))
    weighted = rows * norm.array.astype(np.int64) + bias.array
    scaled = np.sign(weighted) * ((np.abs(weighted) + 512) // 1024)
    return SHORT.limited(scale_by(scaled, float(norm.scale) * BEFORE))


def ratio(a: float, b: float, by: float) -> float:
    return float(np.float32(a) * np.float32(b) / np.float32(by))


def quantized_gate(c: OperationCall, name: str, cell: Array) -> Array:
    """The input of a gate's activation."""
    w, r, b, p, n = (c.get(f"{kind}_{name}") for kind in "wrbpn")
    scale = c.args[f"scale_{name}"] if n is not None else 1 / BEFORE
    acc = c.x.centered.astype(np.int64) @ w.array.astype(np.int64).T
    acc = acc if n is not None else acc + b.array
    y = scale_by(acc, ratio(w.scale, c.x.scale, scale))
    recurrent = c.state.centered.astype(np.int64) @ r.array.astype(np.int64).T
    y = SHORT.limited(y + scale_by(recurrent, ratio(r.scale, c.state.scale, scale)))
    if p is not None:
        factor = ratio(2.0 ** exponent(c.cell.scale), p.scale, scale)
        y = SHORT.limited(y + scale_by(cell * p.array.astype(np.int64), factor))
    return y if n is None else normalized(y, n, b)


@operation(
    "QUANTIZED_LSTM", f"x:S {GATE_SLOTS}", outputs="state_out:S cell_out:S16 out:S", level=4, infer=quantized_dims,
    checks=(rank("x", 2), rank("state", 2), rank("cell", 2)),
)  # fmt: skip
def quantized_lstm(c: OperationCall) -> list[Array]:
    cell = c.cell.array.astype(np.int64)
    forget = SHORT.sigmoid(quantized_gate(c, "f", cell), INTEGER_BITS)
    into = SHORT.one - forget if c.w_i is None else SHORT.sigmoid(quantized_gate(c, "i", cell), INTEGER_BITS)
    fresh = SHORT.tanh(quantized_gate(c, "c", cell), INTEGER_BITS)
    fraction_bits = -exponent(c.cell.scale)
    cell = SHORT.limited(product(cell, forget) + shift_right(into * fresh, 30 - fraction_bits))
    if c.cell_clip > 0:
        limit = min(SHORT.one, int(c.cell_clip / c.cell.scale))
        cell = np.clip(cell, -limit, limit)
    output = SHORT.sigmoid(quantized_gate(c, "o", cell), INTEGER_BITS)
    raw = output * SHORT.tanh(cell, 15 - fraction_bits)
    hidden = np.clip(scale_by(raw, 2.0**-30 / c.hidden_scale) + c.hidden_zero_point, -128, 127)
    out = hidden if c.projection is None else projected(c, hidden)
    return [out, cell, out]


def projected(c: OperationCall, hidden: Array) -> Array:
    acc = (hidden - c.hidden_zero_point) @ c.projection.array.astype(np.int64).T
    if c.projection_bias is not None:
        acc = acc + c.projection_bias.array
    real = ratio(c.projection.scale, c.hidden_scale, c.out.scale)
    y = np.clip(scale_by(acc, real) + c.out.zero_point, -128, 127)
    if c.projection_clip > 0:
        limit = min(0x7F, int(c.projection_clip / c.projection.scale))
        y = np.clip(y, -limit, limit)
    return y
