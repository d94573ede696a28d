"""Small graphs for the tests of the partitioner."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from ortconv.ir.graph import Graph, Node
from ortconv.onnxio.load import from_proto
from ortconv.partition import Partitioning, Target, partition
from tests.arrays import i64

SCALE = np.float32(0.5)
ZERO = np.uint8(3)


def f32(*shape: int) -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def u8(*shape: int) -> np.ndarray:
    return np.full(shape, 7, np.uint8)


def i8(*shape: int) -> np.ndarray:
    return np.full(shape, 7, np.int8)


def make(inputs: str, nodes: str, outputs: str = "y", *, opset: int = 13, **constants: object) -> Graph:
    """A graph from ONNX's text form, output types inferred. `s` and `z` (uint8 3) are given; None leaves a constant out."""
    header = f'<ir_version: 8, opset_import: ["" : {max(opset, 7)}, "com.microsoft" : 1, "other" : 1]>'
    declared = ", ".join(f"float {name}" for name in outputs.split())
    proto = parse_model(f"{header} g ({inputs}) => ({declared}) {{ {nodes} }}")
    given = {"s": SCALE, "z": ZERO, **constants}
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in given.items():
        if name in read and array is not None:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for output in proto.graph.output:
        output.ClearField("type")
    graph = from_proto(proto).graph
    graph.opsets[""] = opset
    return graph


def node(graph: Graph, op: str) -> Node:
    """The last node of an operator."""
    return [n for n in graph if n.op == op][-1]


def taken_ops(result: Partitioning) -> list[list[str]]:
    return [[n.op for n in p.nodes] for p in result.partitions]


def messages(graph: Graph, op: str, **target: object) -> list[str]:
    """The objections to the last node of an operator, each as 'rule: message'."""
    found = partition(graph, Target(**target)).verdicts[node(graph, op)].objections  # type: ignore[arg-type]
    return [f"{o.rule}: {o.message}" for o in found]


def objections(inputs: str, nodes: str, options: Mapping[str, Any], **target: object) -> list[str]:
    """The objections to the last node; `options` are opset and constants of `make`, and fields of the target."""
    of_target = {name: value for name, value in options.items() if name in Target.__dataclass_fields__}
    outputs = " ".join(nodes.split(" = ")[0].replace(",", "").split())
    graph = make(inputs, nodes, outputs, **{name: v for name, v in options.items() if name not in of_target})
    return messages(graph, list(graph)[-1].op, **target, **of_target)


def check_advice(instead: Mapping[str, str], rows: Collection[str]) -> None:
    """Assert that advice against operators without a row names flags, passes and operators that there are."""
    from ortconv.cli.convert import command
    from ortconv.optimizer.catalog import entries

    flags = {option for parameter in command.params for option in parameter.opts}
    passes = {e.name for e in entries()}
    for op, advice in instead.items():
        assert op.rpartition(":")[2] not in rows, f"{op} is supported: delete its advice"
        assert set(re.findall(r"--[a-z-]+", advice)) <= flags
        assert set(re.findall(r"--disable-pass (\w+)", advice)) <= passes
        assert set(re.findall(r"\b[A-Z][a-z]+[A-Za-z]*", advice.partition("write it as ")[2])) <= set(rows)


def mnist(level: str) -> onnx.ModelProto:
    """The net of the ONNX zoo's MNIST, as exported by CNTK ("raw") or as the basic and extended levels leave it."""
    bodies = {
        "raw": """r = Reshape (w3, s3)
            c1 = Conv <auto_pad = "SAME_UPPER", kernel_shape = [5, 5]> (x, w1)  a1 = Add (c1, b1)  r1 = Relu (a1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            c2 = Conv <auto_pad = "SAME_UPPER", kernel_shape = [5, 5]> (p1, w2)  a2 = Add (c2, b2)  r2 = Relu (a2)
            p2 = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (r2)
            f = Reshape (p2, s2)  m = MatMul (f, r)  y = Add (m, b3)""",
        "basic": """c1 = Conv <auto_pad = "SAME_UPPER", kernel_shape = [5, 5]> (x, w1, b1)  r1 = Relu (c1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            c2 = Conv <auto_pad = "SAME_UPPER", kernel_shape = [5, 5]> (p1, w2, b2)  r2 = Relu (c2)
            p2 = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (r2)
            f = Reshape (p2, s2)  y = Gemm (f, w3, b3)""",
        "extended": """
            r1 = com.microsoft.FusedConv <auto_pad = "SAME_UPPER", kernel_shape = [5, 5], activation = "Relu"> (x, w1, b1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            r2 = com.microsoft.FusedConv <auto_pad = "SAME_UPPER", kernel_shape = [5, 5], activation = "Relu"> (p1, w2, b2)
            p2 = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (r2)
            f = Reshape (p2, s2)  y = Gemm (f, w3, b3)""",
    }
    raw = level == "raw"
    constants = {
        "w1": f32(8, 1, 5, 5), "b1": f32(8, 1, 1) if raw else f32(8), "w2": f32(16, 8, 5, 5),
        "b2": f32(16, 1, 1) if raw else f32(16), "w3": f32(16, 4, 4, 10) if raw else f32(256, 10), "s3": i64(256, 10),
        "s2": i64(1, 256), "b3": f32(1, 10) if raw else f32(10),
    }  # fmt: skip
    header = '<ir_version: 8, opset_import: ["" : 8, "com.microsoft" : 1]>'
    proto = parse_model(f"{header} g (float[1,1,28,28] x) => (float[1,10] y) {{ {bodies[level]} }}")
    read = {name for n in proto.graph.node for name in n.input}
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in constants.items() if name in read)
    return proto
