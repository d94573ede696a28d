"""LSTM cells against onnxruntime, and which operands go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nnapi_calls import OMITTED, I, Q, S, bias, close, compute, numbers, outs, quantized
from nnapi_models import Builder, tensor

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operand, OperandType, Operation
from ortconv.nnapi.operand import Tensor
from tests.executor.single_node import run_onnxruntime

LSTM, ONE_WAY = Operation.LSTM, Operation.UNIDIRECTIONAL_SEQUENCE_LSTM
BOTH_WAYS, QUANTIZED = Operation.BIDIRECTIONAL_SEQUENCE_LSTM, Operation.QUANTIZED_LSTM
TIME, BATCH, INPUTS, UNITS = 5, 3, 4, 2
TANH, NO_CLIP = 4, (0.0, 0.0)
CELL = [f"{kind}_{gate}" for kind in "wrpb" for gate in "ifco" if (kind, gate) != ("p", "c")]
CELL += ["projection", "projection_bias"]
NORMS = ["n_i", "n_f", "n_c", "n_o"]
Arrays = dict[str, Any]


def direction(inputs: int = INPUTS, peepholes: bool = True, size: int = UNITS, seed: int = 0) -> Arrays:
    dims = {"w": (UNITS, inputs), "r": (UNITS, size), "b": (UNITS,)} | ({"p": (UNITS,)} if peepholes else {})
    names = [f"{kind}_{gate}" for kind in dims for gate in "ifco" if (kind, gate) != ("p", "c")]
    return {name: numbers(*dims[name[0]], seed=10 * seed + at) for at, name in enumerate(names)}


def states(size: int = UNITS, seed: int = 0) -> list[Array]:
    return [numbers(BATCH, size, seed=seed + 50), numbers(BATCH, UNITS, seed=seed + 51)]


def listed(arrays: Arrays, names: list[str]) -> list[Any]:
    return [arrays.get(name, OMITTED) for name in names]


def step(x: Array, arrays: Arrays, state: list[Array], *clips: float, activation: int = TANH) -> list[Array]:
    """Output state, cell state and output of the next step."""
    norms = listed(arrays, NORMS) if "n_o" in arrays else []
    rest = activation, *(clips or NO_CLIP)
    scratch, *results = compute(LSTM, x, *listed(arrays, CELL), *state, *rest, *norms, out=outs(4))
    assert scratch.shape == (BATCH, UNITS * (4 if "w_i" in arrays else 3))
    return results


def onnx_lstm(x: Array, *directions: tuple[Arrays, list[Array]]) -> tuple[Array, Array, Array]:
    """Sequences [time, direction, batch, units] and the last states [direction, batch, units]."""
    stacked = [
        np.stack([np.concatenate([one[f"{kind}_{gate}"] for gate in order]) for one, _ in directions])
        for kind, order in (("w", "iofc"), ("r", "iofc"), ("b", "iofc"))
    ]
    both = np.concatenate([stacked[2], np.zeros_like(stacked[2])], axis=1)
    peepholes = None
    if "p_i" in directions[0][0]:
        peepholes = np.stack([np.concatenate([one[f"p_{gate}"] for gate in "iof"]) for one, _ in directions])
    h, c = (np.stack([state[at] for _, state in directions]) for at in range(2))
    name = "bidirectional" if len(directions) > 1 else "forward"
    inputs = [x, *stacked[:2], both, None, h, c, peepholes]
    return tuple(run_onnxruntime("LSTM", inputs, {"hidden_size": UNITS, "direction": name}, n_outputs=3))  # type: ignore[return-value]


@pytest.mark.parametrize("peepholes", [False, True])
def test_one_step(peepholes: bool) -> None:
    x, cell, state = numbers(1, BATCH, INPUTS), direction(peepholes=peepholes), states()
    h, c, out = step(x[0], cell, state)
    _, last_h, last_c = onnx_lstm(x, (cell, state))
    close(h, last_h[0])
    close(c, last_c[0])
    close(out, h)


def test_without_input_gate_it_is_the_complement_of_the_forget_gate() -> None:
    x, cell, state = numbers(BATCH, INPUTS), direction(), states()
    for kind in "wrpb":
        cell[f"{kind}_i"] = -cell[f"{kind}_f"]  # the sigmoid of -x is 1 minus that of x
    without = {name: array for name, array in cell.items() if not name.endswith("_i")}
    for got, want in zip(step(x, without, state), step(x, cell, state)):
        close(got, want)


def test_projection() -> None:
    x, size = numbers(BATCH, INPUTS), 3
    cell, state = direction(size=size), states(size)
    identity = step(x, cell | {"projection": np.eye(size, UNITS, dtype=np.float32)}, state)
    close(identity[0][:, UNITS:], np.zeros((BATCH, 1)))
    matrix, offset = numbers(size, UNITS), numbers(size)
    got = step(x, cell | {"projection": matrix, "projection_bias": offset}, state)
    close(got[2], identity[0][:, :UNITS] @ matrix.T + offset)
    close(got[1], identity[1])
    clipped = step(x, cell | {"projection": matrix, "projection_bias": offset}, state, 0.0, 0.1)
    close(clipped[2], np.clip(got[2], -0.1, 0.1))


def test_cell_clip() -> None:
    x, cell, state = numbers(BATCH, INPUTS), direction(peepholes=False), states()
    want = np.clip(step(x, cell, state)[1], -0.2, 0.2)
    h, c, _ = step(x, cell, state, 0.2, 0.0)
    close(c, want)
    assert not np.allclose(h, step(x, cell, state)[0])


@pytest.mark.parametrize(("activation", "low", "high"), [(0, -np.inf, np.inf), (1, 0, np.inf), (3, 0, 6)])
def test_activations(activation: int, low: float, high: float) -> None:
    """With an output gate that is open and a forget gate that is shut."""
    cell = direction(peepholes=False)
    for gate, value in (("f", -200), ("i", 200), ("o", 200)):
        cell[f"b_{gate}"] = np.full(UNITS, value, np.float32)
    x, state = 4 * numbers(BATCH, INPUTS), states()
    fresh = np.clip(x @ cell["w_c"].T + state[0] @ cell["r_c"].T + cell["b_c"], low, high)
    close(step(x, cell, state, activation=activation)[0], fresh)


def test_layer_normalization() -> None:
    """Scaling and shifting what a gate adds up changes nothing before the weights and the bias of the norm."""
    x, cell, state = numbers(BATCH, INPUTS), direction(peepholes=False), states()
    cell |= {name: numbers(UNITS, seed=at) for at, name in enumerate(NORMS)}
    scaled = cell | {name: 64 * array for name, array in cell.items() if name[0] in "wr"}
    for got, want in zip(step(x, scaled, state), step(x, cell, state)):
        close(got, want)
    without = {name: array for name, array in cell.items() if name not in NORMS}
    assert not np.allclose(step(x, without, state)[0], step(x, cell, state)[0], atol=1e-3)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_sequence(time_major: bool, count: int) -> None:
    x, cell, state = numbers(TIME, BATCH, INPUTS), direction(), states()
    given = x if time_major else np.ascontiguousarray(x.swapaxes(0, 1))
    norms = [OMITTED] * 4
    got = compute(
        ONE_WAY, given, *listed(cell, CELL), *state, TANH, *NO_CLIP, time_major, *norms, out=outs(count)
    )  # fmt: skip
    y, h, c = onnx_lstm(x, (cell, state))
    assert len(got) == count
    close(got[0] if time_major else got[0].swapaxes(0, 1), y[:, 0])
    for mine, theirs in zip(got[1:], (h, c)):
        close(mine, theirs[0])


def both_ways(
    x: Array, fw: Arrays, bw: Arrays, aux: Any = OMITTED, merge: bool = False, time_major: bool = True, count: int = 2
) -> list[Array]:
    gates = ["a_i", "a_f", "a_c", "a_o"]
    sides = [*listed(fw, CELL), *listed(bw, CELL), *states(), *states(seed=5)]
    rest = TANH, *NO_CLIP, merge, time_major, *[OMITTED] * 8
    return compute(BOTH_WAYS, x, *sides, aux, *listed(fw, gates), *listed(bw, gates), *rest, out=outs(count))


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
def test_both_ways(time_major: bool, merge: bool, with_states: bool) -> None:
    x, fw, bw = numbers(TIME, BATCH, INPUTS), direction(), direction(seed=1)
    given = x if time_major else np.ascontiguousarray(x.swapaxes(0, 1))
    sequences = 1 if merge else 2
    got = both_ways(given, fw, bw, merge=merge, time_major=time_major, count=sequences + 4 * with_states)
    y, h, c = onnx_lstm(x, (fw, states()), (bw, states(seed=5)))
    mine = np.concatenate(got[:sequences], axis=2)
    close(mine if time_major else mine.swapaxes(0, 1), np.concatenate([y[:, 0], y[:, 1]], axis=2))
    if with_states:
        for one, theirs in zip(got[sequences:], (h[0], c[0], h[1], c[1])):
            close(one, theirs)


def test_auxiliary_input() -> None:
    x, aux = numbers(TIME, BATCH, INPUTS), numbers(TIME, BATCH, 7)
    fw, bw = direction(), direction(inputs=7, seed=1)
    got = both_ways(x, fw, bw, aux)
    close(got[0], onnx_lstm(x, (fw, states()))[0][:, 0])
    close(got[1], onnx_lstm(aux[::-1], (bw, states(seed=5)))[0][::-1, 0])

    bw = direction(seed=1)
    fw_aux, bw_aux = ({f"a_{gate}": numbers(UNITS, 7, seed=at + n) for at, gate in enumerate("ifco")} for n in (0, 4))
    got = both_ways(x, fw | fw_aux, bw | bw_aux, aux)
    wide = [
        one | {f"w_{gate}": np.concatenate([one[f"w_{gate}"], more[f"a_{gate}"]], axis=1) for gate in "ifco"}
        for one, more in ((fw, fw_aux), (bw, bw_aux))
    ]
    y, _, _ = onnx_lstm(np.concatenate([x, aux], axis=2), (wide[0], states()), (wide[1], states(seed=5)))
    close(got[0], y[:, 0])
    close(got[1], y[:, 1])
    for missing in ("a_i", "a_f", "a_o"):
        with pytest.raises(NnapiError, match="OP_FAILED"):
            both_ways(x, fw | fw_aux, bw | {name: w for name, w in bw_aux.items() if name != missing}, aux)
    with pytest.raises(NnapiError, match=r"OP_FAILED.*auxiliary"):
        both_ways(x, fw | fw_aux, bw | bw_aux)


@pytest.mark.parametrize("name", ["w_i", "r_i", "b_i", "p_i", "p_f", "p_o", "n_i", "n_c"])
def test_operands_that_do_not_go_together(name: str) -> None:
    cell = direction() | {norm: numbers(UNITS) for norm in NORMS}
    del cell[name]
    with pytest.raises(NnapiError, match="OP_FAILED"):
        step(numbers(BATCH, INPUTS), cell, states())


@pytest.mark.parametrize("name", ["w_f", "r_c", "b_o"])
def test_operands_that_are_needed(name: str) -> None:
    cell = direction()
    del cell[name]
    with pytest.raises(NnapiError, match=r"OP_FAILED.*omitted"):
        step(numbers(BATCH, INPUTS), cell, states())


@pytest.mark.parametrize("name", ["w_i", "r_c", "p_o", "b_f", "n_o", "projection", "projection_bias"])
def test_operands_that_do_not_fit(name: str) -> None:
    """Nothing is broadcast."""
    cell = direction() | {norm: numbers(UNITS) for norm in NORMS}
    cell |= {"projection": numbers(UNITS, UNITS), "projection_bias": numbers(UNITS)}
    step(numbers(BATCH, INPUTS), cell, states())
    cell[name] = np.ascontiguousarray(cell[name][:1])
    with pytest.raises(NnapiError, match="OP_FAILED"):
        step(numbers(BATCH, INPUTS), cell, states())


def test_refused() -> None:
    x, cell, (h, c) = numbers(BATCH, INPUTS), direction(), states()
    for clips in ((-1.0, 0.0), (0.0, -1.0)):
        with pytest.raises(NnapiError, match=r"OP_FAILED.*negative"):
            step(x, cell, [h, c], *clips)
    with pytest.raises(NnapiError, match=r"OP_FAILED.*activation"):
        step(x, cell, [h, c], activation=2)
    with pytest.raises(NnapiError, match=r"OP_FAILED.*state"):
        step(x, cell, [h[:1], c])
    with pytest.raises(NnapiError, match=r"OP_FAILED.*cell"):
        step(x, cell, [h, c[:1]])
    with pytest.raises(NnapiError, match=r"OP_FAILED.*projection"):
        step(x, cell | {"projection_bias": numbers(UNITS)}, [h, c])
    with pytest.raises(NnapiError, match=r"OP_FAILED.*projection"):
        step(x, direction(size=3), states(3))


S8, S16 = Operand.TENSOR_QUANT8_SYMM, Operand.TENSOR_QUANT16_SYMM
NO_NORMS = [OperandType(S16)] * 4


def quantized_step(cell: Arrays, cell_scale: float = 2.0**-12, **changes: Any) -> list[Array]:
    """One step of 16-bit cells, from the float weights of `cell` with peepholes."""
    inputs = {
        "x": quantized(np.rint(np.clip(numbers(BATCH, INPUTS) * 40, -128, 127)), 1 / 40, 0, S),
        "state": quantized(np.rint(states()[0] * 30), 1 / 64, 0, S),
        "cell": quantized(np.rint(states()[1] / cell_scale), cell_scale, 0, S16),
    } | changes
    weights: list[OperandType] = []
    for name in CELL:
        kind = I if name[0] == "b" else S16 if name[0] == "p" and name[1] == "_" else S8
        if name not in cell:
            weights.append(OperandType(I if name == "projection_bias" else kind))
        elif name[0] == "b":
            weights.append(bias(np.rint(cell[name] * 40 * 127 / 4)))  # in the scale of input times weights
        else:
            scale = 4 / 127 if kind is S8 else 4 / 32767
            weights.append(quantized(np.rint(cell[name] / scale), scale, 0, kind))
    rest = *NO_NORMS, *NO_CLIP, *[2.0**-12] * 4, 0, 1 / 128
    given = inputs["x"], *weights, inputs["state"], inputs["cell"], *rest
    like = OperandType(S, (), 1 / 64), OperandType(S16, (), cell_scale), OperandType(S, (), 1 / 64)
    return compute(QUANTIZED, *given, out=like)


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("coupled", [False, True])
def test_quantized_cells_come_close_to_real_ones(projected: bool, coupled: bool) -> None:
    cell = {name: np.clip(array, -3.9, 3.9) for name, array in direction().items()}
    if coupled:
        cell = {name: array for name, array in cell.items() if not name.endswith("_i")}
    if projected:
        cell |= {"projection": numbers(UNITS, UNITS)}
    x = np.rint(np.clip(numbers(BATCH, INPUTS) * 40, -128, 127)) / 40
    h, c = np.rint(states()[0] * 30) / 64, np.rint(states()[1] * 2**12) / 2**12
    real_h, real_c, _ = step(x.astype(np.float32), cell, [h.astype(np.float32), c.astype(np.float32)])
    got_h, got_c, out = quantized_step(cell)
    np.testing.assert_allclose(got_c / 2.0**12, real_c, atol=0.05)
    np.testing.assert_allclose(got_h / (64 if projected else 128), real_h, atol=0.05)
    assert out.tolist() == got_h.tolist()


def test_cell_scales_are_powers_of_two() -> None:
    for scale, reason in ((2.0**-8, "1/512"), (0.0011, "power of 2")):
        with pytest.raises(NnapiError, match=f"OP_FAILED.*{reason}"):
            quantized_step(direction(), scale)


def test_quantized_operands_that_do_not_go_together() -> None:
    quantized_step(direction())
    for name in ("w_i", "b_i", "p_f"):
        with pytest.raises(NnapiError, match="OP_FAILED"):
            quantized_step({key: array for key, array in direction().items() if key != name})
    with pytest.raises(NnapiError, match=r"OP_FAILED.*state"):
        quantized_step(direction(), state=quantized(np.zeros((1, UNITS)), 1 / 64, 0, S))


def sixteen_bit(**changes: Any) -> list[Array]:
    given: dict[str, Tensor] = {"x": quantized(np.full((BATCH, INPUTS), 130), 1 / 128, 128)}
    for kind, dims in (("w", (UNITS, INPUTS)), ("r", (UNITS, UNITS))):
        given |= {f"{kind}_{gate}": quantized(np.full(dims, 90), 0.25, 100, Q) for gate in "ifco"}
    given |= {f"b_{gate}": bias(np.zeros(UNITS), 0.25 / 128) for gate in "ifco"}
    given["cell"] = quantized(np.zeros((BATCH, UNITS)), 2.0**-11, 0, S16)
    given["state"] = quantized(np.full((BATCH, UNITS), 128), 1 / 128, 128)
    like = OperandType(S16, (), 2.0**-11), OperandType(Q, (), 1 / 128, 128)
    return compute(Operation.QUANTIZED_16BIT_LSTM, *(given | changes).values(), out=like)


def test_quantization_of_16_bit_cells() -> None:
    cell, out = sixteen_bit()
    assert cell.dtype == np.int16
    assert out.dtype == np.uint8
    for changes in (
        {"x": quantized(np.zeros((BATCH, INPUTS)), 1 / 64, 128)},
        {"state": quantized(np.zeros((BATCH, UNITS)), 1 / 128, 127)},
        {"w_c": quantized(np.zeros((UNITS, INPUTS)), 0.25, 99)},
        {"r_o": quantized(np.zeros((UNITS, UNITS)), 0.5, 100)},
        {"b_f": bias(np.zeros(UNITS), 0.25)},
        {"cell": quantized(np.zeros((BATCH, UNITS)), 2.0**-12, 0, S16)},
        {"b_f": bias(np.zeros(1), 0.25 / 128)},
        {"w_f": quantized(np.zeros((UNITS, 1)), 0.25, 100)},
    ):
        with pytest.raises(NnapiError, match="OP_FAILED"):
            sixteen_bit(**changes)


@pytest.mark.parametrize("units", [1, 2, 4, 32, 40])
def test_constant_weights_are_no_defaults(units: int) -> None:
    """Of layer normalization: trailing operands like those that may be left out, but for their values."""
    b = Builder()
    size = tensor(units)
    x, states = b.operand(tensor(1, 2)), [b.operand(tensor(1, units)) for _ in range(2)]
    ones = [b.constant(np.ones((units, n)), tensor(units, n)) for n in (2, 2, 2, 2, units, units, units, units)]
    vectors = [b.constant(np.ones(units), size) for _ in range(8)]
    omitted = [b.operand(size) for _ in range(5)]
    for index in omitted:
        b.model.set_operand_value(index, None)
    limits = [b.constant(np.float32(0), OperandType(Operand.FLOAT32)) for _ in range(2)]
    cell = [x, *ones, *omitted[:3], *vectors[:4], *omitted[3:], *states, b.int32(4), *limits, *vectors[4:]]
    outs = [b.operand(kind) for kind in (tensor(1, 4 * units), *[tensor(1, units)] * 3)]
    b.model.add_operation(Operation.LSTM, cell, outs)
    model = b.finish([x, *states], outs)
    assert len(model.operations[0].inputs) == 27
