"""Planted faults shrink to a few nodes; the result is valid, has the fault, and comes from a bounded search that can go on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortconv
from ortconv.cli import main
from ortconv.errors import OrtconvError, UsageError
from ortconv.ir.graph import Node
from ortconv.optimizer.engine import Context, Match, New, P, Replacement, rule
from ortconv.optimizer.levels import run_passes
from ortconv.optimizer.passes import Pass
from ortconv.reduction.command import LATE, Command
from ortconv.reduction.journal import KnownResults
from tests.conftest import SAMPLES

MOST_NODES = 5


def nodes(path: Path) -> list[Node]:
    return list(ortconv.load(path).graph.walk())


def some(holds: Callable[[Node], bool]) -> Callable[[Path], bool]:
    """The fault of a model in which this holds for some node."""
    return lambda path: any(map(holds, nodes(path)))


def makes(op: str, node: Node, slot: int = 0) -> bool:
    """Whether an input of a node comes from this operator."""
    value = node.input(slot)
    return value is not None and value.producer is not None and value.producer.op == op


def outputs(path: Path, change: Callable[[Any], None] | None = None) -> list[Any]:
    """What a model computes of ones, after it was changed."""
    model = ortconv.load(path)
    if change is not None:
        change(model)
    session = ortconv.Session(model)
    feeds = {
        one.name: np.ones([d if isinstance(d, int) else 2 for d in one.shape or ()], model_type(one.type))
        for one in session.get_inputs()
    }
    return session.run(None, feeds)


def model_type(name: str) -> np.dtype[Any]:
    return np.dtype({"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}[name])


@rule("Wrong", P("Gemm", "x", "w", "b"))
def forget_bias(m: Match) -> Replacement:
    """Gemm(x, w, b) -> Gemm(x, w), which is wrong."""
    return New("Gemm", [m.x, m.w], like=m.root)


def wrong_rewrite(path: Path) -> bool:
    def rewrite(model: Any) -> None:
        list(run_passes(model.graph, (Pass("Wrong", forget_bias),), Context()))

    return any(not np.allclose(a, b, rtol=1e-2) for a, b in zip(outputs(path), outputs(path, rewrite), strict=True))


def not_finite(path: Path) -> bool:
    """Numbers differ if Clip lets everything through."""

    def widen(model: Any) -> None:
        for node in list(model.graph):
            if node.op == "Clip":
                model.graph.set_inputs(node, node.inputs[:1])

    return any(not np.array_equal(a, b) for a, b in zip(outputs(path), outputs(path, widen), strict=True))


FAULTS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "operator": ("bert_tiny", some(lambda n: n.op == "Erf")),
    "operator in a branch": ("if_branch", some(lambda n: n.op == "Tanh" and n.graph.parent is not None)),
    "attribute in the body of a loop": (
        "loop_accumulate",
        some(lambda n: n.graph.parent is not None and bool(n.attrs or n.op == "Mul")),
    ),
    "pair of operators": ("qdq_cnn", some(lambda n: n.op == "Conv" and makes("DequantizeLinear", n, 1))),
    "chain of three": (
        "mobilenet_v2_small",
        some(lambda n: n.op == "Clip" and makes("BatchNormalization", n) and makes("Conv", n.inputs[0].producer)),
    ),
    "two operators apart": (
        "bert_tiny",
        lambda path: {"Softmax", "Erf"} <= {n.op for n in nodes(path)},
    ),
    "weights of a size": ("mnist", some(lambda n: n.op == "Conv" and (n.inputs[1].shape or (0,))[0] == 16)),
    "shape with a symbol": (
        "bert_tiny",
        some(lambda n: n.op == "MatMul" and any(isinstance(d, str) for d in n.inputs[0].shape or ())),
    ),
    "wrong rewrite": ("mobilenet_v2_small", wrong_rewrite),
    "numeric difference": ("mobilenet_v2_small", not_finite),
    "node that NNAPI refuses": (
        "bert_tiny",
        lambda path: any(v.reasons for v in ortconv.inspect(path, lint="quantization").lint or ())
        or any(n.op == "Gather" for n in nodes(path)),
    ),
}  # fmt: skip
"""By name: a model, and a function that finds its fault."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shrinks_to_a_few_nodes(name: str, tmp_path: Path) -> None:
    sample, check = FAULTS[name]
    target = tmp_path / "small.onnx"

    def has_fault(path: Path) -> bool:
        try:
            return check(path)
        except OrtconvError:
            return False

    found = ortconv.reduce(SAMPLES / f"{sample}.onnx", target, has_fault)
    assert found.stopped is None
    assert 1 <= found.nodes_after <= min(MOST_NODES, found.nodes_before - 1)
    assert found.nodes_after == len(nodes(target)) == sum(found.operators.values())
    assert found.bytes_after == target.stat().st_size < found.bytes_before
    assert check(target)
    onnx.checker.check_model(onnx.load(target), full_check=True)


