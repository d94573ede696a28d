"""Passes that run only on request: what they make, how far it is from the source, and that nothing else runs them."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from golden import optimize, passes_in
from onnx import TensorProto, helper, numpy_helper
from qdq_net import Net
from rewriting import ops, optimized, parse, random_feeds, run

from ortconv.ir.types import DType
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer import catalog, levels, recipe
from ortconv.optimizer.engine import Context, PassSettings
from tests.batches import sampled

NAMES = {
    "LossyCastChainElimination",
    "RoundedNormFusion",
    "WeightBiasQuantization",
    "SkipLayerNormFusion",
    "QDQS8ToU8Shared",
    "Avx2WeightS8ToU8Transformer",
    "GeluApproximation",
    "MatMulNBitsAccuracyLevel4",
}


def test_only_on_request() -> None:
    listed = {entry.name: entry for entry in catalog.entries()}
    assert {name for name, entry in listed.items() if entry.opt_in} >= NAMES
    running = {n for passes in recipe.make("all").stages.values() for p in passes for n in recipe.names_of(p)}
    assert not {name for name, entry in listed.items() if entry.opt_in} & running
    assert all(listed[name].why_opt_in for name in NAMES)


def test_those_that_change_the_numbers_are_known() -> None:
    assert levels.inexact() == NAMES - {"SkipLayerNormFusion", "Avx2WeightS8ToU8Transformer"}


# ---------------------------------------------------------------------- weights

PRODUCTS, LARGEST = 36, 4.6
"""How many products make up an element at most, and the largest magnitude of what the weights are multiplied by."""


def quantized_net(op: str, groups: int = 1, opset: int = 13, bias: bool = True, relu: bool = False) -> Net:
    """An operator with float weights between quantized tensors."""
    net, rng = Net(opset=opset), np.random.default_rng(groups + opset)
    shape, columns = ((2, 4, 5, 5), 6) if op != "Gemm" else ((3, 4), 6)
    weight = {
        "Conv": (columns, 4 // groups, 3, 3),
        "ConvTranspose": (4, columns // groups, 3, 3),
        "Gemm": (4, columns),
    }[op]
    weights = rng.normal(size=weight) * 0.1
    if op == "Conv":
        weights[0] *= 30
    operands = [net.activations(*shape), net.const(weights.astype(np.float32))]
    operands += [net.const(rng.normal(size=columns).astype(np.float32))] if bias else []
    y = net.add(op, *operands, **({"group": groups} if op != "Gemm" else {}))
    return net.quantized(net.add("Relu", y) if relu else y)


@sampled(4)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize(
    ("op", "groups"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 1), ("ConvTranspose", 2), ("Gemm", 1)]
)
def test_quantized_weights(op: str, groups: int, opset: int, bias: bool, relu: bool) -> None:
    net = quantized_net(op, groups, opset, bias, relu)
    proto = net.proto()
    model, context = optimized(proto, passes_in("basic.quantize_weights"))
    assert context.counts() == {"WeightBiasQuantization": 1}
    constants = [v.constant for v in model.graph.initializers.values() if v.constant is not None]
    assert {t.dtype for t in constants if t.size > 6} == {DType.INT8}
    worst = PRODUCTS * LARGEST * np.max(np.abs(_weights(proto))) / 254
    for seed in range(3):
        feeds = random_feeds(proto, seed)
        (want,), (got,) = run(proto, feeds), run(model_proto(model), feeds)
        assert np.ptp(want) > 0
        assert np.max(np.abs(got - want)) <= net.step + worst


def _weights(proto: onnx.ModelProto) -> np.ndarray:
    arrays = [numpy_helper.to_array(t) for t in proto.graph.initializer]
    return max((a for a in arrays if a.dtype == np.float32), key=lambda a: a.size)


def test_per_channel_weights_are_nearer_than_those_of_one_scale() -> None:
    """Weights of very different channels: what ONNX Runtime's pass, one scale for all of them, is further off from."""
    proto = quantized_net("Conv").proto()
    model, _ = optimized(proto, passes_in("basic.quantize_weights"))
    feeds = random_feeds(proto)
    (want,), (got,) = run(proto, feeds), run(model_proto(model), feeds)
    weights = _weights(proto)
    scale = (max(0.0, weights.max()) - min(0.0, weights.min())) / 255
    whole = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in whole.graph.initializer:
        if numpy_helper.to_array(tensor).shape == weights.shape:
            rounded = (np.rint(weights / scale) * scale).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    (other,) = run(whole, feeds)
    assert np.abs(got - want).mean() < np.abs(other - want).mean() / 2


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
def test_quantized_weights_let_the_operator_work_on_integers(op: str) -> None:
    proto = quantized_net(op).proto()
    model = from_proto(proto)
    chosen = recipe.make("extended", enable=["WeightBiasQuantization"])
    optimize(model, chosen.basic)
    optimize(model, chosen.above_basic)
    assert ops(model.graph)["QLinearConv" if op == "Conv" else "com.microsoft.QGemm"] == 1


