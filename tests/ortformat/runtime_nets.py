"""Models for Runtime style, each with the fusions that onnxruntime saves for it, and what onnxruntime makes of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from qdq_net import PER_CHANNEL, Net
from rewriting import parse

from ortconv.ortformat.runtime import NO_NODE, records
from ortconv.ortformat.verify import decode

PICTURE = (1, 4, 6, 6)


def unary(op: str, *shape: int, opset: int = 13, **attrs: Any) -> Callable[[str], Net]:
    def net(kind: str) -> Net:
        made = Net(kind, opset)
        return made.quantized(made.add(op, made.activations(*(shape or PICTURE)), **attrs))

    return net


def mover(op: str, *constants: Any, opset: int = 13, **attrs: Any) -> Callable[[str], Net]:
    def net(kind: str) -> Net:
        made = Net(kind, opset)
        inputs = [made.const(np.asarray(c)) if c is not None else "" for c in constants]
        return made.quantized(made.add(op, made.activations(*PICTURE), *inputs, **attrs), 0.03, 0.4)

    return net


def binary(op: str, **attrs: Any) -> Callable[[str], Net]:
    def net(kind: str) -> Net:
        made = Net(kind)
        inputs = [made.activations(*PICTURE, scale=scale) for scale in (0.03, 0.02)]
        return made.quantized(made.add(op, *inputs, **attrs))

    return net


def where(kind: str) -> Net:
    made = Net(kind)
    condition = made.input(*PICTURE, kind=TensorProto.BOOL)
    return made.quantized(made.add("Where", condition, made.activations(*PICTURE), made.activations(*PICTURE)))


def split(kind: str) -> Net:
    made = Net(kind)
    first = made.add("Split", made.activations(1, 6), made.const(np.array([2, 4])), outputs=2, axis=1)
    second = f"t{int(first[1:]) + 1}"
    return made.quantized(first, 0.03, 0.4).quantized(second, 0.03, 0.4)


def arg_max(kind: str) -> Net:
    made = Net(kind)
    return made.returned(made.add("ArgMax", made.activations(1, 6), axis=1))


def conv(
    scale: Any = 0.02, weights: str = "int8", biased: bool = False, act: str = "", at: float = 0.5
) -> Callable[[str], Net]:
    def net(kind: str) -> Net:
        made = Net(kind)
        inputs = [made.activations(*PICTURE), made.weights(6, 4, 3, 3, scale=scale, kind=weights)]
        if biased:
            unit, axis = 0.03 * np.asarray(scale), {"axis": 0} if np.ndim(scale) else {}
            codes = made.const(np.arange(6, dtype=np.int32) * 10)
            inputs.append(made.dq(codes, unit, np.zeros_like(unit), "int32", **axis))
        y = made.add("Conv", *inputs)
        if act == "Relu":
            y = made.add("Relu", y)
        elif act == "Clip":
            y = made.add("Clip", y, made.const(np.float32(0)), made.const(np.float32(6)))
        return made.quantized(y, 6 / 255, at)

    return net


def product(
    op: str, *, to_float: bool = False, biased: bool = False, relu: bool = False, **attrs: Any
) -> Callable[[str], Net]:
    def net(kind: str) -> Net:
        made = Net(kind)
        inputs = [made.activations(3, 8), made.weights(8, 6, axis=1)]
        if biased:
            inputs.append(made.dq(made.const(np.arange(6, dtype=np.int32) * 10), 0.03 * 0.02, 0, "int32"))
        y = made.add(op, *inputs, **attrs)
        if relu:
            y = made.add("Relu", y)
        return made.returned(y) if to_float else made.quantized(y, at=0.0 if relu else 0.5)

    return net


def shared(kind: str) -> Net:
    made = Net(kind)
    x = made.activations(*PICTURE)
    made.returned(x)
    made.quantized(made.add("LeakyRelu", x))
    return made.quantized(made.add("Add", x, x))


QUANTIZED: dict[str, Callable[[str], Net]] = {
    "average_pool": unary("AveragePool", kernel_shape=[2, 2]),
    "global_average_pool": unary("GlobalAveragePool"),
    "leaky_relu": unary("LeakyRelu", alpha=0.2),
    "sigmoid": unary("Sigmoid"),
    "softmax": unary("Softmax", 1, 300, axis=-1),
    "transpose": mover("Transpose", perm=[0, 2, 3, 1]),
    "reshape": mover("Reshape", [1, -1]),
    "gather": mover("Gather", [0, 1], axis=1),
    "slice": mover("Slice", [0], [2], [1]),
    "max_pool": mover("MaxPool", kernel_shape=[2, 2]),
    "max_pool_11": mover("MaxPool", opset=11, kernel_shape=[2, 2]),
    "reduce_max": mover("ReduceMax", axes=[2]),
    "reduce_min": mover("ReduceMin", axes=[2]),
    "depth_to_space": mover("DepthToSpace", blocksize=2),
    "resize": mover("Resize", None, np.array([1, 1, 2, 2], np.float32), mode="nearest",
                    coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "add": binary("Add"),
    "mul": binary("Mul"),
    "concat": binary("Concat", axis=1),
    "sub": binary("Sub"),
    "where": where,
    "arg_max": arg_max,
    "conv": conv(),
    "conv_per_channel": conv(PER_CHANNEL, biased=True),
    "conv_unsigned_weights": conv(weights="uint8"),
    "conv_redundant_relu": conv(act="Relu", at=0.0, biased=True),
    "conv_relu": conv(act="Relu"),
    "conv_redundant_clip": conv(act="Clip", at=0.0),
    "conv_clip": conv(act="Clip"),
    "gemm": product("Gemm", transB=0),
    "gemm_bias": product("Gemm", biased=True),
    "gemm_beta": product("Gemm", biased=True, beta=2.0),
    "gemm_relu": product("Gemm", biased=True, relu=True),
    "gemm_to_float": product("Gemm", to_float=True, biased=True),
    "shared": shared,
}  # fmt: skip

UNREPLAYABLE: dict[str, Callable[[str], Net]] = {
    "split": split,
    "mat_mul": product("MatMul"),
    "mat_mul_relu": product("MatMul", relu=True),
    "mat_mul_to_float": product("MatMul", to_float=True),
}
"""For these onnxruntime 1.31 saves records without the operators that they make, and refuses them when it replays."""

FLOAT = {
    "activations": parse("""g (float[1,3,8,8] x, float[2,3,3,3] w, float[2,2,3,3] v) => (float[1,2,1,1] y) {
        a = Conv (x, w)  b = Relu (a)  c = Conv (b, v)  y = HardSigmoid <alpha = 0.3> (c) }"""),
    "clips": parse("""g (float[1,3,8,8] x, float[2,3,3,3] w, float[2,2,3,3] v) => (float[1,2,1,1] y)
        <float l = {0}, float h = {6}> { a = Conv (x, w)  b = Clip (a, l, h)  c = Conv (b, v)  y = Clip (c, , h) }"""),
    "none": parse("""g (float[1,3,8,8] x, float[2,3,3,3] w, float h) => (float[1,2,6,6] y, float[1,2,6,6] c) {
        a = Conv (x, w)  b = Clip (a, , h)  c = Add (a, b)  d = Conv (x, w)  y = Softplus (d) }"""),
    "branches": parse("""g (bool c, float[1,3,8,8] x, float[2,3,3,3] w) => (float[1,2,6,6] y) {
        y = If (c) <then_branch = t () => (float[1,2,6,6] p) { s = Conv (x, w)  p = Relu (s) },
                    else_branch = e () => (float[1,2,6,6] q) { u = Conv (x, w)  r = Tanh (u)  q = Neg (r) }> }"""),
}  # fmt: skip


# ---------------------------------------------------------------------- onnxruntime


def save_by_onnxruntime(proto: onnx.ModelProto, path: Path, platform: str, mode: str = "save") -> None:
    """What its converter does for Runtime style: once with `save`, once with `apply`."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(path)
    settings.add_session_config_entry("session.save_model_format", "ORT")
    settings.add_session_config_entry("session.qdqisint8allowed", "1" if platform == "arm" else "0")
    settings.add_session_config_entry("optimization.minimal_build_optimizations", mode)
    onnxruntime.InferenceSession(
        proto.SerializeToString(), settings, ["CPUExecutionProvider"], disabled_optimizers=["NchwcTransformer"]
    )


