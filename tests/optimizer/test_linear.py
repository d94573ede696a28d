"""Optimizing takes time in proportion to the number of nodes, whatever the graph looks like. Calls are counted, not seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from unrolled import Network

from ortconv.onnxio.load import from_proto
from ortconv.pipeline import optimize
from tests.batches import slow_except
from tests.counting import calls

Step = Callable[[int, str], Sequence[NodeProto]]
"""What follows a value at a place in a chain; the last node's first output is the next value."""

FLOATS = {
    "zero": 0.0,
    "one": 1.0,
    "scale": 0.1,
    "four": [1.0, 2.0, 3.0, 4.0],
    "w": np.ones((4, 4, 1, 1)),
    "m": np.eye(4),
}
INTEGERS = {"flat": [16], "square": [1, 4, 2, 2], "first": 0, "axis": [0], "rest": [4, 2, 2]}
CONSTANTS = [
    *(numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in FLOATS.items()),
    *(numpy_helper.from_array(np.asarray(v, np.int64), k) for k, v in INTEGERS.items()),
    numpy_helper.from_array(np.uint8(128), "point"),
]


def node(op: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return helper.make_node(op, inputs.split(), output.split(), name=f"n_{output}", **attributes)


def model(nodes: Sequence[NodeProto], outputs: Sequence[str], x: Sequence[int | str] = (1, 4, 2, 2)) -> onnx.ModelProto:
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, x),
        helper.make_tensor_value_info("c", TensorProto.BOOL, ()),
    ]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, declared, CONSTANTS), opset_imports=[helper.make_opsetid("", 13)]
    )
    proto.ir_version = 8
    return proto


def chain(step: Step, x: Sequence[int | str] = (1, 4, 2, 2)) -> Callable[[int], onnx.ModelProto]:
    def build(size: int) -> onnx.ModelProto:
        nodes: list[NodeProto] = []
        value, places = "x", count()
        while len(nodes) < size:
            nodes += step(next(places), value)
            value = nodes[-1].output[0]
        return model([*nodes, node("Neg", value, "y")], ["y"], x)

    return build


def two(first: NodeProto, op: str, inputs: str = "{}", **attributes: object) -> list[NodeProto]:
    made = first.output[0]
    return [first, node(op, inputs.format(made), f"{made}_", **attributes)]


def branches(i: int, v: str) -> list[NodeProto]:
    def graph(name: str, nodes: list[NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)])

    then = graph(f"t{i}", [node("Identity", v, f"a{i}"), node("Abs", f"a{i}", f"t{i}")])
    other = graph(f"e{i}", [node("Exp", v, f"e{i}")])
    return two(node("If", "c", f"v{i}", then_branch=then, else_branch=other), "Tanh")


def shape_arithmetic(i: int, v: str) -> list[NodeProto]:
    return [
        node("Shape", v, f"s{i}"),
        node("Gather", f"s{i} first", f"g{i}"),
        node("Unsqueeze", f"g{i} axis", f"u{i}"),
        node("Concat", f"u{i} rest", f"c{i}", axis=0),
        node("Reshape", f"{v} c{i}", f"v{i}"),
    ]


def cell(i: int, v: str) -> list[NodeProto]:
    return [
        node("MatMul", f"{v} m", f"p{i}"),
        node("Add", f"p{i} four", f"a{i}"),
        node("Sigmoid", f"a{i}", f"s{i}"),
        node("Tanh", f"a{i}", f"t{i}"),
        node("Mul", f"s{i} t{i}", f"q{i}"),
        node("Add", f"q{i} {v}", f"v{i}"),
    ]


