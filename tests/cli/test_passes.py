"""Choosing passes, and the verb that lists them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ortconv
from ortconv.cli import main
from ortconv.errors import MismatchError
from ortconv.optimizer import catalog


def convert(samples: Path, tmp_path: Path, *flags: str) -> None:
    assert main(["convert", str(samples / "mnist.onnx"), "-o", str(tmp_path / "m.ort"), "--json", *flags]) == 0


def rewrites(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    found: dict[str, int] = json.loads(capsys.readouterr().out)["models"][0]["rewrites"]
    return found


def test_every_pass_is_documented() -> None:
    assert all(entry.doc and all(entry.doc) for entry in catalog.entries())
    assert len({entry.name for entry in catalog.entries()}) > 50


def test_list_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "list", "--level", "layout", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["passes"]
    assert {entry["level"] for entry in listed} == {"layout"}
    assert main(["passes", "explain", "ConvAddFusion"]) == 0
    assert "Conv(x, w, b + k)" in capsys.readouterr().out


def test_passes_of_offload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "list", "--level", "offload", "--json"]) == 0
    assert {entry["level"] for entry in json.loads(capsys.readouterr().out)["passes"]} == {"offload"}
    assert main(["passes", "list", "--level", "offload", "--as-text"]) == 2
    assert "choose from disable, basic" in capsys.readouterr().err


def test_without_and_with_only_some_passes(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(samples, tmp_path, "--disable_pass", "ConvAddFusion", "--disable-pass", "ConstantFolding")
    found = rewrites(capsys)
    assert "MatMulAddFusion" in found
    assert not {"ConvAddFusion", "ConstantFolding"} & found.keys()
    convert(samples, tmp_path, "--only-pass", "ConvAddFusion")
    assert rewrites(capsys) == {"ConvAddFusion": 2}
    convert(samples, tmp_path, "--stop-after", "1")
    assert sum(rewrites(capsys).values()) == 1


def test_an_unknown_pass_gets_the_nearest_name(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(samples / "mnist.onnx"), "--disable-pass", "ConvAddFuson"]) == 2
    assert "did you mean ConvAddFusion?" in capsys.readouterr().err


def test_verify_each_names_the_pass_that_is_wrong(samples: Path, tmp_path: Path, wrong_fusion: None) -> None:
    with pytest.raises(MismatchError, match="after WrongFusion: output"):
        ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", verify_each=True)
