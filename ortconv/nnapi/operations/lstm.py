"""Long short-term memory: LSTM and its sequences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.rnn import batch_and_inputs, both_dims, linked, merged, steps, streams, time_first
from ortconv.nnapi.operations.shapes import fits
from ortconv.nnapi.operations.table import Dims, OperationCall, operation
from ortconv.nnapi.operations.unary import sigmoid

GATES = "ifco"  # input, forget, cell, output

ACTIVATIONS: dict[int, Callable[[Array], Array]] = {
    0: lambda x: x,
    1: lambda x: np.maximum(x, 0),
    3: lambda x: np.clip(x, 0, 6),
    4: np.tanh,
    6: sigmoid,
}
"""Codes of the LSTM family, which differ from the fuse codes."""


CELL = (
    "w_i:T? w_f:T w_c:T w_o:T r_i:T? r_f:T r_c:T r_o:T p_i:T? p_f:T? p_o:T? b_i:T? b_f:T b_c:T b_o:T "
    "projection:T? projection_bias:T?"
)
"""The slots of one direction: weights, recurrent weights, peepholes, biases, projection."""
NORMS = "n_i:T? n_f:T? n_c:T? n_o:T?"


class LstmDirection:
    """One direction of a call: the arrays of its operands by name, without the omitted ones."""

    def __init__(self, c: OperationCall, prefix: str = "") -> None:
        if c.activation not in ACTIVATIONS:
            raise op_failed(f"{c.activation} is not an activation of an LSTM")
        self.call = c
        given = {name: value.array for name, value in c.args.items() if isinstance(value, Tensor)}
        self.arrays = {name.removeprefix(prefix): array for name, array in given.items() if name.startswith(prefix)}

    def gate(self, gate: str, x: Array, aux: Array | None, h: Array, peep: Array) -> Array:
        """The input of a gate's activation."""
        a = self.arrays
        y = x @ a[f"w_{gate}"].T + h @ a[f"r_{gate}"].T
        if aux is not None:
            y = y + aux @ a[f"a_{gate}"].T
        if f"p_{gate}" in a:
            y = y + peep * a[f"p_{gate}"]
        if f"n_{gate}" in a:
            y = normalized(y) * a[f"n_{gate}"]
        return y + a[f"b_{gate}"]

    def step(self, x: Array, aux: Array | None, h: Array, cell: Array) -> tuple[Array, Array]:
        """Output and cell state after one more input. An input gate without weights is 1 minus the forget gate."""
        act = ACTIVATIONS[self.call.activation]
        forget = sigmoid(self.gate("f", x, aux, h, cell))
        into = sigmoid(self.gate("i", x, aux, h, cell)) if "w_i" in self.arrays else 1 - forget
        cell = forget * cell + into * act(self.gate("c", x, aux, h, cell))
        if self.call.cell_clip > 0:
            cell = np.clip(cell, -self.call.cell_clip, self.call.cell_clip)
        h = sigmoid(self.gate("o", x, aux, h, cell)) * act(cell)
        if "projection" in self.arrays:
            h = h @ self.arrays["projection"].T
            if "projection_bias" in self.arrays:
                h = h + self.arrays["projection_bias"]
            if self.call.projection_clip > 0:
                h = np.clip(h, -self.call.projection_clip, self.call.projection_clip)
        return h, cell

    def run(
        self, x: Array, aux: Array | None, h: Array, cell: Array, backward: bool = False
    ) -> tuple[Array, Array, Array]:
        """Outputs at every time, [time, batch, size], and both states at the end."""
        out = np.empty((*x.shape[:2], h.shape[1]), x.dtype)
        for at in steps(len(x), backward):
            h, cell = self.step(x[at], None if aux is None else aux[at], h, cell)
            out[at] = h
        return out, h, cell


def normalized(x: Array) -> Array:
    """Each row with mean 0 and variance 1."""
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + np.float32(1e-8))


def sizes(c: OperationCall, batch: int, inputs: int, prefix: str = "") -> tuple[int, int]:
    """(units, size of the output) of one direction. Raises OP_FAILED unless its operands fit together."""
    units, size = c.args[f"{prefix}w_o"].dims[0], c.args[f"{prefix}r_o"].dims[1]
    kinds = {"w": (units, inputs), "r": (units, size), "p": (units,), "b": (units,), "n": (units,)}
    shapes = {f"{kind}_{gate}": dims for kind, dims in kinds.items() for gate in GATES if (kind, gate) != ("p", "c")}
    shapes |= {"projection": (size, units), "projection_bias": (size,), "state": (batch, size), "cell": (batch, units)}
    fits(c, {prefix + name: dims for name, dims in shapes.items() if prefix + name in c.args})
    _complete(c, prefix)
    if c.args[f"{prefix}projection"] is None and (size != units or c.args[f"{prefix}projection_bias"] is not None):
        raise op_failed(f"without projection the output has the size {units} of the cell, not {size}, and no bias")
    if min(c.cell_clip, c.projection_clip) < 0:
        raise op_failed(f"the limits {c.cell_clip:g} and {c.projection_clip:g} must not be negative")
    return units, size


