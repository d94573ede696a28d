"""Models with operators of a library of the user's own, which is built here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ortconv
from ortconv.cli import main
from ortconv.ir.types import DType
from ortconv.models import load

SOURCE = Path(__file__).parent / "ortformat" / "custom_ops.c"
MODEL = """<ir_version: 8, opset_import: ["": 17, "test.ops": 1]>
    g (float[2] x, int64[3] i, bool c) => (float[2] y, int64[3] j, float[2] z) {
        a = Relu (x) b = test.ops.Negate (a) d = test.ops.Same (b) y = Neg (d) j = test.ops.Same (i)
        z = If (c) <then_branch = t () => (t1) { t0 = test.ops.Same (y) t1 = Neg (t0) },
                    else_branch = e () => (e1) { e1 = Identity (d) }> }"""
FEEDS = {"x": np.float32([1, -2]), "i": np.arange(3), "c": np.array(True)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built = tmp_path_factory.mktemp("library") / "ops.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", built, SOURCE], check=True)
    return built


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def run(path: Path, library: Path) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    found: list[np.ndarray] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, FEEDS)
    return found


@pytest.mark.parametrize("level", ["disable", "basic", "all"])
def test_onnxruntime_runs_the_file(library: Path, source: Path, level: str) -> None:
    output = source.with_suffix(".ort")
    ortconv.convert(source, output, custom_op_library=library, optimization_level=level)
    for ours, theirs in zip(run(output, library), run(source, library), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_operator_set_of_a_library_need_not_be_imported(library: Path, source: Path) -> None:
    proto = onnx.parser.parse_model(MODEL)
    del proto.opset_import[1]
    onnx.save(proto, source)
    output = source.with_suffix(".ort")
    result = ortconv.convert(source, output, custom_op_library=library)
    assert [w for w in result.warnings if "test.ops" in w]
    for ours, theirs in zip(run(output, library), run(source, library), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_types_come_from_the_library(library: Path, source: Path) -> None:
    output = source.with_suffix(".ort")
    ortconv.convert(source, output, custom_op_library=library, optimization_level="disable")
    values = [v for node in load(output).graph.walk() for v in node.outputs]
    assert [v.name for v in values if v is None or v.type is None] == []
    assert {v.name: v.dtype for v in values if v is not None and v.name in "dj"} == {"d": DType.FLOAT, "j": DType.INT64}


@pytest.fixture
def here(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(library, tmp_path / "ops.so")
    (tmp_path / "none.so").write_bytes(b"no library")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["ops.so", "./ops.so"])
def test_a_relative_path_is_found(here: None, source: Path, name: str) -> None:
    assert main(["convert", str(source), "--custom-op-library", name]) == 0


@pytest.mark.parametrize("more", [[], ["--no-validate"]])
def test_a_library_that_does_not_load_is_an_error(
    here: None, source: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(source), "--custom-op-library", "none.so", *more]) == 2
    assert "none.so" in capsys.readouterr().err
    assert not source.with_suffix(".ort").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--backend", "onnxruntime"],
        ["convert"],
        ["convert", "--optimization-level", "disable"],
        ["compare"],
    ],
)
def test_the_hint_without_the_library_leads_to_a_run(
    here: None, source: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *more = arguments
    models = [str(source), f"{source}@onnxruntime"] if verb == "compare" else [str(source)]
    assert main([verb, *models, *more]) == 3
    error, _, hint = capsys.readouterr().err.partition("hint: ")
    assert error.startswith(f"error: {source}")
    assert "--custom-op-library" in hint
    backend = ["--backend", "onnxruntime"] if verb != "convert" else []
    assert main([verb, *models, *backend, "--custom-op-library", "ops.so"]) == 0


def test_a_dump_needs_no_library(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nnapi", "dump", str(source)]) == 0
    assert "partition 0: Relu 'a'" in capsys.readouterr().out
