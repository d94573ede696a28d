"""Small models of one operator each, in every form that the NNAPI partitioner takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

RNG = np.random.default_rng(7)
MS = "com.microsoft"


@dataclass
class Case:
    """A model and feeds for it. `steps` is how far results may be off, in steps of uint8 or relative for floats."""

    name: str
    op: str
    nodes: list[NodeProto]
    feeds: dict[str, np.ndarray]
    constants: dict[str, np.ndarray]
    opset: int = 17
    outputs: tuple[str, ...] = ("y",)
    level: int = 31
    dtype: int = TensorProto.FLOAT
    tags: set[str] = field(default_factory=set)

    def model(self) -> ModelProto:
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.feeds.items()
        ]
        outputs = [helper.make_tensor_value_info(n, self.dtype, None) for n in self.outputs]
        weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def bytes_(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def case(
    op: str,
    *operands: Any,
    name: str = "",
    opset: int = 17,
    then: str = "",
    outputs: int = 1,
    level: int = 31,
    dtype: int = TensorProto.FLOAT,
    domain: str = "",
    **attrs: Any,
) -> Case:
    """One node: an operand is a shape to feed floats of, ("feed", array), a constant array, or None where it is left out.

    `then` is an operator behind it, for nodes that make no partition alone.
    """
    feeds: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    names = []
    for slot, operand in enumerate(operands):
        label = f"i{slot}"
        if operand is None:
            label = ""
        elif isinstance(operand, tuple) and operand and operand[0] == "feed":
            feeds[label] = operand[1]
        elif isinstance(operand, tuple):
            feeds[label] = floats(*operand)
        else:
            constants[label] = np.asarray(operand)
        names.append(label)
    made = [f"y{i}" if i else "y" for i in range(outputs)]
    if then:
        nodes = [helper.make_node(op, names, ["t"], domain=domain, **attrs), helper.make_node(then, ["t"], ["y"])]
    else:
        nodes = [helper.make_node(op, names, made, domain=domain, **attrs)]
    return Case(f"{op}-{name or opset}", op, nodes, feeds, constants, opset, tuple(made), level, dtype)


def qdq(op: str, operands: Sequence[Any], output: tuple[float, int] | None, name: str = "", **attrs: Any) -> Case:
    """A QDQ group. An operand is a plain array, or (array, scale, zero point): a constant, with "feed" in front an input, and with
    "made" in front the result of QuantizeLinear.
    """
    opset = attrs.pop("opset", 17)
    feeds: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    nodes, names = [], []
    for slot, operand in enumerate(operands):
        label = f"i{slot}"
        if not isinstance(operand, tuple):
            constants[label] = np.asarray(operand)
            names.append(label)
            continue
        fed = isinstance(operand[0], str)
        array, scale, zero = operand[1:] if fed else operand
        kind = np.uint8 if array.dtype == np.float32 else array.dtype
        constants |= {f"s{slot}": np.asarray(scale, np.float32), f"z{slot}": np.asarray(zero, kind)}
        made = fed and operand[0] == "made"
        if made:
            nodes.append(helper.make_node("QuantizeLinear", [f"r{slot}", f"s{slot}", f"z{slot}"], [label]))
        (feeds if fed else constants)[f"r{slot}" if made else label] = array
        axis = {"axis": 0} if np.ndim(scale) else {}
        nodes.append(helper.make_node("DequantizeLinear", [label, f"s{slot}", f"z{slot}"], [f"f{slot}"], **axis))
        names.append(f"f{slot}")
    if output is None:
        nodes.append(helper.make_node(op, names, ["y"], **attrs))
        return Case(f"{op}-qdq-{name}", op, nodes, feeds, constants, opset)
    nodes.append(helper.make_node(op, names, ["f"], **attrs))
    constants |= {"so": np.asarray(output[0], np.float32), "zo": np.asarray(output[1], np.uint8)}
    nodes.append(helper.make_node("QuantizeLinear", ["f", "so", "zo"], ["y"]))
    return Case(f"{op}-qdq-{name}", op, nodes, feeds, constants, opset, dtype=TensorProto.UINT8)


def convolutions() -> Iterator[Case]:
    image, w = (1, 4, 9, 7), floats(6, 4, 3, 3)
    yield case("Conv", image, w, name="no-bias")
    yield case("Conv", image, w, floats(6), name="bias", pads=[1, 1, 1, 1], strides=[2, 1])
    yield case("Conv", image, w, (6,), name="computed-bias", pads=[1, 2, 0, 1])
    yield case("Conv", image, w, name="dilated", dilations=[2, 2], pads=[2, 2, 2, 2])
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield case("Conv", image, w, floats(6), name=mode, auto_pad=mode, strides=[2, 2])
    yield case("Conv", image, floats(8, 1, 3, 3), floats(8), name="depthwise", group=4, pads=[1, 1, 1, 1])
    yield case(
        "Conv", image, floats(4, 1, 3, 3), name="depthwise-dilated", group=4, dilations=[2, 1], pads=[1, 0, 1, 0]
    )
    yield case("Conv", image, floats(6, 2, 3, 3), floats(6), name="grouped", group=2)
    yield case("Conv", (2, 3, 5, 5), floats(2, 3, 1, 1), name="pointwise", level=28)
    x = ("feed", bytes_(1, 4, 9, 7), 0.02, 128)
    bias = (RNG.integers(-900, 900, 6).astype(np.int32), 0.02 * 0.01, 0)
    weights = bytes_(6, 4, 3, 3)
    signed = RNG.integers(-127, 128, (6, 4, 3, 3)).astype(np.int8)
    scales = (0.005 + 0.01 * RNG.random(6)).astype(np.float32)
    channel_bias = (bias[0], np.float32(0.02) * scales, np.zeros(6))
    yield qdq("Conv", [x, (weights, 0.01, 120), bias], (0.1, 100), "u8u8", pads=[1, 1, 1, 1])
    yield qdq("Conv", [x, (signed, 0.01, 0), bias], (0.1, 100), "u8s8", pads=[1, 1, 1, 1])
    yield qdq("Conv", [x, (signed, 0.01, 0)], (0.1, 100), "no-bias", strides=[2, 2])
    yield qdq("Conv", [x, (signed, scales, np.zeros(6)), channel_bias], (0.1, 100), "channels")
    yield qdq("Conv", [x, (signed[:4, :1], scales[:4], np.zeros(4))], (0.1, 100), "depthwise-channels", group=4)
    qlinear = [("feed", x[1]), np.float32(0.02), np.uint8(128), signed, np.float32(0.01), np.int8(0), np.float32(0.1),
               np.uint8(100)]  # fmt: skip
    yield case("QLinearConv", *qlinear, bias[0], name="u8s8", dtype=TensorProto.UINT8)
    per_channel = [*qlinear[:4], scales, np.zeros(6, np.int8), *qlinear[6:]]
    yield case("QLinearConv", *per_channel, name="channels", dtype=TensorProto.UINT8, pads=[1, 1, 1, 1])


def elementwise() -> Iterator[Case]:
    for op in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min"):
        other = floats(3, 1, 1) + 3 if op in ("Pow", "Div") else floats(3, 1, 1)
        positive = ("feed", np.abs(floats(2, 3, 4, 5)) + np.float32(0.1))
        yield case(op, positive if op == "Pow" else (2, 3, 4, 5), np.abs(other), name="constant")
        yield case(op, positive, ("feed", np.abs(floats(2, 3, 4, 5)) + 1), name="computed", opset=16)
    for op in ("Add", "Mul", "Sub", "Div"):
        yield case(op, (), np.float32(2.5), name="numbers")
        yield case(op, (3, 4), (1,), name="broadcast", opset=7 if op == "Add" else 13)
    for op in ("Abs", "Exp", "Neg", "Sin", "Floor", "Tanh", "Sigmoid", "Relu", "Elu", "LeakyRelu"):
        yield case(op, (2, 3, 4), opset=13 if op != "Sigmoid" else 7)
        yield case(op, (5,) if op in ("Sigmoid", "LeakyRelu") else (), name="small")
    for op in ("Log", "Sqrt"):
        yield case(op, ("feed", np.abs(floats(2, 5)) + np.float32(0.1)))
    yield case("Elu", (2, 3), name="alpha", alpha=0.3)
    yield case("LeakyRelu", (2, 3), name="alpha", alpha=0.3)
    yield case("Clip", (2, 9), np.float32(0), np.float32(6), name="relu6")
    yield case("Clip", (2, 9), np.float32(-1), np.float32(1), name="relu1")
    yield case("Clip", (2, 9), name="attributes", opset=10, min=-1.0, max=1.0)
    yield case("Cast", ("feed", 10 * floats(3, 4)), name="int32", to=TensorProto.INT32, dtype=TensorProto.INT32)
    yield case("Cast", (3, 4), name="float", to=TensorProto.FLOAT)
    a, b = ("feed", bytes_(2, 3, 4), 0.02, 128), ("feed", bytes_(2, 3, 4), 0.03, 110)
    for op in ("Add", "Mul"):
        yield qdq(op, [a, b], (0.06, 120), "computed")
        yield qdq(op, [a, (bytes_(3, 1), 0.03, 110)], (0.06, 120), "constant")
        tail = [np.float32(0.06), np.uint8(120)]
        parts = [v for _, array, s, z in (a, b) for v in (("feed", array), np.float32(s), np.uint8(z))]
        yield case(f"QLinear{op}", *parts, *tail, name="u8", domain=MS, dtype=TensorProto.UINT8)
    sigmoid = [("feed", a[1]), np.float32(0.02), np.uint8(128), np.float32(1 / 256), np.uint8(0)]
    yield case("QLinearSigmoid", *sigmoid, domain=MS, dtype=TensorProto.UINT8)


def products() -> Iterator[Case]:
    yield case("Gemm", (3, 5), floats(5, 4), name="no-bias")
    yield case("Gemm", (3, 5), floats(5, 4), floats(4), name="bias")
    yield case("Gemm", (3, 5), floats(4, 5), floats(1, 4), name="transposed", transB=1)
    yield case("Gemm", (3, 5), (4, 5), (1, 4), name="computed", transB=1)
    yield case("MatMul", (3, 5), floats(5, 4), name="matrices")
    yield case("MatMul", (2, 3, 5), (2, 5, 4), name="batches")
    yield case("MatMul", (2, 2, 3, 5), floats(2, 2, 5, 4), name="constant-batches")
    yield case("MatMul", (1, 3, 5), (1, 5, 4), name="batch-of-one")
    x = ("feed", bytes_(3, 5), 0.02, 128)
    signed = RNG.integers(-127, 128, (5, 4)).astype(np.int8)
    bias = (RNG.integers(-900, 900, 4).astype(np.int32), 0.02 * 0.01, 0)
    yield qdq("Gemm", [x, (bytes_(5, 4), 0.01, 130), bias], (0.05, 120), "u8u8")
    yield qdq("Gemm", [x, (bytes_(4, 5), 0.01, 130)], (0.05, 120), "transposed", transB=1)
    yield qdq("Gemm", [x, (signed, 0.01, 0), bias], (0.05, 120), "u8s8")
    yield qdq("MatMul", [x, (signed, 0.01, 0)], (0.05, 120), "u8s8")
    qlinear = [("feed", x[1]), np.float32(0.02), np.uint8(128), signed, np.float32(0.01), np.int8(0), np.float32(0.05),
               np.uint8(120)]  # fmt: skip
    yield case("QLinearMatMul", *qlinear, dtype=TensorProto.UINT8)


def movement() -> Iterator[Case]:
    image = (1, 4, 6, 8)
    yield case("Concat", image, image, name="channels", axis=1)
    yield case("Concat", (2, 3), (4, 3), floats(1, 3), name="constant", axis=-2)
    yield case("Reshape", (2, 3, 4), np.array([0, -1]), then="Neg")
    yield case("Flatten", (2, 3, 4), name="default", then="Neg")
    yield case("Flatten", (2, 3, 4), name="axis", then="Neg", axis=-1)
    yield case("Flatten", (2, 3), name="axis0", then="Neg", axis=0)
    yield case("Squeeze", (1, 3, 1, 4), np.array([0, -2]), name="axes")
    yield case("Squeeze", (1, 3, 1), name="attribute", opset=11, axes=[2])
    yield case("Squeeze", (1, 3, 1), name="all")
    yield case("Squeeze", (1, 1), name="to-a-number")
    yield case("Squeeze", (2, 3), name="nothing", then="Neg")
    yield case("Unsqueeze", (2, 3), np.array([0, -1]), name="axes")
    yield case("Unsqueeze", (2, 3), name="attribute", opset=11, axes=[1])
    yield case("Transpose", (2, 3, 4), name="default")
    yield case("Transpose", (2, 3, 4, 5), name="perm", perm=[0, 3, 1, 2])
    yield case("Identity", (2, 3), then="Neg")
    for axis in (0, -1):
        yield case("Gather", (4, 5, 3), np.array([[0, 2], [2, 1]]), name=f"matrix{axis}", axis=axis)
        yield case("Gather", (4, 5, 3), np.array(1), name=f"number{axis}", axis=axis)
    yield case("Gather", (4, 5), ("feed", np.array([1, 3], np.int32)), name="computed")
    bounds = [np.array(v) for v in ([1, -3], [2**31, -1], [0, 2])]
    yield case("Slice", (4, 5, 6), *bounds, name="contiguous")
    yield case("Slice", (4, 5, 6), *bounds, name="level28", level=28)
    yield case("Slice", (4, 5, 6), *bounds, np.array([2, 1]), name="steps")
    backwards = [np.array(v) for v in ([-1], [-100], [1], [-2])]
    yield case("Slice", (4, 5, 6), *backwards, name="backwards")
    yield case("Split", (4, 6), np.array([3, 3]), name="sizes", outputs=2, axis=1)
    yield case("Split", (4, 6), name="count", opset=18, outputs=2, axis=0, num_outputs=2)
    yield case("Split", (1, 6, 4, 4), name="axis", outputs=3, axis=-3)
    yield case("Pad", (2, 3, 4), np.array([0, 1, 2, 1, 0, 0]), name="zero")
    yield case("Pad", (2, 3), np.array([0, 1, 2, 1]), np.float32(1.5), name="value", opset=13)
    yield case("DepthToSpace", (1, 8, 2, 3), name="default", blocksize=2)
    yield case("DepthToSpace", (2, 18, 2, 3), name="dcr", opset=11, blocksize=3, mode="DCR")
    x = ("feed", bytes_(2, 3, 4), 0.02, 128)
    yield qdq("Transpose", [x], (0.02, 128), "u8", perm=[1, 0, 2])
    yield qdq("Reshape", [x, np.array([6, 4])], (0.02, 128), "u8")
    others = [("made", floats(2, 3, 4), 0.03, 110), ("made", floats(2, 3, 4), 0.01, 0)]
    yield qdq("Concat", [x, *others], (0.04, 120), "u8", axis=1)


def normalization() -> Iterator[Case]:
    parameters = [floats(4), floats(4), floats(4), np.abs(floats(4)) + np.float32(0.5)]
    for shape in ((2, 4, 5, 6), (2, 4, 5), (3, 4)):
        yield case("BatchNormalization", shape, *parameters, name=f"rank{len(shape)}", opset=15, epsilon=1e-3)
    yield case("LRN", (1, 6, 4, 5), size=5, alpha=0.3, beta=0.6, bias=2.0)
    yield case("LRN", (1, 6, 4, 5), name="defaults", size=3)
    yield case("Softmax", (2, 3, 4), name="last", axis=-1)
    yield case("Softmax", (2, 3, 4, 5), name="middle", axis=1)
    yield case("Softmax", (2, 3, 4), name="default")
    yield case("Softmax", (2, 3, 4), name="from-axis-1", opset=11)
    yield case("Softmax", (2, 3, 4), name="from-axis-2", opset=11, axis=-1)
    yield case("Softmax", (3, 4), name="level28", opset=11, level=28)
    yield case("ReduceMean", (2, 3, 4, 5), name="spatial", opset=13, axes=[2, 3])
    yield case("ReduceMean", (2, 3, 4, 5), name="dropped", opset=13, axes=[-1], keepdims=0)
    yield case("ReduceMean", (2, 3, 4), name="all", opset=13, keepdims=0)
    yield case("ReduceMean", (2, 3, 4), np.array([1, -1]), name="input", opset=18)
    yield qdq("Softmax", [("feed", bytes_(3, 8), 0.05, 128)], (1 / 256, 0), "u8", axis=-1)
    yield qdq("Softmax", [("feed", bytes_(2, 3, 4), 0.05, 128)], (1 / 256, 0), "matrix", opset=11)


def pooling() -> Iterator[Case]:
    image = (1, 4, 9, 7)
    for op in ("AveragePool", "MaxPool"):
        yield case(op, image, name="window", kernel_shape=[3, 2], strides=[2, 1])
        yield case(op, image, name="padded", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
        yield case(op, image, name="uneven", kernel_shape=[3, 3], pads=[1, 0, 2, 1])
        yield case(op, image, name="same", kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2])
        yield case(op, image, name="lower", kernel_shape=[2, 3], auto_pad="SAME_LOWER", strides=[2, 2])
    yield case("GlobalAveragePool", image)
    yield case("GlobalMaxPool", image)
    x = ("feed", bytes_(*image), 0.02, 128)
    yield qdq("AveragePool", [x], (0.02, 128), "u8", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    parameters = [np.float32(0.02), np.uint8(128)]
    yield case("QLinearAveragePool", ("feed", x[1]), *parameters, *parameters, domain=MS, dtype=TensorProto.UINT8,
               kernel_shape=[3, 3], strides=[2, 2])  # fmt: skip


def quantization() -> Iterator[Case]:
    parameters = [np.float32(0.02), np.uint8(128)]
    yield case("QuantizeLinear", (2, 3, 4), *parameters, dtype=TensorProto.UINT8)
    yield case("DequantizeLinear", ("feed", bytes_(2, 3)), *parameters)
    yield case("DequantizeLinear", ("feed", bytes_(2, 3)), np.float32(0.1), name="no-zero-point")


def resizing() -> Iterator[Case]:
    image = (1, 3, 4, 6)
    for up in ([1, 1, 2, 3], [1, 1, 0.5, 0.5]):
        scales = np.array(up, np.float32)
        for coordinates in ("asymmetric", "half_pixel", "align_corners"):
            yield case("Resize", image, None, scales, name=f"{coordinates}-{up[2]}", mode="linear",
                       coordinate_transformation_mode=coordinates)  # fmt: skip
        yield case("Resize", image, None, scales, name=f"nearest-{up[2]}", mode="nearest", nearest_mode="floor",
                   coordinate_transformation_mode="asymmetric")  # fmt: skip
    row = np.array([[1, 1, 2, 3]], np.float32)
    yield case("Resize", image, None, row, name="scales-in-a-row", mode="linear")
    yield case("Resize", image, None, None, np.array([1, 3, 8, 9]), name="sizes", mode="linear")
    yield case("Resize", (1, 4, 6, 3), None, None, np.array([1, 8, 9, 3]), name="channels-last", mode="linear")
    scales = np.array([1, 1, 2, 2], np.float32)
    x = ("feed", bytes_(1, 3, 4, 6), 0.02, 128)
    yield qdq("Resize", [x, np.array([], np.float32), scales], (0.02, 128), "u8", mode="linear",
              coordinate_transformation_mode="asymmetric")  # fmt: skip


def inside() -> Iterator[Case]:
    """Raw uint8 operators between QuantizeLinear and DequantizeLinear."""
    scale: dict[str, Any] = {"s": np.float32(0.02), "z": np.uint8(128)}
    nodes: dict[str, tuple[list[str], dict[str, Any], dict[str, np.ndarray]]] = {
        "Transpose": (["q"], {"perm": [0, 2, 3, 1]}, {}),
        "MaxPool": (["q"], {"kernel_shape": [2, 2]}, {}),
        "Concat": (["q", "q"], {"axis": 2}, {}),
        "Resize": (
            ["q", "", "k"],
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            {"k": np.array([1, 1, 2, 2], np.float32)},
        ),
    }
    for op, (names, attrs, more) in nodes.items():
        chain = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node(op, names, ["r"], **attrs),
            helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
        ]
        yield Case(f"{op}-raw-uint8", op, chain, {"x": floats(1, 3, 4, 6)}, scale | more)


def all_cases() -> list[Case]:
    families = (convolutions, elementwise, products, movement, normalization, pooling, quantization, resizing, inside)
    return [one for family in families for one in family()]
