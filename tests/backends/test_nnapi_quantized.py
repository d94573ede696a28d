"""How far quantized models on NNAPI are from their source, and why.

A sum is brought to the output's scale by a multiplier of 31 bits and a shift by n, and each of the two rounds. Numbers less than
2**-(n+1) from the middle between two codes can so become the code that is farther away, which is the neighbor of the nearest
one. Nothing else separates NNAPI's arithmetic from ONNX's, which rounds once. That is shown operation by operation, on the codes
of the source. What such flips of one code do to the result of a model is shown by flipping codes inside the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from quantized_models import SHAPE, all_values, quantized, results_with_flips
from test_nnapi_models import MODELS, converted, made

from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, NnapiProgram
from ortconv.backends.nnapi.lower import Lowered
from ortconv.nnapi import Operation
from ortconv.nnapi.cpu import CpuProgram
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations.arithmetic import quantize_multiplier
from ortconv.nnapi.running import run_operation
from ortconv.runtime.session import Session
from tests.batches import slow_except
from tests.conftest import SHARED_MODELS

SLACK = 2.0**-12
"""What onnxruntime's own sums of floats may be off, in codes."""

SUMS = (Operation.CONV_2D, Operation.DEPTHWISE_CONV_2D, Operation.GROUPED_CONV_2D, Operation.FULLY_CONNECTED)
"""Operations whose weights may be quantized per channel, in the dimension that the outputs come from."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Layer:
    """An operation on the source's codes: its result, that of the source, and the latter before it was rounded."""

    operation: Operation
    name: str
    got: Array
    want: Array
    exact: Array | None
    bands: list[float]
    """How far from the middle between codes the two ways of rounding may part; one for each channel."""

    @property
    def differs(self) -> Array:
        return self.got != self.want


def bands(operation: Operation, inputs: list[Tensor | None], out: Tensor) -> list[float]:
    x, y = inputs[:2] if len(inputs) > 1 else (inputs[0], None)
    if operation not in (*SUMS, Operation.MUL) or x is None or y is None:
        return [0.0]
    scales = [y.scale] if y.channel_quant is None else y.channel_quant.scales
    return [2.0 ** (quantize_multiplier(x.scale * one / out.scale)[1] - 1) for one in scales]


def layers(session: Session, source: onnx.ModelProto, values: dict[str, Array]) -> Iterator[Layer]:
    """Walk a converted model; every operation and node is fed the source's values, where the source has them."""
    rounded = {node.output[0]: node.input[0] for node in source.graph.node if node.op_type == "QuantizeLinear"}
    known: dict[Any, Array] = {value: values[value.name] for value in session.model.graph.inputs}
    for program, region in session._main.programs:
        if isinstance(program, NnapiProgram):
            results = yield from _operations(program.lowered, known, values, rounded)
        else:
            results = dict(zip(region.outputs, program.run([known[v] for v in region.inputs]), strict=True))
        known |= {value: values.get(value.name, result) for value, result in results.items()}


def _operations(lowered: Lowered, known: dict[Any, Array], values: dict[str, Array], rounded: dict[str, str]) -> Any:
    model = lowered.model
    tensors = dict(CpuProgram(model).constants)
    for value, index in zip(lowered.inputs, model.inputs, strict=True):
        tensors[index] = Tensor(model.operands[index].kind, known[value])
    for operation in model.operations:
        inputs, declared = [tensors[i] for i in operation.inputs], [model.operands[i].kind for i in operation.outputs]
        for index, result in zip(operation.outputs, run_operation(operation, inputs, declared), strict=True):
            tensors[index] = result
            name = lowered.names.get(index, "")
            want = values.get(name)
            if want is not None and want.dtype == result.array.dtype == np.uint8:
                exact = values[rounded[name]] / np.float64(result.scale) if name in rounded else None
                yield Layer(operation.code, name, result.array, want, exact, bands(operation.code, inputs, result))
                tensors[index] = Tensor(result, want)
    return {value: tensor.array for value, index in zip(lowered.outputs, model.outputs) if (tensor := tensors[index])}


