"""Regions of quantized convolutions with the channels last, held against the same nodes with the channels first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from golden import passes_in
from onnx import TensorProto, helper
from qdq_net import Net
from rewriting import ops, optimized, random_feeds, run

from ortconv.ir.types import DType
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context
from ortconv.optimizer.extended.qdq import PASSES as QUANTIZED

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

PASSES = passes_in("layout.nhwc")
SCALE = 0.05


def image(net: Net, y: str) -> str:
    """A result, quantized and dequantized: always with the same parameters, so that MaxPool goes on integers."""
    return net.qdq(y, SCALE, net.zero(0.5))


def conv(net: Net, x: str, channels: int, given: int, *, groups: int = 1, kernel: int = 3, **attrs: object) -> str:
    w = net.weights(channels, given // groups, kernel, kernel, scale=0.01)
    return image(net, net.add("Conv", x, w, group=groups, pads=[kernel // 2] * 4, **attrs))


def chain(net: Net, x: str) -> str:
    return conv(net, conv(net, x, 6, 4), 5, 6, strides=[2, 2])


def depthwise(net: Net, x: str) -> str:
    return conv(net, conv(net, conv(net, x, 8, 4, kernel=1), 8, 8, groups=8), 4, 8, groups=2, kernel=1)


def residual(net: Net, x: str) -> str:
    first = conv(net, x, 4, 4)
    return image(net, net.add("Add", conv(net, first, 4, 4), first))


def concat(net: Net, x: str) -> str:
    first = conv(net, x, 4, 4)
    return conv(net, image(net, net.add("Concat", first, conv(net, first, 3, 4), axis=-3)), 2, 7)


def swish(net: Net, x: str) -> str:
    first = conv(net, x, 4, 4)
    gate = image(net, net.add("Sigmoid", first))
    return conv(net, image(net, net.add("Mul", first, gate)), 4, 4)


def squeeze_and_excite(net: Net, x: str) -> str:
    first = conv(net, x, 4, 4)
    gate = conv(net, image(net, net.add("GlobalAveragePool", first)), 4, 4, kernel=1)
    return conv(net, image(net, net.add("Mul", first, image(net, net.add("LeakyRelu", gate)))), 4, 4)


def pools(net: Net, x: str) -> str:
    first = image(net, net.add("MaxPool", conv(net, x, 4, 4), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]))
    return conv(net, image(net, net.add("AveragePool", first, kernel_shape=[2, 2], pads=[1, 0, 0, 1])), 3, 4)


def parts(net: Net, x: str) -> str:
    """As in the blocks of detectors: half of the channels go through a convolution, then all are joined."""
    first = conv(net, x, 6, 4)
    net.add("Split", first, net.const(np.array([2, 4])), axis=1, outputs=2)
    low, high = (image(net, y) for y in net.nodes[-1].output)
    return conv(net, image(net, net.add("Concat", low, high, conv(net, high, 3, 4), axis=1)), 4, 9)


def enlarged(net: Net, x: str) -> str:
    scales = net.const(np.array([1, 1, 2, 3], np.float32))
    return conv(net, image(net, net.add("Resize", conv(net, x, 4, 4), "", scales, mode="nearest")), 3, 4)


def enlarged_to(net: Net, x: str) -> str:
    sizes = net.const(np.array([2, 4, 11, 12]))
    return conv(net, image(net, net.add("Resize", conv(net, x, 4, 4), "", "", sizes, mode="nearest")), 3, 4)


def interpolated(net: Net, x: str) -> str:
    scales = net.const(np.array([1, 1, 2, 4], np.float32))
    return conv(net, image(net, net.add("Resize", conv(net, x, 4, 4), "", scales, mode="linear")), 3, 4)


def interpolated_to(net: Net, x: str) -> str:
    sizes = net.const(np.array([2, 4, 14, 9]))
    attrs = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    return conv(net, image(net, net.add("Resize", conv(net, x, 4, 4), "", "", sizes, **attrs)), 3, 4)


def distribution(net: Net, x: str) -> str:
    """As detectors compute box edges: the expectation of a softmax over channels."""
    weights = image(net, net.add("Softmax", conv(net, x, 6, 4), axis=1))
    return conv(net, weights, 2, 6, kernel=1)


def constants(net: Net, x: str) -> str:
    first = conv(net, x, 4, 4)
    for shape in ((4, 1, 1), (1, 4, 7, 9), (), (9,)):
        codes = net.const(net.rng.integers(0, 256, shape).astype(np.uint8))
        first = image(net, net.add("Add", first, net.dq(codes, 0.01, 128)))
    return conv(net, first, 4, 4)


def reals(net: Net, x: str) -> str:
    """Operators without integer kernel, between DequantizeLinear and QuantizeLinear."""
    first = conv(net, x, 4, 4)
    slope = net.const(net.rng.uniform(-1, 1, (4, 1, 1)).astype(np.float32))
    first = image(net, net.add("Mul", net.add("HardSigmoid", first), net.add("PRelu", first, slope)))
    first = conv(net, first, 4, 4)
    low = net.const(np.float32(-0.3))
    return conv(net, image(net, net.add("Max", net.add("Clip", first, low), net.add("Tanh", first), low)), 4, 4)


REGIONS = [
    reals,
    chain,
    depthwise,
    residual,
    concat,
    swish,
    squeeze_and_excite,
    pools,
    parts,
    enlarged,
    enlarged_to,
    interpolated,
    interpolated_to,
    distribution,
    constants,
]


def network(build: Callable[[Net, str], str]) -> Net:
    net = Net()
    x = image(net, net.input(2, 4, 7, 9))
    return net.returned(build(net, x))


def quantized(net: Net) -> tuple[object, dict[str, np.ndarray]]:
    """The network with operators on integers, and inputs."""
    model, _ = optimized(net.proto(), QUANTIZED)
    return model_proto(model), random_feeds(net.proto())


def check(net: Net) -> dict[str, int]:
    """The operators of the converted network, which gives the same bits."""
    before, feeds = quantized(net)
    model, _ = optimized(before, PASSES)  # type: ignore[arg-type]
    for want, got in zip(run(before, feeds), run(model_proto(model), feeds), strict=True):  # type: ignore[arg-type]
        assert np.ptp(want) > 0
        np.testing.assert_array_equal(got, want)
    return ops(model.graph)


@pytest.mark.parametrize("build", REGIONS)
def test_region(build: Callable[[Net, str], str]) -> None:
    found = check(network(build))
    assert found["Transpose"] == 2
    assert found["com.microsoft.QLinearConv"] >= 2
    assert not found.keys() & {"QLinearConv", "MaxPool"}


def test_reals_are_not_transposed() -> None:
    """Q at the start and DQ at the end stay outside, so that what is transposed is bytes."""
    before, _ = quantized(network(chain))
    model, _ = optimized(before, PASSES)  # type: ignore[arg-type]
    for node in model.graph:
        if node.op == "Transpose":
            assert node.out.dtype is DType.UINT8


def test_scales_of_channels_stay_outside() -> None:
    net = Net()
    x = conv(net, conv(net, image(net, net.input(2, 4, 7, 9)), 4, 4), 4, 4)
    scales, zeros = np.array([0.1, 0.2, 0.3, 0.1]), np.full(4, 100)
    net.returned(net.dq(net.q(net.add("Tanh", x), scales, zeros), scales, zeros))
    assert check(net)["Transpose"] == 2


@pytest.mark.parametrize(
    ("mode", "scales", "transposes"),
    [
        ("half_pixel", (1, 1, 2, 4), 2),
        ("asymmetric", (1, 1, 2, 8), 2),
        ("half_pixel", (1, 1, 3, 2), 4),
        ("align_corners", (1, 1, 2, 2), 4),
    ],
)
def test_interpolation_of_bytes_stays_unless_it_is_exact(mode: str, scales: tuple[float, ...], transposes: int) -> None:
    net = Net()
    x = net.q(net.input(2, 4, 7, 9), SCALE, 100)
    w = net.const(net.rng.integers(-50, 50, (4, 4, 1, 1)).astype(np.int8))
    s, z, zw = net.const(np.float32(SCALE)), net.const(np.uint8(100)), net.const(np.int8(0))
    for _ in range(2):
        x = net.add("QLinearConv", x, s, z, w, net.const(np.float32(0.01)), zw, s, z)
    scaled = net.const(np.array(scales, np.float32))
    x = net.add("Resize", x, "", scaled, mode="linear", coordinate_transformation_mode=mode)
    for _ in range(2):
        x = net.add("QLinearConv", x, s, z, w, net.const(np.float32(0.01)), zw, s, z)
    assert check(net.returned(net.dq(x, SCALE, 100)))["Transpose"] == transposes


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_softmax_along_other_axes_stays(axis: int) -> None:
    def build(net: Net, x: str) -> str:
        first = chain(net, x)
        return conv(net, image(net, net.add("Softmax", first, axis=axis)), 2, 5)

    model, _ = optimized(quantized(network(build))[0], PASSES)  # type: ignore[arg-type]
    (softmax,) = (n for n in model.graph if n.op == "QLinearSoftmax")
    assert softmax.attr("axis", -1) == axis


def test_convolution_behind_a_transpose_takes_its_result() -> None:
    def build(net: Net, x: str) -> str:
        return conv(net, image(net, net.add("Transpose", x, perm=[0, 2, 1, 3])), 4, 7)

    found = check(network(build))
    assert found["Transpose"] == 2
    assert found["com.microsoft.QLinearConv"] == 1


def test_one_convolution_stays() -> None:
    before, _ = quantized(network(lambda net, x: conv(net, x, 4, 4)))
    assert not optimized(before, PASSES)[1].trace  # type: ignore[arg-type]


def test_node_at_the_border_that_costs_a_transpose_stays() -> None:
    def build(net: Net, x: str) -> str:
        other = image(net, net.input(2, 4, 7, 9))
        return image(net, net.add("Add", conv(net, conv(net, x, 4, 4), 4, 4), other))

    found = check(network(build))
    assert found["Transpose"] == 2


def test_flatten_of_single_pixels_takes_either_order() -> None:
    def build(net: Net, x: str) -> str:
        return image(net, net.add("Flatten", image(net, net.add("GlobalAveragePool", chain(net, x)))))

    assert check(network(build))["Transpose"] == 1


def test_transposes_of_a_model_with_channels_last_vanish() -> None:
    net = Net()
    x = image(net, net.input(2, 7, 9, 4))
    x = image(net, net.add("Transpose", x, perm=[0, 3, 1, 2]))
    net.returned(image(net, net.add("Transpose", chain(net, x), perm=[0, 2, 3, 1])))
    assert "Transpose" not in check(net)


def test_sum_between_channels_last_joins_them() -> None:
    """As in ConvNeXt: what is added comes from nodes with the channels last, and goes to such."""
    net = Net()
    x = image(net, net.input(2, 7, 9, 4))
    first = conv(net, image(net, net.add("Transpose", x, perm=[0, 3, 1, 2])), 4, 4)
    last = image(net, net.add("Transpose", first, perm=[0, 2, 3, 1]))
    w = net.weights(4, 4, scale=0.01)
    back = image(net, net.add("Transpose", image(net, net.add("MatMul", last, w)), perm=[0, 3, 1, 2]))
    y = conv(net, image(net, net.add("Add", first, back)), 4, 4)
    found = check(net.returned(image(net, net.add("Transpose", y, perm=[0, 2, 3, 1]))))
    assert "Transpose" not in found


def test_returned_in_the_middle() -> None:
    def build(net: Net, x: str) -> str:
        first = conv(net, x, 4, 4)
        net.returned(net.add("Neg", first))
        return conv(net, conv(net, first, 4, 4), 4, 4)

    assert check(network(build))["Transpose"] == 3


def test_names_of_returned_integers_stay() -> None:
    net = network(chain)
    before, feeds = quantized(net)
    del before.graph.node[-1]  # type: ignore[attr-defined]
    name = before.graph.node[-1].output[0]  # type: ignore[attr-defined]
    before.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, TensorProto.UINT8, None))  # type: ignore[attr-defined]
    model, _ = optimized(before, PASSES)  # type: ignore[arg-type]
    after = model_proto(model)
    assert after.graph.output[0].name == name
    np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("taken", ["all", "one"])
def test_nodes_of_another_provider_stay(taken: str) -> None:
    before, _ = quantized(network(chain))
    graph = from_proto(before).graph  # type: ignore[arg-type]
    nodes = [n for n in graph if n.op == "QLinearConv"]
    for node in nodes if taken == "all" else nodes[:1]:
        node.ep = "nnapi"
    assert sum(p.run(graph, Context(only_cpu=True)) for p in PASSES) == 0


@pytest.mark.parametrize("sizes", [(9,), (5, 6, 7)])
def test_images_of_other_ranks(sizes: tuple[int, ...]) -> None:
    net, axes = Net(), len(sizes)

    def product(x: str, channels: int, given: int) -> str:
        w = net.weights(channels, given, *(3,) * axes, scale=0.01)
        return image(net, net.add("Conv", x, w, pads=[1] * 2 * axes))

    x = product(image(net, net.input(2, 4, *sizes)), 6, 4)
    x = image(net, net.add("MaxPool", x, kernel_shape=[3] * axes, strides=[2] * axes))
    slope = net.const(net.rng.uniform(-1, 1, (6, *(1,) * axes)).astype(np.float32))
    x = product(image(net, net.add("Concat", x, image(net, net.add("PRelu", x, slope)), axis=1)), 3, 12)
    x = product(image(net, net.add("Softmax", x, axis=1)), 2, 3)
    x = image(net, net.add("Flatten", image(net, net.add("GlobalAveragePool", x))))
    found = check(net.returned(x))
    assert found["Transpose"] == 1
    assert found["com.microsoft.QLinearConv"] == 3
    assert found["com.microsoft.NhwcMaxPool"] == 1
