"""Processors on which onnxruntime's products of uint8 and int8 overflow: a copy of the model with uint8 weights runs there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ortconv
from ortconv.backends import onnxruntime_overflow
from ortconv.ir.types import DType
from ortconv.models import load
from ortconv.optimizer.extended.qdq.unsigned_weights import SLOTS

COUNT = 64
SUM = COUNT * 255 * 127
FEEDS = {"x": np.full((1, COUNT), 255, np.uint8)}

WEIGHTS = ", ".join(["127"] * COUNT)
PRODUCT = f"""
    <ir_version: 8, opset_import: ["": 13]>
    products (uint8[1, {COUNT}] x) => (int32[1, 1] y) <int8[{COUNT}, 1] w = {{{WEIGHTS}}}> {{ y = MatMulInteger(x, w) }}
"""
"""Sums of two products of the largest numbers need 17 bits."""


@pytest.fixture(params=["onnx", "ort"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(PRODUCT), source)
    ortconv.convert(source, tmp_path / "m.ort")
    return tmp_path / f"m.{request.param}"


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_overflow, "overflows", lambda: True)
    monkeypatch.setattr(onnxruntime_overflow, "machine", lambda: "x86_64")


@pytest.mark.parametrize("backend", ["onnxruntime", "onnxruntime:default", "numpy"])
def test_sums_are_exact_on_every_processor(file: Path, backend: str) -> None:
    assert ortconv.Session(file, [backend]).run(None, FEEDS)[0].item() == SUM


@pytest.mark.usefixtures("overflowing")
def test_the_copy_has_unsigned_weights(file: Path) -> None:
    for content in (str(file), file.read_bytes()):
        copy = onnxruntime_overflow.exact(content)
        assert copy is not None
        (node,) = load(copy).graph
        assert [v and v.dtype for v in node.inputs] == [DType.UINT8, DType.UINT8, None, DType.UINT8]
        assert ortconv.Session(copy, ["numpy"]).run(None, FEEDS)[0].item() == SUM


@pytest.mark.usefixtures("overflowing")
def test_models_without_such_products_run_themselves(samples: Path, tmp_path: Path) -> None:
    assert onnxruntime_overflow.exact(str(samples / "mnist.onnx")) is None
    text = PRODUCT.replace("<int8", "<uint8")
    assert onnxruntime_overflow.exact(onnx.parser.parse_model(text).SerializeToString()) is None
    (tmp_path / "damaged.ort").write_bytes(b"MatMulInteger")
    assert onnxruntime_overflow.exact(str(tmp_path / "damaged.ort")) is None


def test_every_operator_of_the_pass_is_looked_for() -> None:
    assert [op for _, op in SLOTS if not any(name in op.encode() for name in onnxruntime_overflow.NAMES)] == []


@pytest.mark.usefixtures("overflowing")
def test_validation_says_that_a_copy_ran(samples: Path, tmp_path: Path) -> None:
    def notes(name: str) -> tuple[str, ...]:
        validation = ortconv.convert(samples / name, tmp_path / "m.ort").validation
        assert validation is not None
        return validation.notes

    assert onnxruntime_overflow.NOTE in notes("qdq_cnn.onnx")
    assert onnxruntime_overflow.NOTE not in notes("mnist.onnx")
