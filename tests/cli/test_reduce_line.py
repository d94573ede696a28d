"""--verify-each and compare --layers end with the command line that shrinks the model."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

import ortconv
from ortconv.cli import main
from ortconv.reduction.command import Command
from tests.conftest import SAMPLES

pytestmark = pytest.mark.skipif(os.name != "posix", reason="reads the line as shells of POSIX do")


def line_of(shown: str) -> list[str]:
    """The words behind the last "shrink the model"."""
    return shlex.split(shown.rpartition("shrink the model: ")[2])


def test_verify_each_ends_with_it(tmp_path: Path, wrong_fusion: None, capsys: pytest.CaptureFixture[str]) -> None:
    source = SAMPLES / "mnist.onnx"
    given = ["--verify-each", "--optimization-level", "basic", "--fold-limit", "1", "--quiet"]
    given += ["--html", str(tmp_path / "page.html")]
    assert main(["convert", str(source), "-o", str(tmp_path / "m.ort"), *given]) == 4
    words = line_of(capsys.readouterr().err)
    assert words[:5] == ["ortconv", "reduce", str(source), "--expect-exit", "4"]
    assert words[5:8] == ["--expect-output", "leave it out with --disable-pass WrongFusion", "--check"]
    assert shlex.split(words[8]) == [
        *("ortconv", "convert", "{}", "-o", "{}.ort", "--optimization-level", "basic", "--fold-limit", "1"),
        "--verify-each",
    ]  # fmt: skip


@pytest.mark.slow
def test_compare_layers_ends_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, other = Path("a b.onnx"), Path("other.ort")
    source.write_bytes((SAMPLES / "mnist.onnx").read_bytes())
    ortconv.convert(source, other, validate=False)
    gate = ["--layers", "--fail-on", "cosine<2", "--quiet"]
    assert main(["compare", str(source), f"{source}@onnxruntime", *gate]) == 5
    words = line_of(capsys.readouterr().err)
    assert words[:3] == ["ortconv", "reduce", "a b.onnx"]
    assert words[6] == "ortconv compare {} {}@onnxruntime --layers --fail-on 'cosine<2'"
    assert main(["compare", f"./{source}", f".//{source}@onnxruntime", *gate]) == 5
    assert line_of(capsys.readouterr().err)[6] == words[6]
    assert main(["compare", str(source), str(other), *gate]) == 5
    check = line_of(capsys.readouterr().err)[6]
    first, then = check.split(" && ")
    assert first == "ortconv convert {} -o {}.ort --no-validate --quiet"
    assert then == "ortconv compare {} {}.ort --layers --fail-on 'cosine<2'"
    installed_or_not = check.replace("ortconv convert", f"'{sys.executable}' -m ortconv convert")
    outcome = Command(installed_or_not.replace("ortconv compare", f"'{sys.executable}' -m ortconv compare")).run(source)
    assert outcome.exit_code == 5, outcome.output
    assert main(["compare", str(other), f"{other}@onnxruntime", *gate]) == 5
    assert line_of(capsys.readouterr().err)[6].startswith("ortconv compare {} {}@onnxruntime ")
    assert main(["compare", str(source), str(SAMPLES / "mnist.onnx"), *gate]) == 5
    assert "shrink the model" not in capsys.readouterr().err
