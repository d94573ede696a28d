"""What shells offer behind a word that is half typed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

from ortconv.cli import VERBS, cli, command_of
from tests.batches import slow_except
from tests.conftest import ROOT


def offered(line: str) -> list[str]:
    """The words, or "file", that are offered for the last word of a command line."""
    *before, last = line.split(" ")
    found = ShellComplete(cli, {}, "ortconv", "_ORTCONV_COMPLETE").get_completions(before, last)
    return [item.value if item.type == "plain" else item.type for item in found]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("insp", ["inspect"]),
        ("convert m.onnx --optimization-l", ["--optimization-level"]),
        ("convert m.onnx --optimization-level ext", ["extended"]),
        ("convert m.onnx --disable-pass Gelu", ["GeluFusion"]),
        ("convert m.onnx --disable-pass gelu", ["GeluFusion"]),
        ("convert m.onnx --only-pass Constant", ["ConstantFolding"]),
        ("passes explain Identity", []),
        ("passes explain EliminateIden", ["EliminateIdentity"]),
        ("convert m.onnx --keep-float32 Softm", ["Softmax"]),
        ("partition m.onnx --stop-ops NonMax", ["NonMaxSuppression"]),
        ("partition m.onnx --stop-ops NonMaxSuppression,TopK", ["NonMaxSuppression,TopK"]),
        ("run m.onnx --backend numpy", ["numpy", "numpy:reference"]),
        ("run m.onnx --backend nn", ["nnapi"]),
        ("run m.onnx --device gpu", ["file", "gpu-fp16"]),
        ("devices --device npu", ["file", "npu-int8"]),
        ("devices show gpu", ["gpu-fp16"]),
        ("devices show nnapi-ref", ["nnapi-reference"]),
        ("nnapi benchmark m.onnx --backend onnx", ["onnxruntime"]),
        ("nnapi dump m.onnx --device sample-q", ["file", "sample-quant"]),
        ("compare m.on", ["file"]),
        ("compare m.onnx m.ort@nna", ["m.ort@nnapi"]),
    ],
)
def test_offers(line, some):
    assert set(some) <= set(offered(line))
    if not some:
        assert offered(line) == []


NAMED = ("backend", "device", "keep_float", "pass", "profile", "stop_ops")


def params(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    """All parameters of a command and of those below it, with the command's name."""
    yield from ((name, param) for param in command.params)
    for inner, below in command.commands.items() if isinstance(command, click.Group) else ():
        yield from params(below, f"{name} {inner}")


def test_every_option_for_such_names_completes_them():
    left = [
        f"{name} {param.opts[-1]}"
        for verb in VERBS
        for name, param in params(command_of(verb), verb)
        if any(word in (param.name or "") for word in NAMED)
        and param._custom_shell_complete is None
        and not isinstance(param.type, click.Path | click.Choice | click.types.FuncParamType)
        and not getattr(param, "is_flag", False)
    ]
    assert left == []


def test_only_what_begins_so():
    assert offered("run m.onnx --backend zzz") == []
    assert all("," not in word for word in offered("partition m.onnx --stop-ops Top"))


def test_enable_pass_offers_passes_that_run_on_request():
    from ortconv.optimizer.catalog import entries

    assert offered("convert m.onnx --enable-pass ") == [e.name for e in entries() if e.opt_in]


posix = pytest.mark.skipif(os.name != "posix", reason="click completes in shells of POSIX")


@posix
@pytest.mark.parametrize("shell", slow_except(["bash"], ("bash", "zsh", "fish")))
def test_a_shell_completes(shell):
    words = "ortconv run m.onnx --backend num"
    fish = {"COMP_WORDS": words, "COMP_CWORD": "num"}
    place = fish if shell == "fish" else {"COMP_WORDS": words, "COMP_CWORD": "4"}
    ran = subprocess.run(
        [sys.executable, "-m", "ortconv"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "_ORTCONV_COMPLETE": f"{shell}_complete", **place},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "numpy" in ran.stdout
    assert "numpy:reference" in ran.stdout
    assert "nnapi" not in ran.stdout


@posix
@pytest.mark.parametrize("shell", slow_except(["bash"], ("bash", "zsh", "fish")))
def test_a_shell_gets_its_script(shell):
    ran = subprocess.run(
        [sys.executable, "-m", "ortconv"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "_ORTCONV_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ortconv" in ran.stdout
