"""Quantized models as onnxruntime's own quantizer makes them, and flips of single codes inside of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.arrays import normal
from tests.unoptimized import session

SHAPE = (1, 4, 12, 12)


def all_values(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value of a model, by its name."""
    watched = onnx.ModelProto.FromString(model.SerializeToString())
    known = {o.name for o in watched.graph.output}
    made = [name for node in watched.graph.node for name in node.output if name and name not in known]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    runner = session(watched)
    names = [o.name for o in runner.get_outputs()]
    return {**feeds, **dict(zip(names, runner.run(names, dict(feeds)), strict=True))}


def quantized(folder: Path, per_channel: bool, seed: int = 0) -> Path:
    """A network of convolutions of all kinds, sums, products and a classifier: in QDQ form, with random weights."""

    class Images(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter([{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(8)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    rng = np.random.default_rng(seed)
    plain, path = folder / "float.onnx", folder / f"quantized{seed}{per_channel:d}.onnx"
    onnx.save(_network(rng), plain)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(plain, path, Images(), quant_format=QuantFormat.QDQ, per_channel=per_channel, **kinds)
    return path


def _network(rng: np.random.Generator) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def add(op: str, *inputs: str | np.ndarray, **attrs: object) -> str:
        names = []
        for value in inputs:
            if not isinstance(value, str):
                weights.append(numpy_helper.from_array(value, f"w{len(weights)}"))
                value = weights[-1].name
            names.append(value)
        nodes.append(helper.make_node(op, names, [f"v{len(nodes)}"], **attrs))
        return str(nodes[-1].output[0])

    def conv(x: str, depth: int, out: int, window: int, relu: bool = True, group: int = 1) -> str:
        filter = rng.standard_normal((out, depth // group, window, window)) / np.sqrt(window**2 * depth / group)
        pads = [window // 2] * 4
        y = add("Conv", x, filter.astype(np.float32), normal(rng, out) / 4, group=group, pads=pads)
        return add("Relu", y) if relu else y

    a = conv(conv("x", 4, 16, 3), 16, 16, 3, group=16)
    b = add("Add", conv(a, 16, 16, 1, relu=False), a)
    c = conv(add("Mul", b, conv(b, 16, 16, 1)), 16, 8, 3, relu=False)
    d = add("Flatten", add("Concat", c, conv(b, 16, 8, 1), axis=1))
    size = 16 * SHAPE[2] * SHAPE[3]
    nodes.append(helper.make_node("Gemm", [d, "fc", "fc_bias"], ["y"], transB=1))
    weights.append(numpy_helper.from_array(normal(rng, 64, size) / np.float32(np.sqrt(size)), "fc"))
    weights.append(numpy_helper.from_array(normal(rng, 64), "fc_bias"))
    ends = [helper.make_tensor_value_info(*one) for one in (("x", TensorProto.FLOAT, SHAPE), ("y", 1, (1, 64)))]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def results_with_flips(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    rates: Mapping[str, float],
    trials: int,
) -> Iterator[np.ndarray]:
    """The first output, while random elements of some uint8 values are one more or one less: a share of `rates`."""
    runner = session(_with_flips(model, rates))
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        flips = {
            f"{name}/flip": rng.choice(np.array([-1, 0, 1], np.int32), shapes[name], p=[rate / 2, 1 - rate, rate / 2])
            for name, rate in rates.items()
        }
        yield runner.run(None, {**feeds, **flips})[0]


def _with_flips(model: onnx.ModelProto, names: Mapping[str, float]) -> onnx.ModelProto:
    """Between some uint8 values and their readers: a sum with another input of the model, within 0 and 255."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    limits = {"flip/low": 0, "flip/high": 255}
    graph.initializer.extend(numpy_helper.from_array(np.int32(limit), name) for name, limit in limits.items())
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for at, y in enumerate(node.output):
            if y in names:
                node.output[at] = f"{y}/exact"
                graph.input.append(helper.make_tensor_value_info(f"{y}/flip", TensorProto.INT32, None))
                nodes += [
                    helper.make_node("Cast", [f"{y}/exact"], [f"{y}/wide"], to=TensorProto.INT32),
                    helper.make_node("Add", [f"{y}/wide", f"{y}/flip"], [f"{y}/sum"]),
                    helper.make_node("Clip", [f"{y}/sum", *limits], [f"{y}/limited"]),
                    helper.make_node("Cast", [f"{y}/limited"], [y], to=TensorProto.UINT8),
                ]
    del graph.node[:]
    graph.node.extend(nodes)
    return model
