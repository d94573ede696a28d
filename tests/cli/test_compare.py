"""ortconv compare: models, formats and backends side by side."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from ortconv.cli import main, tables
from ortconv.pipeline import convert
from tests.cli.conftest import Printed
from tests.conftest import FAST_NAMES

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x) => (float[n,4] y, int64[n] best) { a = Tanh(x) b = Exp(a) y = Neg(b) best = ArgMax<axis=1, keepdims=0>(b) }"""


def write(path: Path, text: str) -> Path:
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "a.onnx", TEXT)


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    return write(tmp_path / "b.onnx", TEXT.replace("Tanh", "Sigmoid"))


@pytest.mark.parametrize(
    "level", [*(pytest.param(level, marks=pytest.mark.slow) for level in ("basic", "extended")), "all"]
)
@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_formats_and_backends(sample: Path, level: str, tmp_path: Path, printed: Printed) -> None:
    ort = tmp_path / "m.ort"
    convert(sample, ort, optimization_level=level, validate=False)
    found = printed("compare", sample, ort, f"{sample}@onnxruntime", f"{ort}@onnxruntime,numpy", "--layers")
    assert found["same"]
    assert [m["backends"] for m in found["models"]] == [["numpy"], ["onnxruntime"], ["onnxruntime", "numpy"]]
    assert all(m["same"] and m["first_divergence"] is None and m["layers"] for m in found["models"])


def test_generated_inputs_have_the_sizes_that_a_conversion_fixes(
    samples: Path, tmp_path: Path, printed: Printed
) -> None:
    model, ort = samples / "bert_tiny.onnx", tmp_path / "m.ort"
    convert(model, ort, fix_dims={"batch": 2, "sequence": 5}, validate=False)
    for one, other in ((model, ort), (ort, model)):
        found = printed("compare", one, other, "--input", "attention_mask:1..1")
        assert found["models"][0]["outputs"][0]["shape"] == [2, 5, 64]


@pytest.mark.slow
def test_only_the_first_of_many_values_are_listed(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = samples / "mobilenet_v2_small.onnx"
    words = ["compare", str(model), f"{model}@nnapi:fp16", "--layers", "--fail-on", "layers>1000"]
    assert main(words) == 0
    assert "the first 20 of" in capsys.readouterr().out
    assert main([*words, "-v"]) == 0
    assert "the first 20 of" not in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "code"), [(1, 0), (2, 4)])