def _complete(c: OperationCall, prefix: str) -> None:
    """Each gate must have all operands of a kind, or none if permitted. The input gate may be missing altogether."""
    gates = set(GATES if c.args[f"{prefix}w_i"] is not None else "fco")
    for kind, allowed in {
        "w": (gates,),
        "r": (gates,),
        "b": (gates,),
        "p": (set(), gates - {"c"}, {"i", "f", "o"}),
        "n": (set(), gates),
        "a": (set(), gates),
    }.items():
        found = {gate for gate in GATES if c.get(f"{prefix}{kind}_{gate}") is not None}
        if found not in allowed:
            raise op_failed(f"{prefix}{kind}_* are given for the gates {sorted(found)} of {sorted(gates)}")


def lstm_dims(c: OperationCall) -> list[Dims]:
    batch, inputs = c.x.dims
    units, size = sizes(c, batch, inputs)
    return [(batch, units * (3 if c.w_i is None else 4)), (batch, size), (batch, units), (batch, size)]


STATES = "state:T cell:T activation:i cell_clip:f projection_clip:f"


@operation(
    "LSTM", f"x:T {CELL} {STATES} [{NORMS} @3]", outputs="scratch:T state_out:T cell_out:T out:T", types="F H@3",
    infer=lstm_dims, checks=(rank("x", 2), rank("state", 2), rank("cell", 2)),
)  # fmt: skip
def lstm(c: OperationCall) -> list[Array]:
    """One step. The contents of the scratch output are undefined."""
    h, cell = LstmDirection(c).step(c.x.array, None, c.state.array, c.cell.array)
    return [np.zeros(c.scratch.dims, np.float32), h, cell, h]


def sequence_dims(c: OperationCall) -> list[Dims]:
    batch, inputs = batch_and_inputs(c)
    units, size = sizes(c, batch, inputs)
    return [(*c.x.dims[:2], size), (batch, size), (batch, units)][: len(c.outputs)]


@operation(
    "UNIDIRECTIONAL_SEQUENCE_LSTM", f"x:T {CELL} {STATES} time_major:b {NORMS}",
    outputs="out:T [state_out:T cell_out:T @4]", level=3, types="F H", infer=sequence_dims, checks=(rank("x", 3),),
)  # fmt: skip
def unidirectional_sequence_lstm(c: OperationCall) -> list[Array]:
    out, h, cell = LstmDirection(c).run(time_first(c.x, c.time_major), None, c.state.array, c.cell.array)
    return [*merged([out], False, c.time_major), h, cell][: len(c.outputs)]


def bidirectional_dims(c: OperationCall) -> list[Dims]:
    batch, inputs = batch_and_inputs(c)
    crossed, bw_inputs = linked(c, c.fw_a_f, c.bw_a_f)
    (fw_units, fw), (bw_units, bw) = sizes(c, batch, inputs, "fw_"), sizes(c, batch, bw_inputs, "bw_")
    if crossed:
        both = (("fw_", fw_units), ("bw_", bw_units))
        fits(c, {f"{prefix}a_{gate}": (units, c.aux.dims[2]) for prefix, units in both for gate in GATES})
    states = [(batch, fw), (batch, fw_units), (batch, bw), (batch, bw_units)]
    return both_dims(c, fw, bw, states)


AUX = "a_i:T? a_f:T? a_c:T? a_o:T?"
BOTH_STATES = "[fw_state_out:T fw_cell_out:T bw_state_out:T bw_cell_out:T @4]"


def prefixed(prefix: str, slots: str) -> str:
    return " ".join(prefix + slot for slot in slots.split())


@operation(
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    f"x:T {prefixed('fw_', CELL)} {prefixed('bw_', CELL)} fw_state:T fw_cell:T bw_state:T bw_cell:T aux:T? "
    f"{prefixed('fw_', AUX)} {prefixed('bw_', AUX)} activation:i cell_clip:f projection_clip:f merge:b time_major:b "
    f"{prefixed('fw_', NORMS)} {prefixed('bw_', NORMS)}",
    outputs=(f"out:T {BOTH_STATES}", f"out:T bw_out:T {BOTH_STATES}"),
    level=3, types="F H", infer=bidirectional_dims, checks=(rank("x", 3),),
)  # fmt: skip
def bidirectional_sequence_lstm(c: OperationCall) -> list[Array]:
    x, aux, backward_x = streams(c, c.fw_a_f is not None)
    fw, *fw_states = LstmDirection(c, "fw_").run(x, aux, c.fw_state.array, c.fw_cell.array)
    bw, *bw_states = LstmDirection(c, "bw_").run(backward_x, aux, c.bw_state.array, c.bw_cell.array, backward=True)
    return [*merged([fw, bw], c.merge, c.time_major), *fw_states, *bw_states][: len(c.outputs)]
