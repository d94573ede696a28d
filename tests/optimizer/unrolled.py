"""LSTMs unrolled over time, spelled at random as exporters and people do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

T = TypeVar("T")


@dataclass
class Network:
    """Layers of an LSTM over x (batch, length, size), or with time first."""

    opset: int = 13
    length: int = 4
    batch: int | str = 2
    size: int = 3
    width: int = 5
    layers: int = 1
    time_first: bool = False
    backwards: bool = False
    zero_state: bool = False
    gates: str = "split"
    """Whether the products of all gates are one, taken apart by Split or Slice; or each gate has its own (alone)."""
    product: str = "matmul"
    """How the sum is spelled: matmul and Adds, gemm for both products, or chained, one Gemm that adds the other."""
    steps: str = "gather"
    """How a step is taken from x: gather, slice (and Squeeze), split (and Squeeze)."""
    returned: tuple[str, ...] = ("h",)
    """What is returned: h and c of the last step, middle (h after the second step), middle_c, all (states, stacked)."""
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def const(self, name: str, content: object, dtype: type = np.float32) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attrs: object) -> str:
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0]

    def with_ints(
        self, op: str, x: str, name: str, numbers: list[int], since: int = 13, outputs: int = 1, **attrs: object
    ) -> str:
        """A node with integers as input, or as attribute before an opset."""
        if self.opset >= since:
            return self.node(
                op, x, self.const("_".join(map(str, (name, *numbers))), numbers, np.int64), outputs=outputs, **attrs
            )
        return self.node(op, x, outputs=outputs, **{name: numbers}, **attrs)

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        if self.opset < 10:
            return self.node("Slice", x, axes=[axis], starts=[start], ends=[end])
        return self.node("Slice", x, *(self.const(f"i_{n}", [n], np.int64) for n in (start, end, axis)))

    def weight(self, name: str, *shape: int) -> str:
        rng = np.random.default_rng([self.seed, *name.encode()])
        return self.const(name, rng.normal(size=shape) * 0.5)

    def sum(self, layer: int, x: str, h: str, size: int, gate: str, width: int) -> str:
        """x @ W + h @ R + biases."""
        w, r = self.weight(f"W{layer}{gate}", size, width), self.weight(f"R{layer}{gate}", self.width, width)
        b, d = self.weight(f"b{layer}{gate}", width), self.weight(f"d{layer}{gate}", 1, width)
        if self.product == "matmul":
            return self.node(
                "Add", d, self.node("Add", self.node("Add", self.node("MatMul", x, w), self.node("MatMul", h, r)), b)
            )
        w_rows = self.weight(f"Wt{layer}{gate}", width, size)
        first = self.node("Gemm", x, w_rows, b, transB=1)
        if self.product == "gemm":
            return self.node("Add", first, self.node("Gemm", h, r, d))
        return self.node("Gemm", h, r, first)

    def parts(self, value: str, count: int) -> list[str]:
        if self.gates == "split":
            first = self.with_ints("Split", value, "split", [self.width] * count, outputs=count, axis=1)
            return [first[:-1] + str(i) for i in range(count)]
        return [self.slice(value, 1, i * self.width, (i + 1) * self.width) for i in range(count)]

    def preactivations(self, layer: int, x: str, h: str, size: int, count: int) -> list[str]:
        if self.gates == "alone":
            return [self.sum(layer, x, h, size, f"g{i}", self.width) for i in range(count)]
        return self.parts(self.sum(layer, x, h, size, "", count * self.width), count)

    def lstm(self, layer: int, x: str, h: str, c: str, size: int) -> tuple[str, str]:
        f, o, g, i = self.preactivations(layer, x, h, size, 4)
        kept = self.node("Mul", self.node("Sigmoid", f), c)
        c = self.node("Add", kept, self.node("Mul", self.node("Tanh", g), self.node("Sigmoid", i)))
        return self.node("Mul", self.node("Sigmoid", o), self.node("Tanh", c)), c

    def step(self, x: str, index: int) -> str:
        axis = 0 if self.time_first else 1
        if self.steps == "gather":
            return self.node("Gather", x, self.const(f"t{index}", index, np.int64), axis=axis)
        if self.steps == "slice":
            part = self.slice(x, axis, index, index + 1)
        else:
            first = next((n.output[0] for n in self.nodes if n.op_type == "Split" and n.input[0] == x), None)
            first = first or self.with_ints("Split", x, "split", [1] * self.length, outputs=self.length, axis=axis)
            part = first[: first.rindex("_") + 1] + str(index)
        return self.with_ints("Squeeze", part, "axes", [axis])

    def proto(self) -> onnx.ModelProto:
        x_shape = [self.batch, self.length, self.size]
        if self.time_first:
            x_shape[:2] = x_shape[1::-1]
        steps = list(range(self.length))[:: -1 if self.backwards else 1]
        values, size = [self.step("x", t) for t in steps], self.size
        results: dict[str, str] = {}
        for layer in range(self.layers):
            h, c = self.states(layer)
            states = []
            for i, x in enumerate(values):
                h, c = self.lstm(layer, x, h, c, size)
                states.append(h)
                if i == 1:
                    results.update(middle=h, middle_c=c)
            values, size = states, self.width
        results.update(h=h, c=c)
        if "all" in self.returned:
            rows = [self.with_ints("Unsqueeze", v, "axes", [1]) for v in values]
            results["all"] = self.node("Concat", *rows, axis=1)
        for name in self.returned:
            self.nodes.append(helper.make_node("Neg", [results[name]], [f"out_{name}"]))
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)]
        if not self.zero_state:
            given += [
                helper.make_tensor_value_info(n, TensorProto.FLOAT, [self.batch, self.width]) for n in ("h0", "c0")
            ]
        out = [helper.make_tensor_value_info(f"out_{n}", TensorProto.FLOAT, None) for n in self.returned]
        graph = helper.make_graph(self.nodes, "g", given, out, list(self.constants.values()))
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", self.opset)])

    def states(self, layer: int) -> tuple[str, str]:
        if not self.zero_state:
            return "h0", "c0"
        if isinstance(self.batch, int):
            return self.const("zeros", np.zeros((self.batch, self.width))), "zeros"
        shape = self.node("Shape", "x")
        batch = self.node("Gather", shape, self.const("batch", [1 if self.time_first else 0], np.int64))
        zeros = self.node(
            "ConstantOfShape", self.node("Concat", batch, self.const("width", [self.width], np.int64), axis=0)
        )
        return zeros, zeros


def random_network(seed: int) -> Network:
    rng = np.random.default_rng(seed)

    def one(*choices: T) -> T:
        return choices[rng.integers(len(choices))]

    others = np.array(["c", "middle", "middle_c", "all"])
    return Network(
        opset=int(rng.integers(11, 24)),
        length=int(rng.integers(6, 9)),
        batch=("N", 1, 2)[rng.integers(3)],
        size=one(1, 3, 5),
        width=one(1, 3, 5),
        layers=one(1, 1, 2, 3),
        time_first=one(True, False),
        backwards=one(True, False),
        zero_state=one(True, False),
        gates=one("split", "slice", "alone"),
        product=one("matmul", "gemm", "chained"),
        steps=one("gather", "slice", "split"),
        returned=("h", *others[rng.permutation(4)[: rng.integers(3)]].tolist()),
        seed=seed,
    )
