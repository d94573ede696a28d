"""ortconv partition, and the limits of convert --use_nnapi."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from onnx.parser import parse_model
from partition_graphs import mnist

from ortconv.cli import main
from ortconv.models import load
from ortconv.partition import Target, partition
from ortconv.pipeline import convert
from tests.cli.conftest import Printed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The MNIST net as exported."""
    path = tmp_path / "mnist.onnx"
    path.write_bytes(mnist("raw").SerializeToString())
    return path


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-partitions", "1"],
        ["--stop-ops", "MaxPool"],
        ["--use_coreml", "--stop-ops", "Conv"],
        ["--min-nodes", "3"],
    ],
)
def test_counts_of_a_conversion_add_up(
    flags: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "m.ort")
    assert main(["convert", str(model), "-o", output, "--use_nnapi", "--optimization_level", "extended", *flags]) == 0
    said = capsys.readouterr().out
    taken = [(int(a), int(b)) for a, b in re.findall(r"(\d+) of (\d+) nodes", said)]
    left = [int(n) for n in re.findall(r"(\d+) left to the CPU", said)]
    by_rule = [int(n) for n in re.findall(r"(\d+) by [a-z-]+", said)]
    assert {total for _, total in taken} == {8}
    assert sum(n for n, _ in taken) + sum(left) == 8
    assert sum(left) == sum(by_rule)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["partition", "--stop-ops", "Cov"], "did you mean Conv?"),
        (["convert", "--use_nnapi", "--stop-ops", "Conv,Rleu"], "did you mean Relu?"),
        (["convert", "--stop-ops", "Relu"], "but not --use-nnapi"),
        (["convert", "--use_coreml", "--stop-ops", "Relu"], "but not --use-nnapi"),
        (["convert", "--max-partitions", "2"], "no accelerator gets any\nhint: add --use-nnapi or --use-coreml"),
        (["convert", "--min-nodes", "3"], "no accelerator gets any"),
        (["convert", "--only-worthwhile"], "no accelerator gets any"),
    ],
)
def test_wrong_options_of_partitions(
    arguments: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *flags = arguments
    assert main([command, str(model), *flags, *(["-o", str(tmp_path / "m.ort")] if command == "convert" else [])]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m.ort").exists()


@pytest.mark.parametrize("name", ["m.ort", "without_suffix"])
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("partition {} --maximize-offload", "an .ort file is analyzed as it is\nhint: give the .onnx model"),
        ("partition {} --level basic", "an .ort file is analyzed as it is\nhint: leave out level basic"),
        ("partition {} --compare-levels", "an .ort model has one level only"),
        ("convert {} -o other.ort", "convert reads .onnx models, and this is an .ort file"),
    ],
)
def test_what_is_not_for_ort_files(
    name: str, command: str, words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = convert(model, tmp_path / "m.ort", validate=False, write_config=False).files[0]
    source = Path(file).rename(tmp_path / name)
    assert main(command.format(source).split()) == 2
    assert words in capsys.readouterr().err


def test_json(model: Path, printed: Printed) -> None:
    found = printed("partition", model, "--stop-ops", "Reshape")
    assert (found["version"], found["level"], found["ep"], found["feature_level"]) == (
        1,
        "basic",
        "NnapiExecutionProvider",
        31,
    )
    assert (found["nodes"], found["nodes_taken"], found["coverage_percent"]) == (8, 6, 75.0)
    (part,) = found["partitions"]
    assert part["ops"] == {"Conv": 2, "MaxPool": 2, "Relu": 2}
    assert (part["cost"]["bytes_in"], part["cost"]["bytes_out"]) == (4 * 28 * 28, 4 * 256)
    assert part["cost"]["multiply_adds"] == 28 * 28 * 8 * 25 + 14 * 14 * 16 * 8 * 25
    assert [(r["op"], r["rule"], r["nodes"]) for r in found["refusals"]] == [
        ("Reshape", "stop-op", 1),
        ("Gemm", "stop-op", 1),
    ]
    assert found["refusals"][0]["advice"] == ["leave Reshape out of the stop ops"]
    assert found["advice"][0]["nodes_taken_after"] == 8
    assert {v["node"]: v["partition"] for v in found["verdicts"]}["y"] is None
    assert found["estimate"]["assumptions"]
    assert "levels" not in found


def test_levels_side_by_side(model: Path, printed: Printed) -> None:
    rows = printed("partition", model, "--stop-ops", "Reshape", "--compare-levels")["levels"]
    assert [(r["level"], r["partitions"], r["nodes_taken"]) for r in rows] == [
        ("disable", 1, 8), ("basic", 1, 6), ("extended", 2, 2), ("aware", 1, 6),
    ]  # fmt: skip


def test_table(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["partition", str(model), "--stop-ops", "Relu", "--compare-levels"]) == 0
    text = capsys.readouterr().out
    assert "1 partition, 1 of 8 nodes (12.5 %)" in text
    for words in (
        "NNAPI-aware",
        "Relu is a stop op",
        "leave Relu out of the stop ops",
        "remove from the stop operators",
        "docs/cost.md",
    ):
        assert words in text


def test_quiet_gates(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", str(model), "-q", "--fail-on", "partitions>1,coverage<100%,worthwhile>1"]) == 0
    assert main(["partition", str(model), "-q", "--stop-ops", "Reshape", "--fail-on", "partitions>0,coverage<80%"]) == 5
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "partitions is 1 (partitions>0); coverage is 75% (coverage<80%)" in shown.err
    assert main(["partition", str(model), "-q", "--fail-on", "speed>3"]) == 2


@pytest.mark.parametrize(("level", "taken"), [("disable", 11), ("basic", 8), ("extended", 4), ("aware", 8)])
def test_levels(level: str, taken: int, model: Path, printed: Printed) -> None:
    assert printed("partition", model, "--level", level)["nodes_taken"] == taken


def test_ort_models(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    out = tmp_path / "m.ort"
    convert(model, out, use_nnapi=True, validate=False)
    found = printed("partition", out)
    assert (found["level"], found["nodes_taken"], len(found["partitions"])) == ("disable", 8, 1)
    convert(model, out, validate=False, optimization_level="extended")
    found = printed("partition", out)
    assert found["nodes_taken"] == 4
    assert ("com.microsoft:FusedConv", "operator") in [(r["op"], r["rule"]) for r in found["refusals"]]
    for arguments in (["--compare-levels"], ["--level", "basic"]):
        assert main(["partition", str(out), "-q", *arguments]) == 2
    assert "level" in capsys.readouterr().err


def test_pictures(model: Path, tmp_path: Path) -> None:
    svg, html = tmp_path / "m.svg", tmp_path / "m.html"
    assert main(["partition", str(model), "-q", "--svg", str(svg), "--html", str(html)]) == 0
    assert svg.read_text(encoding="utf-8").startswith("<svg")
    assert html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


PHONE = """
name = "Slow copies"
feature_level = 29
refused_ops = ["MaxPool"]
[copies]
seconds_per_partition = 1
"""


def test_device(model: Path, tmp_path: Path, printed: Printed) -> None:
    phone = tmp_path / "phone.toml"
    phone.write_text(PHONE)
    found = printed("partition", model, "--device", phone)
    assert (found["feature_level"], found["refused_ops"]) == (29, ["MaxPool"])
    assert len(found["partitions"]) == 3
    assert found["estimate"]["device"]["name"] == "Slow copies"
    assert printed("partition", model, "--device", phone, "--only-worthwhile")["partitions"] == []
    assert len(printed("partition", model, "--device", phone, "--max-partitions", "1")["partitions"]) == 1
    assert main(["partition", str(model), "--device", str(model)]) == 2


def test_fix_dim(tmp_path: Path, printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    proto = mnist("basic")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    path = tmp_path / "dynamic.onnx"
    path.write_bytes(proto.SerializeToString())
    assert printed("partition", path)["nodes_taken"] < 8
    assert printed("partition", path, "--fix-dim", "N=1")["nodes_taken"] == 8
    main(["partition", str(path)])
    text = capsys.readouterr().out
    assert text.count("advice: give the graph inputs fixed shapes") == 1
    assert "advice: as for Conv by static-shape" in text


def test_fix_dim_reaches_subgraphs(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "branches.onnx"
    body = "g{0} () => (float[N,4] e{0}) {{ e{0} = {1} (x) }}"
    nodes = f"a = If (c) <then_branch = {body.format(1, 'Relu')}, else_branch = {body.format(2, 'Neg')}>  y = Tanh (a)"
    header = '<ir_version: 8, opset_import: ["" : 13]>'
    path.write_bytes(
        parse_model(f"{header} g (bool c, float[N,4] x) => (float[N,4] y) {{ {nodes} }}").SerializeToString()
    )
    assert printed("partition", path)["nodes_taken"] == 0
    assert printed("partition", path, "--fix-dim", "N=2")["partitions"][0]["ops"] == {"Tanh": 1}


@pytest.mark.parametrize(
    ("limits", "protected"),
    [
        ({}, 8), ({"min_nodes": 9}, 0), ({"min_nodes": 8}, 8), ({"max_partitions": 0}, 0), ({"only_worthwhile": True}, 0),
    ],
)  # fmt: skip
def test_conversion_within_limits(limits: dict, protected: int, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.ort"
    result = convert(model, out, use_nnapi=True, optimization_level="extended", **limits)
    assert sum(len(p.nodes) for p in result.partitions or ()) == protected
    fused = sum(n.op == "FusedConv" for n in load(out).graph)
    assert fused == (0 if protected else 2)
    graph = load(out).graph
    for node in graph:
        node.ep = ""
    assert partition(graph).taken == (8 if protected else 4)


def test_convert_flags(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phone = tmp_path / "phone.toml"
    phone.write_text(PHONE)
    arguments = ["convert", str(model), "-o", str(tmp_path / "m.ort"), "--use_nnapi", "--json", "--device", str(phone)]
    assert main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert len(found["partitions"]) == 3
    assert main([*arguments, "--only_worthwhile"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["partitions"] == []
    assert {r["rule"] for r in found["refusals"]} == {"device", "not-worthwhile"}
    assert main([*arguments, "--max-partitions", "2", "--min-nodes", "2"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert len(found["partitions"]) == 2


@pytest.mark.slow
def test_free_dimensions_of_an_estimate(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["partition", str(samples / "bert_tiny.onnx"), "--fix-dim", "batch=1"]
    assert main(arguments) == 0
    assert "free dimensions count as 1: sequence; --fix-dim sets their sizes" in capsys.readouterr().out
    assert main([*arguments, "--fix-dim", "sequence=4"]) == 0
    assert "free dimensions" not in capsys.readouterr().out


def test_choices_agree_with_the_tables() -> None:
    from ortconv.choices import TARGETS
    from ortconv.partition.policy import PROVIDERS

    assert tuple(PROVIDERS) == TARGETS
    assert Target().ep in TARGETS
