"""Quantized networks for tests, and the comparison of what the passes make of them with the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rewriting import Feeds, ops, optimized, random_feeds, run

from ortconv.onnxio.proto import model_proto
from ortconv.optimizer.engine import Context, PassSettings
from ortconv.optimizer.extended.qdq import PASSES

RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
MICROSOFT = "com.microsoft."

PER_CHANNEL = np.array([0.01, 0.02, 0.005, 0.03, 0.015, 0.02])


class Net:
    """A quantized network in the making: float32 inputs are quantized at once, `y` is dequantized at the end."""

    def __init__(self, kind: str = "uint8", opset: int = 13, domain: str = "") -> None:
        self.kind, self.opset, self.domain = kind, opset, domain
        self.rng = np.random.default_rng(0)
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.step = 0.0
        self.count = 0

    def name(self, hint: str = "t") -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def const(self, array: Any) -> str:
        name = self.name("c")
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> str:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names[0]

    def parameters(self, scale: Any, zero: Any, kind: str | None) -> tuple[str, str]:
        return self.const(np.asarray(scale, np.float32)), self.const(np.asarray(zero).astype(kind or self.kind))

    def q(self, x: str, scale: Any, zero: Any = 0, kind: str | None = None) -> str:
        return self.add("QuantizeLinear", x, *self.parameters(scale, zero, kind), domain=self.domain)

    def dq(self, x: str, scale: Any, zero: Any = 0, kind: str | None = None, **attrs: Any) -> str:
        return self.add("DequantizeLinear", x, *self.parameters(scale, zero, kind), domain=self.domain, **attrs)

    def qdq(self, x: str, scale: Any, zero: Any = 0, kind: str | None = None) -> str:
        return self.dq(self.q(x, scale, zero, kind), scale, zero, kind)

    def input(self, *shape: int, kind: int = TensorProto.FLOAT) -> str:
        name = self.name("x")
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def zero(self, at: float = 0.5) -> int:
        """A zero point at this part of the range."""
        low, high = RANGES[self.kind]
        return round(low + at * (high - low))

    def activations(self, *shape: int, scale: float = 0.03, at: float = 0.4) -> str:
        """A quantized input, dequantized."""
        return self.qdq(self.input(*shape), scale, self.zero(at))

    def weights(self, *shape: int, scale: Any = 0.02, kind: str = "int8", axis: int = 0, zero: Any = 0) -> str:
        low, high = RANGES[kind]
        codes = self.const(self.rng.integers(low // 2, high // 2 + 1, shape).astype(kind))
        zero = np.broadcast_to(np.asarray(zero), np.shape(scale))
        return self.dq(codes, scale, zero, kind, **({"axis": axis} if np.ndim(scale) else {}))

    def quantized(self, y: str, scale: float = 0.05, at: float = 0.5, zero: int | None = None) -> Net:
        """The output: quantized, and dequantized again."""
        self.step = max(self.step, scale)
        return self.returned(self.qdq(y, scale, self.zero(at) if zero is None else zero))

    def returned(self, y: str) -> Net:
        self.outputs.append(y)
        return self

    def proto(self) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, [], self.constants)
        for output in outputs:
            kind = TensorProto.INT64 if self.nodes[-1].op_type == "ArgMax" else TensorProto.FLOAT
            output.type.tensor_type.elem_type = kind
        graph.output.extend(outputs)
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def check(net: Net, steps: float = 1.0, feeds: Feeds | None = None, platform: str | None = None) -> dict[str, int]:
    """The operators left, after the result was held against the source: at most so many quantization steps apart."""
    proto = net.proto()
    model, _ = optimized(proto, PASSES, Context(PassSettings(target_platform=platform)))
    result = model_proto(model)
    onnx.checker.check_model(result)
    for seed in range(3):
        values = random_feeds(proto, seed) if feeds is None else feeds
        for want, got in zip(run(proto, values), run(result, values), strict=True):
            assert want.dtype == got.dtype
            assert want.shape == got.shape
            assert np.isfinite(want).all()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=steps * net.step + 1e-5)
            assert want.size == 0 or want.dtype.kind == "i" or np.ptp(want) > 0, "the case shows nothing"
    return ops(model.graph)


def refused(net: Net) -> None:
    assert not optimized(net.proto(), PASSES)[1].trace


def around(*left: str) -> dict[str, int]:
    """What is left of a network with one input and one output of which only these operators remain between."""
    found = {"QuantizeLinear": 1, "DequantizeLinear": 1}
    for op in left:
        found[op] = found.get(op, 0) + 1
    return found
