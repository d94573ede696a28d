"""The sample models are what their generator builds, are valid, and do what they are for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import unoptimized

SAMPLES = Path(__file__).resolve().parent.parent / "sample_models"
NAMES = "bert_tiny", "if_branch", "loop_accumulate", "mnist", "mobilenet_v2_small", "qdq_cnn"
OPSETS = {"mnist": 8, "mobilenet_v2_small": 13, "bert_tiny": 14, "qdq_cnn": 13, "if_branch": 13, "loop_accumulate": 13}

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[..., list[Array]]


def load(name: str) -> onnx.ModelProto:
    return onnx.load(SAMPLES / f"{name}.onnx")


def weights(name: str) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in load(name).graph.initializer}


def run(name: str) -> Run:
    session = unoptimized.session(SAMPLES / f"{name}.onnx")
    return lambda **feeds: session.run(None, feeds)


def uniform(*shape: int, seed: int = 0) -> Array:
    return np.random.RandomState(seed).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.slow
def test_files_are_what_the_generator_builds() -> None:
    done = subprocess.run([sys.executable, SAMPLES / "make.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all sample models are what make.py builds\n"), done.stderr


def test_the_models_are_these_and_small() -> None:
    models = sorted(SAMPLES.glob("*.onnx"))
    assert [path.stem for path in models] == sorted(NAMES)
    assert sum(path.stat().st_size for path in SAMPLES.iterdir() if path.is_file()) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_model_is_valid(name: str) -> None:
    model = load(name)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSETS[name])]
    assert all(node.name for node in model.graph.node)


def test_mnist_reads_the_held_out_digits() -> None:
    with np.load(SAMPLES / "mnist_test.npz") as test:
        images, labels = test["images"], test["labels"]
    assert (images.dtype, images.shape[1:]) == (np.uint8, (1, 28, 28))
    assert set(labels) == set(range(10))
    model = run("mnist")
    guesses = [model(Input3=image[None].astype(np.float32))[0].argmax() for image in images]
    assert np.mean(guesses == labels) > 0.97


def test_mnist_has_the_structure_of_the_zoo_model() -> None:
    graph = load("mnist").graph
    assert [node.op_type for node in graph.node] == [
        "Reshape", "Conv", "Add", "Relu", "MaxPool", "Conv", "Add", "Relu", "MaxPool", "Reshape", "MatMul", "Add",
    ]  # fmt: skip
    assert {tensor.name for tensor in graph.initializer} < {value.name for value in graph.input}


def test_mobilenet_keeps_activations_in_range() -> None:
    """Unit variance up to the classifier: the scores neither vanish nor blow up, and depend on the image."""
    model = run("mobilenet_v2_small")
    scores = np.concatenate([model(input=1.7 * uniform(1, 3, 64, 64, seed=seed))[0] for seed in range(8)])
    assert 0.1 < scores.std() < 5
    assert scores.std(axis=0).min() > 1e-3
    ops = Counter(node.op_type for node in load("mobilenet_v2_small").graph.node)
    assert ops["BatchNormalization"] == ops["Conv"] > 15
    assert {"Clip", "Add", "GlobalAveragePool", "Gemm"} <= set(ops)


def bert_feeds(ids: Array, length: int) -> dict[str, Array]:
    mask = (np.arange(ids.shape[1]) < length).astype(np.int64)
    return {
        "input_ids": ids,
        "attention_mask": np.broadcast_to(mask, ids.shape).copy(),
        "token_type_ids": np.zeros_like(ids),
    }


@pytest.mark.parametrize(("batch", "sequence"), [(1, 1), (1, 16), (3, 7), (2, 128)])
def test_bert_takes_any_batch_and_sequence(batch: int, sequence: int) -> None:
    ids = np.random.RandomState(batch).randint(0, 512, (batch, sequence), np.int64)
    hidden, pooled = run("bert_tiny")(**bert_feeds(ids, sequence))
    assert (hidden.shape, pooled.shape) == ((batch, sequence, 64), (batch, 64))
    assert 0.5 < hidden.std() < 2
    assert np.abs(pooled).max() < 1


def test_bert_ignores_masked_tokens_only() -> None:
    model = run("bert_tiny")
    ids = np.random.RandomState(0).randint(0, 512, (1, 10), np.int64)
    other = ids.copy()
    other[0, 6:] = (ids[0, 6:] + 1) % 512
    before, after = (model(**bert_feeds(each, 6))[0][0, :6] for each in (ids, other))
    np.testing.assert_array_equal(before, after)
    open_before, open_after = (model(**bert_feeds(each, 10))[0][0, :6] for each in (ids, other))
    assert np.abs(open_before - open_after).max() > 1e-3


def test_qdq_cnn_is_quantized_throughout() -> None:
    graph, tensors = load("qdq_cnn").graph, weights("qdq_cnn")
    producer = {node.output[0]: node for node in graph.node}
    quantized = ("QuantizeLinear", "DequantizeLinear")
    compute = [node for node in graph.node if node.op_type not in quantized]
    assert {node.op_type for node in compute} == {
        "Conv",
        "Relu",
        "MaxPool",
        "Add",
        "GlobalAveragePool",
        "Reshape",
        "Gemm",
    }
    for node in compute:
        sources = [producer[name].op_type for name in node.input if name not in tensors]
        assert set(sources) <= {"DequantizeLinear", "Conv"}, node.name
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in tensors:
            values, scale = tensors[node.input[0]], tensors[node.input[1]]
            assert values.dtype in (np.int8, np.int32)
            assert scale.shape == values.shape[:1]
        elif node.op_type in quantized:
            assert tensors[node.input[2]].dtype == np.uint8


def test_qdq_cnn_uses_its_range() -> None:
    """On images like those of the calibration no activation is saturated, and the scores spread over many levels."""
    model = run("qdq_cnn")
    scores = np.concatenate([model(input=uniform(1, 3, 32, 32, seed=seed))[0] for seed in range(16)])
    assert len(np.unique(scores)) > 40
    assert scores.std(axis=0).min() > 0


def test_if_takes_both_branches() -> None:
    w = weights("if_branch")
    then_weight = numpy_helper.to_array(
        next(n for n in load("if_branch").graph.node if n.op_type == "If").attribute[1].g.initializer[0]
    )
    model = run("if_branch")
    for sign in (1, -1):
        x = sign * np.abs(uniform(3, 8))
        hidden = x @ w["weight"] + w["bias"]
        branch = np.tanh(hidden @ then_weight + w["bias"]) if sign > 0 else np.maximum(hidden, 0) * w["scale"]
        np.testing.assert_allclose(model(x=x)[0], branch + x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 6, 40])
def test_loop_stops_at_the_limit(steps: int) -> None:
    rows = uniform(steps, 8)
    limit = np.asarray(5, np.float32)
    sums = np.cumsum(rows * weights("loop_accumulate")["gain"], axis=0, dtype=np.float32)
    beyond = np.flatnonzero(np.abs(sums).sum(axis=1) >= limit)
    expected = sums[: beyond[0] + 1] if len(beyond) else sums
    total, got = run("loop_accumulate")(sequence=rows, limit=limit)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total, expected[-1] if len(expected) else np.zeros(8), rtol=1e-5, atol=1e-6)
    assert steps < 40 or len(expected) < steps
