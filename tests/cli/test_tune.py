"""`ortconv tune` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ortconv
from ortconv.cli import main
from ortconv.tuning import contest

pytestmark = pytest.mark.slow

FEW = [
    "--only",
    "level=all,basic",
    "--only",
    "aware=none",
    "--only",
    "threads=1",
    "--only",
    "direct=no",
    "--only",
    "ort=default",
]


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "MOST_BLOCKS", 2)


def test_axes_are_listed_without_work(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(samples / "mnist.onnx"), "--list", "--only", "level=basic,all", "--target", "coreml"]) == 0
    out = capsys.readouterr().out
    assert "conversions" in out
    assert "basic, all" in out
    assert "none, coreml" in out


def test_tables_and_snippet(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(samples / "mnist.onnx"), *FEW, "--snippet", "kotlin", "-v"]) == 0
    out = capsys.readouterr().out
    assert "best by measured latency" in out
    assert "latency is relative to the source, optimized by onnxruntime" in out
    assert "NNAPI, estimated" in out
    assert "The same file" in out
    assert "loads in onnxruntime 1." in out
    assert "val session = environment.createSession" in out
    assert "--snippet" not in out
    assert f"ortconv convert {samples / 'mnist.onnx'}" in out


def test_a_narrow_terminal_has_fewer_columns(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ortconv.cli.render.room", lambda: 80)
    assert main(["tune", str(samples / "mnist.onnx"), *FEW]) == 0
    out = capsys.readouterr().out
    assert "NNAPI, estimated" in out
    assert "CPU, estimated" not in out


def test_markdown_has_a_fenced_snippet(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(samples / "mnist.onnx"), *FEW, "--snippet", "python", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "| latency |" in out
    assert "```python\nimport onnxruntime" in out


def test_the_document_has_the_snippet(samples: Path, printed: Any) -> None:
    found = printed("tune", str(samples / "mnist.onnx"), *FEW, "--snippet", "python")
    assert "import onnxruntime" in found["snippet"]


def test_a_model_with_no_node_for_the_accelerator(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["level=basic", "aware=none", "threads=1", "direct=no", "ort=default", "style=Fixed", "platform=any"]
    arguments = ["tune", str(samples / "bert_tiny.onnx"), *(word for axis in only for word in ("--only", axis))]
    assert main(arguments) == 0
    assert "NNAPI supports no node of any candidate" in capsys.readouterr().out


def test_the_page_has_plots_and_table(samples: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["tune", str(samples / "mnist.onnx"), *FEW, "-q", "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    assert text.count("<svg") == 3
    for heading in (
        "Recommended",
        "Latency and peak memory, both measured",
        "time with NNAPI, estimated",
        "Candidates",
    ):
        assert heading in text
    assert text.count('r="9" fill="none"') == 3  # the recommended candidate has a ring in each plot
    assert "options: --only level=all,basic" in text


def test_quiet_prints_the_command(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(samples / "mnist.onnx"), *FEW, "-q", "--goal", "size"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("ortconv convert ")


def test_shared_options_are_in_the_command(tmp_path: Path, samples: Path, printed: Any) -> None:
    document = printed(
        "tune", str(samples / "mnist.onnx"), *FEW[:2], "--only", "aware=nnapi", "--only", "level=all", *FEW[4:],
        "--nnapi-feature-level", "29", "--validate-budget", "5s", "--coreml-version", "6",
    )  # fmt: skip
    command = document["recommended"]["command"]
    assert "--use-nnapi" in command
    assert "--nnapi-feature-level 29 --validate-budget 5s" in command
    assert "coreml" not in command


def test_an_interruption_prints_what_is_known(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = contest.Contest.run

    def interrupted(*arguments: Any, **settings: Any) -> None:
        run(*arguments, **settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(contest.Contest, "run", interrupted)
    assert main(["tune", str(samples / "mnist.onnx"), *FEW, "--json"]) == 130
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["is_interrupted"]
    assert document["recommended"] is not None
    assert "interrupted" in err


WRONG = [
    (["--only", "level"], "--only does not understand 'level'"),
    (["--only", "level=none"], "axis level has no value 'none'"),
    (["--budget", "10"], "'10' is not a time"),
    (["--goal", "accelerator", "--snippet", "swift"], "no swift snippet for nnapi: iOS has no NNAPI"),
    (["--nnapi-stop-ops", "Conv"], "no such option"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG)
def test_wrong_options(flags: list[str], message: str, samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(samples / "mnist.onnx"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_the_library_has_the_same(samples: Path) -> None:
    only = {"level": ("all",), "aware": ("none",), "threads": ("1",), "direct": ("no",), "ort": ("default",)}
    found = ortconv.tune(samples / "mnist.onnx", goal="balanced", only=only)
    assert found.goal == "balanced"
    assert found.best is not None
    assert found.best.score is not None
