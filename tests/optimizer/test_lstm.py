"""LSTMs unrolled over time become one node, with the same numbers in onnxruntime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rewriting import Feeds, random_feeds, run
from unrolled import Network, random_network

from ortconv.ir.verify import verify
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.pipeline import optimize
from tests.batches import slow_except

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast


def converted(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Counter[str]]:
    model = from_proto(proto)
    optimize(model, "extended")
    verify(model.graph)
    result = model_proto(model)
    onnx.checker.check_model(result, full_check=True)
    return result, Counter(node.op_type for node in result.graph.node)


def agree(source: onnx.ModelProto, result: onnx.ModelProto, feeds: Feeds) -> None:
    for expected, actual in zip(run(source, feeds), run(result, feeds), strict=True):
        assert expected.shape == actual.shape
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", slow_except(range(3), range(60)))
def test_random_spellings(seed: int) -> None:
    source = random_network(seed).proto()
    result, count = converted(source)
    assert count["LSTM"]
    agree(source, result, random_feeds(source))


def test_layers_become_one_node_each() -> None:
    _, count = converted(Network(layers=3, length=5).proto())
    assert count["LSTM"] == 3
    assert not set(count) & {"Sigmoid", "Tanh", "MatMul", "Gemm"}


@pytest.mark.parametrize("product", ["matmul", "gemm", "chained"])
@pytest.mark.parametrize("batch", slow_except(["N"], [1, 2, "N"]))
def test_zero_states_need_no_step_of_their_own(batch: int | str, product: str) -> None:
    source = Network(batch=batch, zero_state=True, product=product, layers=2, returned=("h", "c", "all")).proto()
    result, count = converted(source)
    assert count["LSTM"] == 2
    assert not count["Sigmoid"]
    agree(source, result, random_feeds(source))


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("time_first", [True, False])
def test_batches_of_any_size(rows: int, time_first: bool) -> None:
    source = Network(batch="N", time_first=time_first, returned=("h", "c", "all")).proto()
    result, count = converted(source)
    assert count["LSTM"] == 1
    agree(source, result, random_feeds(source, N=rows))


@pytest.mark.parametrize("backwards", [True, False])
@pytest.mark.parametrize("place", [("x", (1, 2, 0)), ("h0", (0, 1))])
def test_nan_reaches_the_states_that_it_did(place: tuple[str, tuple[int, ...]], backwards: bool) -> None:
    source = Network(backwards=backwards, returned=("h", "c", "middle", "all")).proto()
    feeds = random_feeds(source)
    feeds[place[0]][place[1]] = np.nan
    result, count = converted(source)
    assert count["LSTM"] == 1
    assert np.isnan(run(result, feeds)[0]).any()
    agree(source, result, feeds)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 3e38])
def test_an_infinite_input_saturates(value: float) -> None:
    source = Network(returned=("h", "c", "all")).proto()
    feeds = random_feeds(source)
    feeds["x"][0, 1, 0] = value
    agree(source, converted(source)[0], feeds)


def test_infinities_of_both_signs_saturate_in_steps_of_their_own() -> None:
    source = Network(returned=("h", "c", "all")).proto()
    feeds = random_feeds(source)
    feeds["x"][0, 0, 0], feeds["x"][0, 2, 0] = np.inf, -np.inf
    assert np.isfinite(run(source, feeds)[0]).all()
    agree(source, converted(source)[0], feeds)


def _override(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("R0", onnx.TensorProto.FLOAT, [5, 20]))


def _return_a_gate(proto: onnx.ModelProto) -> None:
    """Of every step."""
    for node in [n for n in proto.graph.node if n.op_type == "Sigmoid"]:
        proto.graph.output.append(helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None))


def _read_every_other_step(proto: onnx.ModelProto) -> None:
    for constant in proto.graph.initializer:
        if constant.name.startswith("t"):
            constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant) * 2 % 4, constant.name))


def _weights_of_their_own(proto: onnx.ModelProto) -> None:
    (weight,) = (c for c in proto.graph.initializer if c.name == "R0")
    for i, node in enumerate(n for n in proto.graph.node if "R0" in n.input):
        node.input[1] = f"own{i}"
        proto.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(weight) * (i + 1), f"own{i}"))


def _infinite_weight(proto: onnx.ModelProto) -> None:
    (weight,) = (c for c in proto.graph.initializer if c.name == "R0")
    changed = numpy_helper.to_array(weight).copy()
    changed[0, 0] = np.inf
    weight.CopyFrom(numpy_helper.from_array(changed, "R0"))


def _other_activation(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Softsign"


def _double_cell_state(proto: onnx.ModelProto) -> None:
    """Every step takes over the state of the one before last."""
    states = [
        "c0",
        "c0",
        *(n.output[0] for n in proto.graph.node if n.op_type == "Add" and n.input[0].startswith("Mul_")),
    ]
    kept = [n for n in proto.graph.node if n.op_type == "Mul" and n.input[1] in states]
    for node, state in zip(kept, states):
        node.input[1] = state


@pytest.mark.parametrize(
    "change",
    [
        _override,
        _return_a_gate,
        _read_every_other_step,
        _weights_of_their_own,
        _infinite_weight,
        _other_activation,
        _double_cell_state,
    ],
)
def test_what_is_no_lstm_stays(change: Callable[[onnx.ModelProto], None]) -> None:
    proto = Network().proto()
    assert converted(proto)[1]["LSTM"] == 1
    change(proto)
    result, count = converted(proto)
    assert not count["LSTM"]
    for expected, actual in zip(run(proto, random_feeds(proto)), run(result, random_feeds(proto)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("network", "fires"),
    [
        (Network(length=2), False),
        (Network(length=3, batch="N"), False),
        (Network(length=3), True),
        (Network(opset=10), False),
    ],
)
def test_short_ones_stay(network: Network, fires: bool) -> None:
    assert bool(converted(network.proto())[1]["LSTM"]) == fires