def unrolled_lstm(size: int) -> onnx.ModelProto:
    return Network(length=max(size // 16, 2)).proto()


def residual(i: int, v: str) -> list[NodeProto]:
    return [
        node("Conv", f"{v} w four", f"c{i}"),
        node("BatchNormalization", f"c{i} four four four four", f"n{i}"),
        node("Add", f"{v} n{i}", f"a{i}"),
        node("Relu", f"a{i}", f"v{i}"),
    ]


def channels_last(i: int, v: str) -> list[NodeProto]:
    return [
        node("Transpose", v, f"t{i}", perm=[0, 3, 1, 2]),
        node("Conv", f"t{i} w", f"c{i}"),
        node("Transpose", f"c{i}", f"u{i}", perm=[0, 2, 3, 1]),
        node("Add", f"u{i} four", f"a{i}"),
        node("Relu", f"a{i}", f"v{i}"),
    ]


def quantized(i: int, v: str) -> list[NodeProto]:
    moved = [node("Reshape", f"d{i} flat", f"f{i}"), node("Reshape", f"f{i} square", f"v{i}")]
    pair = [node("QuantizeLinear", f"{v} scale point", f"q{i}"), node("DequantizeLinear", f"q{i} scale point", f"d{i}")]
    return pair + (moved if i % 2 else [node("Relu", f"d{i}", f"v{i}")])


def wide(*steps: Callable[[int], NodeProto]) -> Callable[[int], onnx.ModelProto]:
    """Many short chains from x; each ends in a value `b<i>`, half of which the graph returns."""

    def build(size: int) -> onnx.ModelProto:
        places = range(size // len(steps))
        nodes = [step(i) for i in places for step in steps]
        return model(
            [*nodes, node("Sum", " ".join(f"b{i}" for i in places), "y")], ["y", *(f"b{i}" for i in places[::2])]
        )

    return build


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "Identity": chain(lambda i, v: [node("Identity", v, f"v{i}")]),
    "Relu": chain(lambda i, v: [node("Relu", v, f"v{i}")]),
    "Transpose": chain(lambda i, v: [node("Transpose", v, f"v{i}", perm=[1, 2, 3, 0])]),
    "Transpose, Relu": chain(lambda i, v: two(node("Transpose", v, f"v{i}", perm=[0, 2, 3, 1]), "Relu")),
    "Reshape": chain(lambda i, v: [node("Reshape", f"{v} {('flat', 'square')[i % 2]}", f"v{i}")]),
    "Add and Mul that do nothing": chain(lambda i, v: two(node("Add", f"{v} zero", f"v{i}"), "Mul", "one {}")),
    "Add": chain(lambda i, v: [node("Add", f"{v} scale", f"v{i}")]),
    "Cast": chain(lambda i, v: two(node("Cast", v, f"v{i}", to=11), "Cast", to=1)),
    "Add, whose other operand all share": chain(lambda i, v: two(node("Add", f"{v} x", f"v{i}"), "Tanh")),
    "Add of a folded constant": chain(lambda i, v: two(node("Neg", "scale" if v == "x" else v, f"v{i}"), "Exp")),
    "shape arithmetic": chain(shape_arithmetic, ("N", 4, 2, 2)),
    "unrolled cells": chain(cell, (1, 4)),
    "unrolled LSTM": unrolled_lstm,
    "residual blocks": chain(residual),
    "channels last": chain(channels_last, (1, 2, 2, 4)),
    "quantized": chain(quantized),
    "If": chain(branches),
    "Identities of one value": wide(lambda i: node("Identity", "x", f"a{i}"), lambda i: node("Tanh", f"a{i}", f"b{i}")),
    "equal nodes": wide(lambda i: node("Exp", "x", f"a{i}"), lambda i: node("Elu", f"a{i}", f"b{i}", alpha=1.0 + i)),
    "Transposes of one value": wide(
        lambda i: node("Transpose", "x", f"t{i}", perm=[0, 2, 3, 1]),
        lambda i: node("Elu", f"t{i}", f"e{i}", alpha=1.0 + i),
        lambda i: node("Transpose", f"e{i}", f"b{i}", perm=[0, 3, 1, 2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("small", [60, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", slow_except(["Add", "Transpose, Relu"], GRAPHS))
def test_cost_per_node_does_not_grow(name: str, small: int) -> None:
    optimize(from_proto(GRAPHS[name](12)))
    costs = []
    for size in (small, 4 * small):
        loaded = from_proto(GRAPHS[name](size))
        costs.append(calls(lambda loaded=loaded: optimize(loaded)) / size)
    assert costs[1] <= 1.1 * costs[0], [round(c) for c in costs]
