"""Folders of small models for batches, some of them with a trouble each."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import helper, numpy_helper

CUSTOM_OPS = Path(__file__).parent / "ortformat" / "custom_ops.c"

TEXTS = {
    "unsupported": """<ir_version: 3, opset_import: ["": 5]>
        g (float[1,3] x) => (float[1,3] y) { y = Relu (x) }""",
    "endless": """<ir_version: 8, opset_import: ["": 17]>
        g (float[1] x) => (float[1] y) {
            n = Constant <value = int64 {16000000}> () c = Constant <value = bool {1}> ()
            y = Loop (n, c, x) <body = b (int64 i, bool go, float[1] a) => (bool on, float[1] z) {
                on = Identity (go) z = Add (a, a) }> }""",
    "huge": """<ir_version: 8, opset_import: ["": 17]>
        g (float[1] x) => (float[N] y) {
            s = Constant <value = int64[1] {1099511627776}> () c = ConstantOfShape (s) y = Add (c, x) }""",
    "aborts": """<ir_version: 8, opset_import: ["": 17, "test.ops": 1]>
        g (float[2] x) => (float[2] y) { a = Relu (x) y = test.ops.Abort (a) }""",
}

REASONS = {
    "corrupt": "not a valid ONNX model",
    "unsupported": "5",
    "endless": "the time limit",
    "huge": "4096 GiB",
    "aborts": "SIGABRT",
    "unreadable": "No such file",
}
"""What the message about each trouble says."""


def good(number: int) -> bytes:
    """A perceptron of two layers with weights and sizes of its own."""
    rng = np.random.default_rng(number)
    hidden = 4 + number % 29
    first, second = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, hidden), (hidden, 3)))
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("MatMul", ["q", "b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, ["batch", size]) for name, size in (("x", 8), ("y", 3)))
    weights = [numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return bytes(proto.SerializeToString())


def write(path: Path, trouble: str) -> None:
    """A model file with a trouble."""
    if trouble == "corrupt":
        path.write_bytes(good(0)[:-40] + bytes(range(60)))
    elif trouble == "unreadable":
        os.symlink("missing", path)
    else:
        path.write_bytes(onnx.parser.parse_model(TEXTS[trouble]).SerializeToString())


def folder_of(folder: Path, count: int, troubles: list[str]) -> dict[str, str]:
    """Write `count` models, of which those with a trouble are spread among the others; the troubles by file name."""
    folder.mkdir(parents=True)
    places = np.linspace(0, count - 1, len(troubles)).astype(int).tolist() if troubles else []
    found: dict[str, str] = {}
    for number in range(count):
        path = folder / f"m{number:04}.onnx"
        if places and number == places[0]:
            places.pop(0)
            found[path.name] = troubles[len(found)]
            write(path, found[path.name])
        else:
            path.write_bytes(good(number))
    return found


def custom_ops(folder: Path) -> Path | None:
    """A library with the operators of `custom_ops.c`; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    built = folder / "ops.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", built, CUSTOM_OPS], check=True)
    return built