def check_layer(layer: Layer) -> None:
    assert layer.got.shape == layer.want.shape
    far = np.abs(layer.got.astype(int) - layer.want.astype(int))
    assert far.max() <= 1, layer.name
    if layer.exact is not None:
        to_middle = np.abs(layer.exact % 1 - 0.5)[layer.differs]
        assert to_middle.max(initial=0.0) <= max(layer.bands) + SLACK, layer.name
    likely = float(np.mean(layer.bands) + 2 * SLACK) * layer.got.size
    assert np.count_nonzero(layer.differs) <= likely + 4 * np.sqrt(likely), layer.name


def check(path: Path, ort: Path, feeds: dict[str, Array]) -> list[Layer]:
    """Each operation, then the end: in codes no farther from the source than the source with as many random flips."""
    source = onnx.load(path)
    values = all_values(source, feeds)
    session = Session(ort, [Nnapi(NnapiOptions(nchw=True))])
    found = list(layers(session, source, values))
    for layer in found:
        check_layer(layer)
    rates = {layer.name: float(layer.differs.mean()) for layer in found if layer.differs.any()}
    shapes = {layer.name: layer.want.shape for layer in found}
    want = values[source.graph.output[0].name]
    step = _last_scale(source)
    flipped = [(y - want) / step for y in results_with_flips(source, feeds, shapes, rates, 10)]
    (result,) = session.run(None, feeds)
    off = (result - want) / step
    assert np.allclose(off, np.rint(off), atol=1e-3)
    assert np.abs(off).max() <= max(np.abs(one).max() for one in flipped) + 0.5
    assert np.square(off).mean() <= 1.5 * max(np.square(one).mean() for one in flipped) + 1 / off.size
    (in_nhwc,) = Session(ort, [Nnapi()]).run(None, feeds)
    assert np.array_equal(in_nhwc, result)
    return found


def _last_scale(source: onnx.ModelProto) -> float:
    """What a code more in the output is worth."""
    (last,) = (node for node in source.graph.node if node.output[0] == source.graph.output[0].name)
    assert last.op_type == "DequantizeLinear"
    return float(next(onnx.numpy_helper.to_array(one) for one in source.graph.initializer if one.name == last.input[1]))


@pytest.mark.parametrize("seed", slow_except([0], range(3)))
@pytest.mark.parametrize("per_channel", [False, True])
def test_network(per_channel: bool, seed: int, tmp_path: Path) -> None:
    path = quantized(tmp_path, per_channel, seed)
    feeds = {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)}
    found = check(path, converted(path, tmp_path, {}), feeds)
    kinds = {layer.operation for layer in found}
    assert kinds >= {Operation.CONV_2D, Operation.DEPTHWISE_CONV_2D, Operation.ADD, Operation.MUL}
    assert any(layer.differs.any() for layer in found)


def test_sample(samples: Path, tmp_path: Path) -> None:
    path = samples / "qdq_cnn.onnx"
    feeds = {"input": np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)}
    assert check(path, converted(path, tmp_path, {}), feeds)


QUANTIZED = [m for m in MODELS if "_u8s8" in m["name"]]


@pytest.mark.slow
@pytest.mark.skipif(not QUANTIZED, reason="the shared models are not here")
@pytest.mark.parametrize("about", QUANTIZED, ids=[m["name"] for m in QUANTIZED])
def test_shared_model(about: dict[str, Any], tmp_path: Path) -> None:
    (image,) = about["inputs"]
    ort = converted(SHARED_MODELS / about["file"], tmp_path, {"batch": 1})
    for seed in range(3):
        assert check(SHARED_MODELS / about["file"], ort, {image["name"]: made(image, np.random.default_rng(seed))})
