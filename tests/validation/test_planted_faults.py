"""Wrong rewrites of one network in float32, float16 and quantized form: validation finds each of them on each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from ortconv.errors import MismatchError
from ortconv.inputs.budget import Budget
from ortconv.ir.graph import Graph, Node
from ortconv.ir.tensor import Tensor
from ortconv.models import load
from ortconv.ortformat.precision import insert_casts
from ortconv.ortformat.writer import write
from ortconv.validation.reference import Reference
from ortconv.validation.source_runs import ValidationSettings
from ortconv.validation.validate import validate

LAYERS = {
    "conv": "Conv<pads = [1, 1, 1, 1]>(x, w1, b1)",
    "relu": "Relu(conv)",
    "pool": "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(relu)",
    "second": "Conv<pads = [1, 1, 1, 1]>(pool, w2, b2)",
    "residual": "Add(second, pool)",
    "difference": "Sub(residual, k)",
    "leaky": "LeakyRelu<alpha = 0.1>(difference)",
    "turned": "Transpose<perm = [0, 2, 3, 1]>(leaky)",
    "norm": "LayerNormalization<axis = -1, epsilon = 0.05>(turned, gain, shift)",
    "gate": "HardSigmoid<alpha = 0.2, beta = 0.5>(norm)",
    "ratio": "Div(norm, q)",
    "gated": "Mul(gate, ratio)",
    "joined": "Concat<axis = 3>(gated, norm)",
    "flat": "Flatten<axis = 1>(joined)",
    "dense": "Gemm<transB = 1>(flat, w3, b3)",
    "clipped": "Clip(dense, low, high)",
    "shares": "Softmax<axis = 1>(clipped)",
    "means": "ReduceMean<axes = [1, 2], keepdims = 0>(gated)",
}
SCALES = {
    "shares": 1 / 256,
    "gate": 1 / 200,
    "norm": 0.023,
    "gated": 0.0171,
    "joined": 0.0232,
    "means": 0.0067,
    "dense": 0.027,
    "clipped": 0.0163,
}
"""The scales of quantized values, 0.04 for the others: no two of them make ties of each other's values."""

FORMS = ("float32", "float16", "quantized")


def constants(dtype: type) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {
        "w1": (4, 3, 3, 3),
        "b1": (4,),
        "w2": (4, 4, 3, 3),
        "b2": (4,),
        "k": (1, 4, 1, 1),
        "w3": (10, 128),
        "b3": (10,),
    }
    made = {name: rng.standard_normal(shape) * (0.3 if name[0] == "w" else 0.5) for name, shape in shapes.items()}
    made["w3"] = made["w3"] * 0.6
    made |= {"gain": rng.uniform(0.5, 1.5, 4), "shift": rng.standard_normal(4) * 0.3, "q": rng.uniform(1.2, 2.5, 4)}
    made |= {"low": np.float64(-2), "high": np.float64(2)}
    return {name: np.asarray(value).astype(dtype) for name, value in made.items()}