def test_inputs_shapes_and_constants_shrink_too(tmp_path: Path) -> None:
    found = ortconv.reduce(SAMPLES / "mobilenet_v2_small.onnx", tmp_path / "s.onnx", some(lambda n: n.op == "Conv"))
    model = ortconv.load(tmp_path / "s.onnx")
    (node,) = model.graph
    assert [v.static_shape for v in model.graph.inputs] == [(1, 1, 1, 1)]
    assert [v.const.size for v in model.graph.initializers.values() if v.const is not None] == [1]
    assert (len(node.inputs), found.bytes_after < 400) == (2, True)


# ---------------------------------------------------------------------- commands

PYTHON = f'"{sys.executable}" -ISc'
ABORTS = f"""{PYTHON} "import os, sys
if b'Clip_0_output' in open(sys.argv[1], 'rb').read(): print('boom', flush=True); os.abort()" {{}}"""

BOOM = f"{PYTHON} \"print('boom'); raise SystemExit(9)\" {{}}"


@pytest.mark.slow
def test_a_crash_of_a_command_is_reduced(tmp_path: Path) -> None:
    found = ortconv.reduce(SAMPLES / "mobilenet_v2_small.onnx", tmp_path / "s.onnx", ABORTS, expect_output="boom")
    aborted = 134 if os.name == "posix" else 3
    assert (found.operators, found.exit_code, found.stopped) == ({"Clip": 1}, aborted, None)


@pytest.mark.slow
def test_the_command_line_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, log = tmp_path / "s.onnx", tmp_path / "log"
    check = f"{PYTHON} \"import sys; open(r'{log}', 'a').write('.'); sys.exit(9)\" {{}}"
    line = ["reduce", str(SAMPLES / "mnist.onnx"), "-o", str(target), "--check", check]
    assert main([*line, "--steps", "4"]) == 0
    shown = capsys.readouterr()
    assert "the same command line goes on from here" in shown.out
    assert "1 run\n" in shown.err
    assert "4 runs\n" in shown.err
    first = target.read_bytes()
    assert len(log.read_text("utf-8")) == 5  # once to see that it fails
    assert main([*line, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"] > 0
    assert (document["known"], document["stopped"], document["exit_code"], document["nodes_after"]) == (4, None, 9, 1)
    assert len(target.read_bytes()) < len(first)
    assert [path.name for path in tmp_path.iterdir() if path != log] == ["s.onnx"]
    assert main(line) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_gate_of_ortconv_is_reduced(tmp_path: Path) -> None:
    check = f'"{sys.executable}" -m ortconv partition {{}} --fail-on "refused>0" --quiet'
    found = ortconv.reduce(SAMPLES / "qdq_cnn.onnx", tmp_path / "s.onnx", check, steps=4)
    assert (found.exit_code, found.stopped, found.nodes_after < 20) == (5, "steps", True)


def test_a_file_of_another_format_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
    assert main(["reduce", "m.tflite", "--check", "false"]) == 3
    assert "m.tflite: the file is a TensorFlow Lite model" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"use_nnapi": True}, {"optimization_style": "Runtime"}], ids=str)
