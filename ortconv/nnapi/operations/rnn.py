"""Simple recurrent networks, and SVDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.arithmetic import activate
from ortconv.nnapi.operations.checks import rank
from ortconv.nnapi.operations.shapes import fits
from ortconv.nnapi.operations.table import Dims, OperationCall, operation


def layer(c: OperationCall, batch: int, inputs: int, prefix: str = "") -> Dims:
    """[batch, units] of one direction. Raises OP_FAILED if its operands do not match."""
    units = c.args[f"{prefix}weights"].dims[0]
    shapes = {"weights": (units, inputs), "recurrent": (units, units), "bias": (units,), "state": (batch, units)}
    fits(c, {prefix + name: dims for name, dims in shapes.items()})
    return batch, units


RANKS = (rank("weights", 2), rank("recurrent", 2), rank("bias", 1), rank("state", 2))


@operation(
    "RNN", "x:T weights:T recurrent:T bias:T state:T activation:i", outputs="state_out:T out:T", types="F H@3",
    infer=lambda c: [layer(c, *c.x.dims)] * 2, checks=(rank("x", 2), *RANKS),
)  # fmt: skip
def rnn(c: OperationCall) -> list[Array]:
    """activation(x weights' + state recurrent' + bias)"""
    y = activate(c.x.array @ c.weights.array.T + c.state.array @ c.recurrent.array.T + c.bias.array, c.activation)
    return [y, y]


def steps(count: int, backward: bool) -> range:
    return range(count)[:: -1 if backward else 1]


def time_first(x: Tensor, time_major: bool) -> Array:
    """A sequence as [time, batch, ...]. Applied twice, it has no effect."""
    return x.array if time_major else x.array.swapaxes(0, 1)


def rolled(
    c: OperationCall, x: Array, aux: Array | None = None, prefix: str = "", backward: bool = False
) -> tuple[Array, Array]:
    """States of one direction at every time, [time, batch, units], and the last one."""
    out = x @ c.args[f"{prefix}weights"].array.T + c.args[f"{prefix}bias"].array
    if aux is not None:
        out = out + aux @ c.args[f"{prefix}aux_weights"].array.T
    state, recurrent = c.args[f"{prefix}state"].array, c.args[f"{prefix}recurrent"].array
    for at in steps(len(out), backward):
        state = out[at] = activate(out[at] + state @ recurrent.T, c.activation)
    return out, state


def batch_and_inputs(c: OperationCall) -> tuple[int, int]:
    if c.x.rank != 3:
        raise op_failed(f"a sequence has rank 3, not {c.x.rank}")
    return c.x.dims[1 if c.time_major else 0], c.x.dims[2]


def sequence_dims(c: OperationCall) -> list[Dims]:
    state = layer(c, *batch_and_inputs(c))
    return [(*c.x.dims[:2], state[1]), state][: len(c.outputs)]


@operation(
    "UNIDIRECTIONAL_SEQUENCE_RNN", "x:T weights:T recurrent:T bias:T state:T activation:i time_major:i",
    outputs="out:T [state_out:T @4]", level=3, types="F H", infer=sequence_dims, checks=(rank("x", 3), *RANKS),
)  # fmt: skip
def unidirectional_sequence_rnn(c: OperationCall) -> list[Array]:
    out, state = rolled(c, time_first(c.x, c.time_major))
    return [*merged([out], False, c.time_major), state][: len(c.outputs)]


def merged(sequences: list[Array], merge: bool, time_major: bool) -> list[Array]:
    turned = [one if time_major else one.swapaxes(0, 1) for one in sequences]
    return [np.concatenate(turned, axis=2)] if merge else turned


def linked(c: OperationCall, fw_weights: Tensor | None, bw_weights: Tensor | None) -> tuple[bool, int]:
    """(True if both directions read the auxiliary input in addition to their own, number of the backward direction's
    own inputs). Raises OP_FAILED unless the auxiliary operands fit together.
    """
    if (fw_weights is None) != (bw_weights is None) or (c.aux is None and fw_weights is not None):
        raise op_failed("auxiliary weights go with an auxiliary input, and with weights of the other direction")
    if c.aux is None:
        return False, c.x.dims[2]
    fits(c, {"aux": (*c.x.dims[:2], c.aux.dims[-1])})
    return fw_weights is not None, c.x.dims[2] if fw_weights is not None else c.aux.dims[2]


def streams(c: OperationCall, has_weights: bool) -> tuple[Array, Array | None, Array]:
    """(input of the forward direction, auxiliary input of both, input of the backward direction). With auxiliary weights, aux is a
    second input; without them, it is the input of the backward direction.
    """
    x = time_first(c.x, c.time_major)
    if c.aux is None:
        return x, None, x
    aux = time_first(c.aux, c.time_major)
    return (x, aux, x) if has_weights else (x, None, aux)


def both_dims(c: OperationCall, fw: int, bw: int, states: Sequence[Dims]) -> list[Dims]:
    """The dimensions of the outputs of a bidirectional network, with the states if the operation has outputs for them."""
    sizes = [fw + bw] if c.merge else [fw, bw]
    sequences = [(*c.x.dims[:2], size) for size in sizes]
    if len(c.outputs) not in (len(sequences), len(sequences) + len(states)):
        raise op_failed(f"{len(c.outputs)} outputs do not go with merge_outputs {bool(c.merge)}")
    return [*sequences, *states][: len(c.outputs)]


def bidirectional_dims(c: OperationCall) -> list[Dims]:
    batch, inputs = batch_and_inputs(c)
    crossed, bw_inputs = linked(c, c.fw_aux_weights, c.bw_aux_weights)
    (_, fw), (_, bw) = layer(c, batch, inputs, "fw_"), layer(c, batch, bw_inputs, "bw_")
    if crossed:
        fits(c, {"fw_aux_weights": (fw, c.aux.dims[2]), "bw_aux_weights": (bw, c.aux.dims[2])})
    return both_dims(c, fw, bw, [(batch, fw), (batch, bw)])


@operation(
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "x:T fw_weights:T fw_recurrent:T fw_bias:T fw_state:T bw_weights:T bw_recurrent:T bw_bias:T bw_state:T "
    "aux:T? fw_aux_weights:T? bw_aux_weights:T? activation:i time_major:b merge:b",
    outputs=("out:T [fw_state_out:T bw_state_out:T @4]", "out:T bw_out:T [fw_state_out:T bw_state_out:T @4]"),
    level=3, types="F H", infer=bidirectional_dims, checks=(rank("x", 3),),
)  # fmt: skip
def bidirectional_sequence_rnn(c: OperationCall) -> list[Array]:
    x, aux, backward_x = streams(c, c.fw_aux_weights is not None)
    fw, fw_state = rolled(c, x, aux, "fw_")
    bw, bw_state = rolled(c, backward_x, aux, "bw_", backward=True)
    return [*merged([fw, bw], c.merge, c.time_major), fw_state, bw_state][: len(c.outputs)]


def svdf_dims(c: OperationCall) -> list[Dims]:
    filters, memory = c.time_weights.dims
    if c.rank <= 0 or filters % c.rank:
        raise op_failed(f"{filters} filters are not a multiple of the rank {c.rank}")
    batch, inputs = c.x.dims
    state, units = (batch, memory * filters), filters // c.rank
    fits(c, {"feature_weights": (filters, inputs), "bias": (units,), "state": state})
    return [state, (batch, units)]


@operation(
    "SVDF", "x:T feature_weights:T time_weights:T bias:T? state:T rank:i activation:i", outputs="state_out:T out:T",
    types="F H@3", infer=svdf_dims, checks=(rank("x", 2), rank("feature_weights", 2), rank("time_weights", 2)),
)  # fmt: skip
def svdf(c: OperationCall) -> list[Array]:
    """Each filter has a memory of its last features, which are weighted over time; `rank` filters form one unit."""
    filters, memory = c.time_weights.dims
    state = c.state.array.reshape(-1, filters, memory).copy()
    state[:, :, -1] = c.x.array @ c.feature_weights.array.T
    y = np.sum(state * c.time_weights.array, axis=2).reshape(len(state), -1, c.rank).sum(axis=2)
    if c.bias is not None:
        y = y + c.bias.array
    shifted = np.concatenate([state[:, :, 1:], np.zeros_like(state[:, :, :1])], axis=2)
    return [shifted.reshape(len(state), -1), activate(y, c.activation)]
