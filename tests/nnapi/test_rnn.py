"""Simple recurrent networks against onnxruntime; SVDF as a filter over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nnapi_calls import OMITTED, close, compute, numbers, outs

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operation
from tests.executor.single_node import run_onnxruntime

RNN, SVDF = Operation.RNN, Operation.SVDF
ONE_WAY, BOTH_WAYS = Operation.UNIDIRECTIONAL_SEQUENCE_RNN, Operation.BIDIRECTIONAL_SEQUENCE_RNN
TIME, BATCH, INPUTS, UNITS = 5, 3, 4, 2
RELU = 1


def direction(inputs: int = INPUTS, units: int = UNITS, seed: int = 0) -> list[Array]:
    """Weights, recurrent weights, bias, state."""
    dims = (units, inputs), (units, units), (units,), (BATCH, units)
    return [numbers(*one, seed=seed) for one in dims]


def onnx_rnn(x: Array, *directions: list[Array]) -> tuple[Array, Array]:
    """Sequences [time, direction, batch, units] and last states [direction, batch, units]."""
    w, r, b, state = (np.stack(one) for one in zip(*directions))
    both = np.concatenate([b, np.zeros_like(b)], axis=1)
    names = {
        "direction": "bidirectional" if len(directions) > 1 else "forward",
        "activations": ["Relu"] * len(directions),
    }
    y, last = run_onnxruntime("RNN", [x, w, r, both, None, state], {"hidden_size": b.shape[1], **names}, n_outputs=2)
    return y, last


def turned(x: Array, time_major: bool) -> Array:
    return x if time_major else np.ascontiguousarray(x.swapaxes(0, 1))


def test_one_step() -> None:
    x, network = numbers(1, BATCH, INPUTS), direction()
    want = onnx_rnn(x, network)[1][0]
    state, out = compute(RNN, x[0], *network, RELU, out=outs(2))
    close(state, want)
    close(out, want)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_sequence(time_major: bool, count: int) -> None:
    x, network = numbers(TIME, BATCH, INPUTS), direction()
    y, last = onnx_rnn(x, network)
    got = compute(ONE_WAY, turned(x, time_major), *network, RELU, int(time_major), out=outs(count))
    assert len(got) == count
    close(turned(got[0], time_major), y[:, 0])
    if count == 2:
        close(got[1], last[0])


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_both_ways(time_major: bool, merge: bool, states: bool) -> None:
    x, fw, bw = numbers(TIME, BATCH, INPUTS), direction(), direction(seed=1)
    y, last = onnx_rnn(x, fw, bw)
    got = compute(
        BOTH_WAYS, turned(x, time_major), *fw, *bw, OMITTED, OMITTED, OMITTED, RELU, time_major, merge,
        out=outs((1 if merge else 2) + 2 * states),
    )  # fmt: skip
    sequences = [turned(one, time_major) for one in (got[:1] if merge else got[:2])]
    close(np.concatenate(sequences, axis=2), np.concatenate([y[:, 0], y[:, 1]], axis=2))
    for mine, theirs in zip(got[len(sequences) :], last):
        close(mine, theirs)


def test_directions_of_different_size() -> None:
    x, fw, bw = numbers(TIME, BATCH, INPUTS), direction(), direction(units=6)
    none = OMITTED, OMITTED, OMITTED
    (got,) = compute(BOTH_WAYS, x, *fw, *bw, *none, RELU, True, True, out=outs(1))
    close(got[:, :, :UNITS], onnx_rnn(x, fw)[0][:, 0])
    close(got[:, :, UNITS:], onnx_rnn(x[::-1], bw)[0][::-1, 0])


def test_an_auxiliary_input_of_its_own_goes_backward() -> None:
    x, aux = numbers(TIME, BATCH, INPUTS), numbers(TIME, BATCH, 7)
    fw, bw = direction(), direction(inputs=7)
    got = compute(BOTH_WAYS, x, *fw, *bw, aux, OMITTED, OMITTED, RELU, True, False, out=outs(2))
    close(got[0], onnx_rnn(x, fw)[0][:, 0])
    close(got[1], onnx_rnn(aux[::-1], bw)[0][::-1, 0])


def test_auxiliary_weights_add_inputs() -> None:
    x, aux = numbers(TIME, BATCH, INPUTS), numbers(TIME, BATCH, 7)
    fw, bw, weights = direction(), direction(seed=1), [numbers(UNITS, 7, seed=one) for one in range(2)]
    got = compute(BOTH_WAYS, x, *fw, *bw, aux, *weights, RELU, True, False, out=outs(2))
    wide = [[np.concatenate([one[0], w], axis=1), *one[1:]] for one, w in zip((fw, bw), weights)]
    y, _ = onnx_rnn(np.concatenate([x, aux], axis=2), *wide)
    close(got[0], y[:, 0])
    close(got[1], y[:, 1])


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_operands_that_do_not_fit(index: int) -> None:
    """Nothing is broadcast."""
    network: list[Any] = direction()
    network[index] = np.ascontiguousarray(network[index][:1])
    with pytest.raises(NnapiError, match="OP_FAILED"):
        compute(RNN, numbers(BATCH, INPUTS), *network, RELU, out=outs(2))
    with pytest.raises(NnapiError, match="OP_FAILED"):
        compute(ONE_WAY, numbers(TIME, BATCH, INPUTS), *network, RELU, 1, out=outs(1))


@pytest.mark.parametrize("given", [(True, True, False), (True, False, True), (False, True, True), (False, True, False)])
def test_auxiliary_operands_that_do_not_go_together(given: tuple[bool, ...]) -> None:
    aux = numbers(TIME, BATCH, 7), numbers(UNITS, 7), numbers(UNITS, 7)
    chosen = [one if there else OMITTED for one, there in zip(aux, given)]
    with pytest.raises(NnapiError, match=r"OP_FAILED.*auxiliary"):
        compute(
            BOTH_WAYS, numbers(TIME, BATCH, INPUTS), *direction(), *direction(), *chosen, RELU, True, False, out=outs(2)
        )


def test_merging_leaves_one_sequence() -> None:
    none = OMITTED, OMITTED, OMITTED
    for merge, count in ((True, 2), (False, 1), (True, 4), (False, 3)):
        with pytest.raises(NnapiError, match=r"OP_FAILED.*outputs"):
            compute(
                BOTH_WAYS,
                numbers(TIME, BATCH, INPUTS),
                *direction(),
                *direction(),
                *none,
                RELU,
                True,
                merge,
                out=outs(count),
            )


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_svdf_weighs_the_last_features(rank: int, biased: bool) -> None:
    """Run over a sequence, each filter is a convolution over the time of its features."""
    memory, filters = 4, 6
    x, w, over_time = numbers(TIME, BATCH, INPUTS), numbers(filters, INPUTS), numbers(filters, memory)
    b = numbers(filters // rank)
    features = np.concatenate([np.zeros((memory - 1, BATCH, filters), np.float32), x @ w.T]).transpose(1, 2, 0)
    kernels = over_time.reshape(filters, 1, memory)
    units = run_onnxruntime("Conv", [features, kernels], {"group": filters})[0]
    want = units.reshape(BATCH, -1, rank, TIME).sum(axis=2).transpose(2, 0, 1) + (b if biased else 0)
    state = np.zeros((BATCH, memory * filters), np.float32)
    for at in range(TIME):
        state, y = compute(SVDF, x[at], w, over_time, b if biased else OMITTED, state, rank, 0, out=outs(2))
        close(y, want[at])


def test_svdf_refused() -> None:
    x, w, over_time, b, state = numbers(3, 4), numbers(6, 4), numbers(6, 5), numbers(3), numbers(3, 30)
    for inputs, reason in (
        ((x, w, over_time, b, state, 4, 0), "rank 4"),
        ((x, w, over_time, b, state, 0, 0), "rank 0"),
        ((x, w, over_time, numbers(1), state, 2, 0), "bias"),
        ((x, w, over_time, b, numbers(3, 24), 2, 0), "state"),
        ((x, w, numbers(1, 5), b, state, 1, 0), "feature_weights"),
        ((numbers(3, 5), w, over_time, b, state, 2, 0), "feature_weights"),
    ):
        with pytest.raises(NnapiError, match=f"OP_FAILED.*{reason}"):
            compute(SVDF, *inputs, out=outs(2))