def test_an_ort_file_is_reduced_to_one(settings: dict[str, Any], tmp_path: Path) -> None:
    ortconv.convert(SAMPLES / "qdq_cnn.onnx", tmp_path / "m.ort", validate=False, **settings)
    found = ortconv.reduce(tmp_path / "m.ort", tmp_path / "s.ort", some(lambda n: "MaxPool" in n.op))
    assert (found.nodes_after, found.stopped) == (1, None)
    assert ortconv.verify(tmp_path / "s.ort").findings == []
    with pytest.raises(UsageError, match=r"of the same format, \.ort"):
        ortconv.reduce(tmp_path / "m.ort", tmp_path / "s.onnx", lambda path: True)


@pytest.mark.slow
def test_a_search_for_another_failure_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "s.onnx"
    line = ["reduce", str(SAMPLES / "mnist.onnx"), "-o", str(target), "--check", BOOM]
    assert main([*line, "--steps", "2"]) == 0
    assert main([*line, "--steps", "2", "--expect-output", "boom"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*line, "--steps", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["known"] == 2
    target.unlink()
    assert main([*line, "--expect-output", "boom", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["known"] == 0


@pytest.mark.slow
def test_a_command_has_limits() -> None:
    sleeps = Command(f'{PYTHON} "import time; time.sleep(60)"', seconds=0.2)
    assert sleeps.run(SAMPLES / "mnist.onnx").exit_code == LATE
    if sys.platform == "linux":
        grows = Command(f'{PYTHON} "x = bytearray(1 << 30); print(1)"', bytes=256 << 20)
        assert "MemoryError" in grows.run(SAMPLES / "mnist.onnx").output


def test_a_path_with_spaces_is_one_argument(tmp_path: Path) -> None:
    for text in (f'{PYTHON} "import sys; print(sys.argv[1:])" {{}}', f'{PYTHON} "import sys; print(sys.argv[1:])"'):
        assert Command(text).run(tmp_path / "a b'c.onnx").output.strip() == str([str(tmp_path / "a b'c.onnx")])


@pytest.mark.parametrize(
    ("check", "options", "message"),
    [
        ("exit 0", {}, "does not fail on the whole model as it should: it ends with 0"),
        ("exit 3", {"expect_exit": 4}, "it ends with 3 and not 4"),
        ("exit 3", {"expect_output": "boom"}, "it does not print 'boom'"),
        (" ", {}, "is empty"),
        (lambda path: False, {}, "finds no fault"),
        (lambda path: path.parent == SAMPLES, {}, "when the model is written anew"),
    ],
)
def test_what_cannot_be_reduced_is_refused(check: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ortconv.reduce(SAMPLES / "mnist.onnx", tmp_path / "s.onnx", check, **options)
    assert not (tmp_path / "s.onnx").exists()


def test_an_interrupt_leaves_the_smallest_model(tmp_path: Path) -> None:
    tried = []

    def check(path: Path) -> bool:
        tried.append(path)
        if len(tried) == 4:
            raise KeyboardInterrupt
        return True

    found = ortconv.reduce(SAMPLES / "mnist.onnx", tmp_path / "s.onnx", check)
    assert (found.stopped, found.nodes_after < 12, len(nodes(tmp_path / "s.onnx"))) == (
        "interrupted", True, found.nodes_after,
    )  # fmt: skip


def test_time_bounds_the_search(tmp_path: Path) -> None:
    assert (
        ortconv.reduce(SAMPLES / "mnist.onnx", tmp_path / "s.onnx", lambda path: True, seconds=1e-9).stopped == "time"
    )


def test_results_are_kept_behind_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "results"
    KnownResults(path, "this").note("a", True)
    path.write_bytes(path.read_bytes() + b'{"version": 1, "sea')
    KnownResults(path, "this").note("b", False)
    KnownResults(path, "other").note("c", True)
    assert KnownResults(path, "this").known == {"a": True, "b": False}