def session(path: Path, *, replaying: bool) -> tuple[onnxruntime.InferenceSession, Counter[str]]:
    """A session of an .ort file, and the operators that it really runs."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.enable_saved_runtime_optimizations", str(int(replaying)))
    settings.add_session_config_entry("session.save_model_format", "ORT")
    settings.optimized_model_filepath = str(path.with_suffix(f".loaded{replaying}"))
    made = onnxruntime.InferenceSession(str(path), settings, ["CPUExecutionProvider"])
    loaded = decode(Path(settings.optimized_model_filepath).read_bytes())
    return made, Counter(ops(loaded.model.graph))


def ops(graph: Any) -> list[str]:
    found = []
    for node in graph.nodes or ():
        found.append(f"{node.domain}:{node.op_type}" if node.domain else node.op_type)
        for attribute in node.attributes or ():
            found += ops(attribute.g) if attribute.g is not None else []
    return found


def saved(path: Path) -> list[tuple[Any, ...]]:
    """All records of an .ort file, nodes by what they read or make instead of by number."""
    return sorted(_saved(decode(path.read_bytes()).model.graph), key=str)


_RENAMED = {"1DQ_CPU_Softmax": "1DQ_CPU"}
"""What onnxruntime 1.32 calls actions by other names, which older ones refuse. It takes the older name, too."""


def _saved(graph: Any) -> list[tuple[Any, ...]]:
    nodes = {node.index: node for node in graph.nodes or ()}
    found = []
    for optimizer, record in records(graph):
        group = record.nodes_to_optimize_indices
        names = tuple(None if i == NO_NODE else _name(nodes[i]) for i in group.node_indices)
        action = _RENAMED.get(record.action_id, record.action_id)
        found.append((optimizer, action, names, *group[1:], tuple(record.produced_op_ids or ())))
    for node in nodes.values():
        for attribute in node.attributes or ():
            found += _saved(attribute.g) if attribute.g is not None else []
    return found


def _name(node: Any) -> str:
    if node.op_type == "DequantizeLinear":
        return f"DequantizeLinear({node.inputs[0]})"
    return f"{node.op_type} -> {node.outputs[0]}"


def type_strings(path: Path) -> set[str]:
    return {entry.op_id for entry in decode(path.read_bytes()).kernel_type_str_resolver.op_kernel_type_str_args}