@pytest.mark.parametrize(
    "broken", ["infinite weight", "large bias", "empty weight", "returned result", "second reader"]
)
def test_weights_that_stay(broken: str) -> None:
    weight, bias = np.ones((4, 2), np.float32), np.ones(2, np.float32)
    if broken == "infinite weight":
        weight[1, 1] = np.inf
    if broken == "large bias":
        bias[0] = 1e30
    if broken == "empty weight":
        weight, bias = np.ones((4, 0), np.float32), np.ones(0, np.float32)
    net = Net()
    y = net.add("Gemm", net.activations(3, 4), net.const(weight), net.const(bias))
    net.quantized(y)
    if broken == "returned result":
        net.returned(y)
    if broken == "second reader":
        net.returned(net.add("Neg", y))
    assert optimized(net.proto(), passes_in("basic.quantize_weights"))[1].trace == []


def test_weights_that_a_caller_may_override_stay() -> None:
    net = quantized_net("Gemm", bias=False)
    proto = net.proto()
    weight = next(t for t in proto.graph.initializer if len(t.dims) == 2)
    proto.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims))
    assert optimized(proto, passes_in("basic.quantize_weights"))[1].trace == []


# ---------------------------------------------------------------------- approximations


def test_approximate_gelu_is_as_near_as_it_says() -> None:
    proto = parse("g (float[2001] x) => (float y) { y = com.microsoft.Gelu(x) }")
    model, context = optimized(proto, passes_in("extended.approximate"))
    assert context.counts() == {"GeluApproximation": 1}
    x = np.linspace(-10, 10, 2001, dtype=np.float32)
    exact = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])
    (got,) = run(model_proto(model), {"x": x})
    assert 1e-5 < np.max(np.abs(got - exact)) < 5e-4


@pytest.mark.parametrize("between", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("to", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_casts_between_floats_go_straight(between: int, to: int) -> None:
    proto = parse(f"g (float[7] x) => (float y) {{ h = Cast<to = {between}>(x) y = Cast<to = {to}>(h) }}")
    proto.graph.output[0].type.tensor_type.elem_type = to
    model, _ = optimized(proto, passes_in("basic.cast_chain"))
    x = np.array([0.1, -0.0, np.inf, -np.inf, 3e38, 1e-40, 7], np.float32)
    (got,) = run(model_proto(model), {"x": x})
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x.astype(got.dtype))


def test_the_limit_of_rewrites_holds() -> None:
    proto = parse("g (float[4] x) => (float y) { a = com.microsoft.Gelu(x) y = com.microsoft.Gelu(a) }")
    model = from_proto(proto)
    context = Context(PassSettings(limit=1))
    for p in passes_in("extended.approximate"):
        p.run(model.graph, context)
    assert ops(model.graph) == {"com.microsoft.FastGelu": 1, "com.microsoft.Gelu": 1}