def network(path: Path, form: str) -> Path:
    """The network; in quantized form every value goes through 8 bits."""
    dtype = "float16" if form == "float16" else "float"
    lines, extra = [], {}
    for name, text in LAYERS.items():
        if form != "quantized" or name in ("flat", "turned"):
            lines.append(f"{name} = {text}")
            continue
        extra[f"{name}_scale"] = np.float32(SCALES.get(name, 0.04))
        zero = "zero" if name == "shares" else "middle"
        lines.append(f"{name}_exact = {text}")
        lines.append(f"{name}_codes = QuantizeLinear({name}_exact, {name}_scale, {zero})")
        lines.append(f"{name} = DequantizeLinear({name}_codes, {name}_scale, {zero})")
    if form == "quantized":
        extra |= {"zero": np.uint8(0), "middle": np.uint8(128)}
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g ({dtype}[batch, 3, 8, 8] x) => ({dtype}[batch, 10] shares, {dtype}[batch, 4] means) {{ {" ".join(lines)} }}"""
    model = onnx.parser.parse_model(text)
    for name, value in (constants(np.float16 if form == "float16" else np.float32) | extra).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, path)
    return path


def node(graph: Graph, name: str) -> Node:
    """The node that computes a layer."""
    return next(n for n in graph if any(v is not None and v.name in (name, f"{name}_exact") for v in n.outputs))


def swap(name: str) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        found = node(graph, name)
        first, second = found.inputs[:2]
        graph.set_input(found, 0, second)
        graph.set_input(found, 1, first)

    return change


def attribute(name: str, **values: object) -> Callable[[Graph], None]:
    return lambda graph: node(graph, name).attrs.update(values)  # type: ignore[arg-type]


def constant(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Graph], None]:
    def apply(graph: Graph) -> None:
        value = graph.initializers[name]
        assert value.constant is not None
        old = value.constant.numpy()
        value.const = Tensor.of(np.asarray(change(old.astype(np.float64))).astype(old.dtype))

    return apply


def drop(name: str) -> Callable[[Graph], None]:
    """Leave a layer out: its readers read its first input."""

    def change(graph: Graph) -> None:
        found = node(graph, name)
        value = found.inputs[0]
        assert value is not None
        graph.replace(found.out, value)
        graph.remove(found)

    return change


def become(name: str, op: str, **attrs: object) -> Callable[[Graph], None]:
    def change(graph: Graph) -> None:
        found = node(graph, name)
        found.op = op
        found.attrs = dict(attrs)  # type: ignore[arg-type]

    return change


def channel(index: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def apply(value: np.ndarray) -> np.ndarray:
        value = value.copy()
        value[index] = change(value[index])
        return value

    return apply


FAULTS: Mapping[str, Callable[[Graph], None]] = {
    "operands of Sub swapped": swap("difference"),
    "operands of Div swapped": swap("ratio"),
    "inputs of Concat swapped": swap("joined"),
    "bias of a Conv lost": constant("b1", lambda v: v * 0),
    "bias of the other Conv lost": constant("b2", lambda v: v * 0),
    "bias of Gemm lost": constant("b3", lambda v: v * 0),
    "bias with the wrong sign": constant("b2", lambda v: -v),
    "bias of one channel lost": constant("b2", channel(2, lambda v: v * 0)),
    "Relu dropped": drop("relu"),
    "LeakyRelu dropped": drop("leaky"),
    "LeakyRelu taken for Relu": become("leaky", "Relu"),
    "wrong slope": attribute("leaky", alpha=0.01),
    "residual dropped": drop("residual"),
    "MaxPool taken for AveragePool": become("pool", "AveragePool", kernel_shape=(2, 2), strides=(2, 2)),
    "padding off by one": attribute("conv", pads=(0, 0, 2, 2)),
    "padding of one axis off by one": attribute("second", pads=(1, 0, 1, 2)),
    "kernel flipped": constant("w2", lambda v: v[:, :, ::-1, ::-1]),
    "kernel transposed": constant("w1", lambda v: v.transpose(0, 1, 3, 2)),
    "channels in another order": constant("w2", lambda v: v[:, [1, 0, 2, 3]]),
    "outputs in another order": constant("w1", lambda v: v[[0, 2, 1, 3]]),
    "epsilon too large": attribute("norm", epsilon=0.5),
    "gain of a norm lost": constant("gain", lambda v: v * 0 + 1),
    "shift of a norm lost": constant("shift", lambda v: v * 0),
    "image transposed": attribute("turned", perm=(0, 3, 2, 1)),
    "beta of HardSigmoid": attribute("gate", beta=0.4),
    "Mul taken for Add": become("gated", "Add"),
    "Softmax over the batch": attribute("shares", axis=0),
    "Softmax forgotten": drop("shares"),
    "limit of Clip": constant("high", lambda v: v * 0.5),
    "Clip dropped": drop("clipped"),
    "alpha of Gemm": attribute("dense", alpha=0.9),
    "weights of Gemm in NCHW order": constant("w3", lambda v: v.reshape(10, 16, 8).transpose(0, 2, 1).reshape(10, 128)),
    "one row of Gemm lost": constant("w3", channel(4, lambda v: v * 0)),
    "mean over one axis too many": become("means", "ReduceMax", axes=(1, 2), keepdims=0),
}
QUANTIZED_FAULTS: Mapping[str, Callable[[Graph], None]] = {
    "scale of a Conv off by a step": constant("conv_scale", lambda v: v * (1 + 1 / 16)),
    "scale of an output off by a step": constant("shares_scale", lambda v: v * (1 + 1 / 16)),
    "weights off by a quantization step": constant("w3", lambda v: v + 0.02),
}


@pytest.fixture(scope="module", params=FORMS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Reference]:
    path = network(tmp_path_factory.mktemp(request.param) / "m.onnx", request.param)
    expected = Reference(load(path), path, ValidationSettings(budget=Budget(seconds=200)))
    expected.wait()
    return request.param, path, expected


def written(source: Path, target: Path, change: Callable[[Graph], None]) -> Path:
    model = load(source)
    change(model.graph)
    model.graph.prune()
    insert_casts(model)
    target.unlink(missing_ok=True)
    write(model, target)
    return target


def test_what_is_left_alone_passes(reference: tuple[str, Path, Reference], tmp_path: Path) -> None:
    _, source, expected = reference
    found = validate(expected, written(source, tmp_path / "m.ort", lambda graph: None))
    assert found.skipped is None
    assert [e.name for e in found.engines if e.skipped is None] == ["numpy", "onnxruntime"]
    assert len(found.inputs) == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["numpy", "onnxruntime"])
def test_wrong_rewrites_are_caught(engine: str, reference: tuple[str, Path, Reference], tmp_path: Path) -> None:
    form, source, _expected = reference
    alone = Reference(load(source), source, ValidationSettings(engines=(engine,)))
    missed = []
    for name, fault in (FAULTS | (QUANTIZED_FAULTS if form == "quantized" else {})).items():
        try:
            validate(alone, written(source, tmp_path / "m.ort", fault))
            missed.append(name)
        except MismatchError:
            pass
    assert not missed


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["numpy", "onnxruntime"])
def test_single_wrong_elements_are_caught(engine: str, reference: tuple[str, Path, Reference]) -> None:
    """No other element may excuse one that is off by a tenth."""
    _form, _source, expected = reference
    plain = expected.outputs[engine]
    rng, missed = np.random.default_rng(7), []
    for i, k in np.ndindex(len(plain), len(expected.names)):
        want = np.asarray(plain[i][k])
        large = np.flatnonzero(np.abs(want) >= np.abs(want).max() / 4)
        for place in rng.choice(large, 4) if np.isfinite(want).all() else ():
            wrong = want.copy()
            wrong.reshape(-1)[place] *= want.dtype.type(1.1)
            results = [list(outputs) if at == i else None for at, outputs in enumerate(plain)]
            results[i][k] = wrong
            if _is_accepted(expected, engine, results):
                missed.append((i, k, int(place)))
    assert not missed


def _is_accepted(expected: Reference, engine: str, results: list[list[object] | None]) -> bool:
    with expected.clock:
        try:
            expected.judge(engine, results, "", "", False)
        except MismatchError:
            return False
    return True
