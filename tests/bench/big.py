"""Big models: time and memory per node, what is refused, and memory beside large weights.

python tests/bench/big.py [--full]

Whole processes without validation; what an empty process takes is subtracted. --full adds a million nodes, which no .ort file can
hold, and 1.9 GB of weights instead of 0.5 GB. Memory is what is resident, pages of mapped files included; the goal is 0.3 of the
weights, with validation as well.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from _processes import CONVERT, Cost, cost, row
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save_model

BLOCK = ("MatMul", "Add", "Relu", "Transpose", "Sigmoid", "Transpose", "Shape", "Reshape", "Tanh", "Add")
"""The operators of a block. It multiplies by a weight, moves axes, reshapes to a computed shape, and adds its input."""

SIDE = 4096
"""Rows and columns of a large weight."""


def many_nodes(count: int, path: Path) -> None:
    """Write a model of this number of nodes, a multiple of 10, and a tenth of that number of small weights."""
    random = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []
    block = "x"
    for number in range(count // len(BLOCK)):
        own = [f"{op}{number}_{place}" for place, op in enumerate(BLOCK)]
        weights.append(numpy_helper.from_array(random.standard_normal((4, 4), np.float32), f"weight{number}"))
        weights.append(numpy_helper.from_array(random.standard_normal(4, np.float32), f"bias{number}"))
        seconds = {0: f"weight{number}", 1: f"bias{number}", 7: own[6], 9: block}
        firsts = [block, *own[:6], own[5], *own[7:9]]
        for place, op in enumerate(BLOCK):
            reads = [firsts[place], *([seconds[place]] if place in seconds else [])]
            perm = {"perm": [1, 0]} if op == "Transpose" else {}
            nodes.append(helper.make_node(op, reads, [own[place]], name=own[place], **perm))
        block = own[-1]
    save_model(_model(nodes, weights, block, ["n", 4]), path)


def large_weights(size: int, path: Path) -> None:
    """Write a model with about this number of bytes of weights, which lie in a file beside it."""
    random, one = np.random.default_rng(0), SIDE * SIDE * 4
    nodes, weights, last = [], [], "x"
    with path.with_suffix(".data").open("wb") as file:
        for number in range(max(1, size // one)):
            file.write((random.standard_normal((SIDE, SIDE), np.float32) / 64).tobytes())
            weight = TensorProto(name=f"weight{number}", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
            weight.data_location = TensorProto.EXTERNAL
            for key, value in (("location", path.with_suffix(".data").name), ("offset", number * one), ("length", one)):
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
            nodes.append(helper.make_node("MatMul", [last, weight.name], [f"product{number}"]))
            nodes.append(helper.make_node("Tanh", [f"product{number}"], [last := f"tanh{number}"]))
    path.write_bytes(_model(nodes, weights, last, [1, SIDE]).SerializeToString())


def _model(nodes: list[NodeProto], weights: list[TensorProto], last: str, shape: list[int | str]) -> ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", last)]
    graph = helper.make_graph(nodes, "big", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def converted(path: Path, *more: str, may_fail: bool = False) -> Cost:
    return cost([*CONVERT, str(path.parent), str(path), *(more or ("--no-validate",))], may_fail=may_fail)


def nodes_table(folder: Path, counts: list[int]) -> None:
    path = folder / "nodes.onnx"
    many_nodes(10, path)
    base = min(converted(path) for _ in range(3))
    row("nodes", "seconds", "per node", "memory", "per node", "")
    for count in counts:
        many_nodes(count, path)
        found = min(converted(path, may_fail=True) for _ in range(3 if count < 10_000 else 1))
        seconds, memory = found.seconds - base.seconds, found.memory - base.memory
        cells = (
            f"{seconds:.2f} s",
            f"{seconds / count * 1e6:.1f} us",
            f"{memory:.0f} MB",
            f"{memory * 2**20 / count:.0f} B",
        )
        row(f"{count:,}", *cells, "refused" if found.code else "")


def weights_table(folder: Path, size: int) -> None:
    path = folder / "weights.onnx"
    many_nodes(10, folder / "nodes.onnx")
    base = converted(folder / "nodes.onnx")
    large_weights(size, path)
    held = os.path.getsize(path.with_suffix(".data")) / 2**20
    row(f"weights of {held:.0f} MB", "seconds", "memory", "of weights")
    ways = {
        "without validation": (),
        "validated on numpy": ("--validate-on", "numpy"),
        "validated on both": ("--validate-on", "both"),
    }
    for what, more in ways.items():
        found = converted(path, *more)
        memory = found.memory - base.memory
        row(what, f"{found.seconds:.1f} s", f"{memory:.0f} MB", f"x{memory / held:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of big models.")
    parser.add_argument("--full", action="store_true", help="a million nodes and 1.9 GB of weights, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nodes_table(Path(folder), [3_000, 100_000, *([1_000_000] if options.full else [])])
        weights_table(Path(folder), 1_900_000_000 if options.full else 500_000_000)


if __name__ == "__main__":
    main()
