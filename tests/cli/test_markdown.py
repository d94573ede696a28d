"""--markdown prints results that a pull request shows as tables."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

import ortconv
from ortconv.cli import main
from tests.conftest import SAMPLES

LINES = {
    "compare": "compare {mnist} {other} --layers",
    "convert": "convert {mnist} -o {tmp}/m.ort --use-nnapi",
    "diff": "diff {mnist} {other}",
    "partition": "partition {mnist} --compare-levels",
    "inspect": "inspect {mnist} --lint quantization",
}


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """MNIST with another activation, whose node has characters that mean something to Markdown."""
    model = onnx.load(SAMPLES / "mnist.onnx")
    node = next(node for node in model.graph.node if node.op_type == "Relu")
    node.op_type, node.name = "Abs", "a|b*_c"
    onnx.save(model, tmp_path / "other.onnx")
    return tmp_path / "other.onnx"


@pytest.mark.parametrize("verb", LINES)
def test_tables_are_whole(verb: str, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.format(mnist=SAMPLES / "mnist.onnx", other=other, tmp=tmp_path) for word in LINES[verb].split()]
    assert main([*words, "--markdown"]) == (4 if verb == "compare" else 0)
    text = capsys.readouterr().out
    assert text.startswith("### ")
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows or verb == "diff"
    widths = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
    rules = [i for i, row in enumerate(rows) if set(row) <= set("|-:")]
    for start, end in zip(rules, [*(rule - 1 for rule in rules[1:]), len(rows)], strict=False):
        assert len(set(widths[start - 1 : end])) == 1, rows[start - 1 : end]


def test_names_mean_nothing_to_markdown(other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(SAMPLES / "mnist.onnx"), str(other), "--layers", "--markdown"]) == 4
    assert main(["diff", str(other), str(SAMPLES / "mnist.onnx"), "--markdown"]) == 0
    assert r"a\|b\*\_c" in capsys.readouterr().out


def test_a_conversion_lists_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = SAMPLES / "bert_tiny.onnx"
    assert main(["convert", str(source), "-o", str(tmp_path / "m.ort"), "--markdown"]) == 0
    text = capsys.readouterr().out
    result = ortconv.convert(source, tmp_path / "n.ort", validate=False)
    assert [rule for rule in result.rewrites if f"| {rule} |" not in text] == []
    assert "| nodes | " in text
    assert "numbers equal" in text or "max abs" in text


def test_a_directory_has_a_summary_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path), "--markdown"]) == 2
    assert "--summary FILE.md" in capsys.readouterr().err
