"""CoreML on the command line: dividing, drawing, converting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortconv.cli import main
from ortconv.models import load
from tests.cli.conftest import Printed

FORMATS = ("NeuralNetwork", "MLProgram")


@pytest.mark.parametrize("form", FORMATS)
def test_json_names_the_target(form: str, samples: Path, printed: Printed) -> None:
    found = printed("partition", str(samples / "mnist.onnx"), "--target", "coreml", "--coreml-format", form)
    assert found["ep"] == "CoreMLExecutionProvider"
    assert found["coreml_format"] == form
    assert found["nodes_taken"] == found["nodes"] == 8
    assert "feature_level" not in found


@pytest.mark.slow
def test_the_format_and_the_version_decide(samples: Path, printed: Printed) -> None:
    model = [str(samples / "bert_tiny.onnx"), "--target", "coreml"]
    taken = {form: printed("partition", *model, "--coreml-format", form)["nodes_taken"] for form in FORMATS}
    assert taken["MLProgram"] > taken["NeuralNetwork"]
    old = printed("partition", *model, "--coreml-format", "MLProgram", "--coreml-version", "4")
    assert old["nodes_taken"] == taken["NeuralNetwork"]
    assert printed("partition", *model, "--coreml-version", "2")["nodes_taken"] == 0
    static = printed("partition", *model, "--coreml-only-static-input-shapes", "--coreml-format", "MLProgram")
    assert static["nodes_taken"] < taken["MLProgram"]


def test_text_and_pictures(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, page = tmp_path / "m.svg", tmp_path / "m.html"
    model = str(samples / "qdq_cnn.onnx")
    assert (
        main(["partition", model, "--target", "coreml", "--compare-levels", "--svg", str(svg), "--html", str(page)])
        == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "for CoreML NeuralNetwork, version 7 " in printed
    assert "NNAPI" not in printed
    assert "CoreML NeuralNetwork, version 7" in svg.read_text()
    assert "CoreML NeuralNetwork, version 7" in page.read_text()


def test_options_of_nnapi_are_refused(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--stop-ops", "Relu"], ["--use-nchw"]):
        assert main(["partition", str(samples / "mnist.onnx"), "--target", "coreml", *option]) == 2
    assert "options of NNAPI" in capsys.readouterr().err


def test_conversion_for_both(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.ort"
    arguments = ["convert", str(samples / "mnist.onnx"), "-o", str(out), "--use_nnapi", "--use_coreml"]
    assert main([*arguments, "--nnapi-partitioning-stop-ops", "Gemm"]) == 0
    printed = capsys.readouterr().out
    assert "NNAPI" in printed
    assert "CoreML" in printed
    assert [n.ep for n in load(out).graph] == ["NnapiExecutionProvider"] * 7 + ["CoreMLExecutionProvider"]


def test_conversion_inside_of_branches(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.ort"
    arguments = ["convert", str(samples / "if_branch.onnx"), "-o", str(out), "--use_coreml", "--json"]
    counts = []
    for more in ([], ["--coreml-enable-on-subgraph"]):
        assert main([*arguments, *more]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        counts.append(sum(len(p["nodes"]) for p in model["partitions"]))
        assert {p["provider"] for p in model["partitions"]} == {"CoreML"}
    assert counts[1] > counts[0]


@pytest.mark.parametrize("name", ["if_branch", "loop_accumulate"])
def test_branches_are_divided_as_conversion_divides_them(
    name: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed
) -> None:
    model, on = str(samples / f"{name}.onnx"), "--coreml-enable-on-subgraph"
    arguments = ["convert", model, "-o", str(tmp_path / "m.ort"), "--use_coreml", "--optimization-level", "basic"]
    assert main([*arguments, on, "--json"]) == 0
    (converted,) = json.loads(capsys.readouterr().out)["models"]
    found = printed("partition", model, "--target", "coreml", on)
    parts = [p for graph in (found, *found["subgraphs"]) for p in graph["partitions"]]
    assert [(p["name"], p["nodes"]) for p in parts] == [(p["name"], p["nodes"]) for p in converted["partitions"]]
    assert sum(graph["nodes_taken"] for graph in found["subgraphs"]) > 0
    assert "subgraphs" not in printed("partition", model, "--target", "coreml")
    assert main(["partition", model, "--target", "coreml", on]) == 0
    assert "Graphs inside of nodes" in capsys.readouterr().out