def test_small_sigmoids_have_few_digits(factor: int, code: int, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float k = {%d}> {'
    a, b = (write(tmp_path / f"{k}.onnx", f"{text % k} m = Mul(x, k) y = Sigmoid(m) }}") for k in (1, factor))
    np.savez(tmp_path / "x.npz", x=np.float32([-15, -13]))
    models, inputs = [f"{a}@onnxruntime", f"{b}@numpy"], str(tmp_path / "x.npz")
    assert main(["compare", *models, "--inputs", inputs, "--layers", "-q"]) == code


def test_random_numbers_differ_between_backends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y, float[k] z) {'
    text += " y = RandomNormalLike<seed=1.0>(x) i = Cast<to=9>(x) z = Compress(y, i) }"
    path = write(tmp_path / "m.onnx", text)
    assert main(["compare", f"{path}@numpy", f"{path}@onnxruntime"]) == 0
    assert capsys.readouterr().out.count("random numbers") == 2


@pytest.mark.slow
def test_the_same_inputs_give_the_same_numbers(samples: Path, tmp_path: Path, printed: Printed) -> None:
    model = samples / "mobilenet_v2_small.onnx"
    ort = tmp_path / "m.ort"
    convert(model, ort, validate=False)
    first = printed("compare", model, ort, "--seed", 3)
    assert printed("compare", model, ort, "--seed", 3) == first
    assert printed("compare", model, ort, "--seed", 4) != first


def test_models_that_differ(model: Path, changed: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    found = printed("compare", model, changed, "--layers", "--input", "x:3x4", code=4)
    (b,) = found["models"]
    y, best = b["outputs"]
    assert (y["name"], y["shape"], y["same"], best["same"]) == ("y", [3, 4], False, True)
    assert y["cosine"] < 1
    first = b["first_divergence"]
    assert (first["name"], first["node"], first["rewrites"]) == ("a", "Sigmoid 'a'", [])
    assert [layer["name"] for layer in b["layers"]] == ["a", "b", "y", "best"]
    assert main(["compare", str(model), str(changed), "--layers"]) == 4
    shown = capsys.readouterr()
    assert "first to differ: 'a', made by Sigmoid 'a'" in shown.out
    assert shown.err.startswith("error: output 'y' of ")


def test_made_up_inputs_suit_all_models(tmp_path: Path, printed: Printed) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n] x) => (float[m] y) <int64[1] shape = {SHAPE}> { y = Reshape(x, shape) }"""
    a = write(tmp_path / "a.onnx", text.replace("SHAPE", "-1"))
    b = write(tmp_path / "b.onnx", text.replace("SHAPE", "224"))
    (found,) = printed("compare", a, b)["models"]
    assert found["outputs"][0]["shape"] == [224]


def test_how_to_follow_values_into_a_conversion(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, result = samples / "qdq_cnn.onnx", tmp_path / "m.ort"
    convert(source, result, validate=False)
    assert main(["compare", str(source), str(result), "--layers"]) == 0
    assert "--convert-with LEVEL follows them" in capsys.readouterr().out
    assert main(["compare", str(source), "--convert-with", "extended", "--layers"]) == 0
    assert "--convert-with" not in capsys.readouterr().out


def test_convert_with(samples: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    found = printed("compare", samples / "mnist.onnx", "--convert-with", "all", "--layers")
    (b,) = found["models"]
    assert b["model"].endswith("mnist.onnx optimized (all)")
    assert len(b["layers"]) == 6
    assert found["same"]
    assert main(["compare", str(samples / "mnist.onnx"), "--convert-with", "all", "--layers", "-v"]) == 0
    assert "6 values inside both graphs, 0 of them differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("max_abs>1e-3", 5),
        ("max_abs>100", 0),
        ("cosine<0.5,ulp<0", 0),
        ("snr<200", 5),
        ("layers>2", 5),
        ("outputs>1", 0),
    ],
)
def test_gates_take_the_place_of_tolerances(
    condition: str, code: int, model: Path, changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(model), str(changed), "-q", "--layers", "--fail-on", condition]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("--fail-on hold" in shown.err) == (code == 5)


def test_a_limit_is_the_answer_to_an_expected_loss(
    model: Path, changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(model), str(changed), "-q"]) == 4
    assert "if you expect a loss, as by float16, set a limit" in capsys.readouterr().err


def test_gates_on_what_is_equal(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(model), str(model), "-q", "--fail-on", "snr<100,cosine<1,max_abs>0,ulp>0"]) == 0
    assert main(["compare", str(model), str(model), "-q", "--fail-on", "snr>100"]) == 5
    assert "snr is inf dB (snr>100)" in capsys.readouterr().err
    assert main(["compare", str(model), str(model), "-q", "--fail-on", "speed>1"]) == 2


def test_a_gate_on_layers_needs_layers(model: Path, changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(model), str(changed), "-q", "--fail-on", "layers>2"]) == 2
    assert "'layers>2' cannot be checked: layers is not known" in capsys.readouterr().err


def test_gates_do_not_excuse_what_cannot_be_compared(model: Path, tmp_path: Path) -> None:
    kept = TEXT.replace("keepdims=0", "keepdims=1").replace("int64[n] best", "int64[n,1] best")
    other = write(tmp_path / "c.onnx", kept)
    assert main(["compare", str(model), str(other), "-q", "--fail-on", "max_abs>100"]) == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("x", "z", "input 'x' of {a} does not exist in {b}"),
        ("best", "most", "output 'best' of {a} does not exist in {b}"),
        ("float[n,4]", "double[n,4]", "input 'x' must be double[n,4], got float[1,4]"),
    ],
)
def test_models_with_other_inputs_or_outputs(
    old: str, new: str, words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path / "c.onnx", re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, TEXT))
    assert main(["compare", str(model), str(other)]) == 2
    assert words.format(a=model, b=other) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{a}"], "nothing to compare A with"),
        (["{a}", "missing.onnx"], "there is no file 'missing.onnx'"),
        (["{a}", "@numpy"], "there is no file ''"),
        (["{a}", "/"], "/: not a regular file"),
        (["{a}", "{a}@tpu"], "there is no backend 'tpu'"),
        (["{a}", "{a}", "--input", "q:1"], "there is no such input"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *(a.format(a=model) for a in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_files_with_an_at_in_their_name(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "a@numpy"
    other.write_bytes(model.read_bytes())
    assert main(["compare", str(model), str(other), "-q"]) == 0


def test_given_inputs(model: Path, changed: Path, tmp_path: Path, printed: Printed) -> None:
    np.savez(tmp_path / "x.npz", x=np.full((2, 4), 50, np.float32))  # both functions are 1 there
    assert printed("compare", model, changed, "--inputs", tmp_path / "x.npz")["same"]


@pytest.mark.parametrize(("other", "verdict", "code"), [("a", "\x1b[32m", 0), ("b", "\x1b[31m", 4)])
def test_verdicts_have_colors(
    model: Path, changed: Path, other: str, verdict: str, code: int, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tables, "color", lambda: True)
    assert main(["compare", str(model), str(model if other == "a" else changed)]) == code
    (title,) = (line for line in capsys.readouterr().out.splitlines() if "the same" in line or "different" in line)
    assert title.startswith(verdict)
    assert main(["compare", str(model), str(changed), "--markdown"]) == 4
    assert "\x1b" not in capsys.readouterr().out
