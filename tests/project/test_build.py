"""Builds: what is out of date, artifacts with manifests and one config, gates, and what a reviewer reads of a regression."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortconv
from ortconv.cli import main
from ortconv.errors import BatchError, GateError
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.pipeline.manifest import verify_manifest

pytestmark = pytest.mark.slow

PROJECT = """
[options]
use-nnapi = true
[models.mnist]
source = "models/mnist.onnx"
[models.cnn]
source = "models/qdq_cnn.onnx"
[gates]
"""


@pytest.fixture(scope="module")
def accepted(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose artifacts are accepted."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "models").mkdir()
    for name in ("mnist", "qdq_cnn"):
        shutil.copy(samples / f"{name}.onnx", folder / "models")
    (folder / "ortconv.toml").write_text(PROJECT)
    assert [a.check is not None and a.check.updated for a in ortconv.build(folder, update=True).artifacts] == [
        True,
        True,
    ]
    return folder


@pytest.fixture
def repository(accepted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(accepted, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_artifacts(repository: Path) -> None:
    out = repository / "ort_models"
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {
        "mnist.ort", "mnist.manifest.json", "cnn.ort", "cnn.manifest.json", "required_operators.config",
    }  # fmt: skip
    for path in out.glob("*.json"):
        assert verify_manifest(path).findings == []
    config = RequiredOperators.parse((out / "required_operators.config").read_text())
    for path in out.glob("*.manifest.json"):
        assert config.missing(RequiredOperators.parse("\n".join(json.loads(path.read_text())["required"]))) == []
    assert {path.name for path in (repository / "baselines").iterdir()} == {
        "mnist.json",
        "mnist.model",
        "cnn.json",
        "cnn.model",
    }


def test_only_what_is_out_of_date_is_made(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (repository / "ort_models/mnist.ort").stat().st_mtime_ns
    found = ortconv.build(repository)
    found.refuse()
    assert [a.unchanged for a in found.artifacts] == [True, True]
    assert (repository / "ort_models/mnist.ort").stat().st_mtime_ns == before
    assert "2 gates" not in str(found.failed_gates)
    (repository / "ort_models/mnist.manifest.json").unlink()
    assert [a.unchanged for a in ortconv.build(repository).artifacts] == [False, True]
    assert [a.unchanged for a in ortconv.build(repository, models=["cnn"], force=True).artifacts] == [False]
    assert main(["build"]) == 0
    shown = capsys.readouterr().out
    assert "2 artifacts of ortconv.toml: everything is fine" in shown
    assert shown.count("all 8 pass") == 2


def retrain(path: Path) -> None:
    """Move all float weights of a model by a little."""
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.data_type == 1:
            tensor.CopyFrom(
                onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) + np.float32(0.01), tensor.name)
            )
    onnx.save(proto, path)


def append(path: Path, op: str, name: str) -> None:
    """Let another operator follow on the model's output."""
    proto = onnx.load(path)
    output = proto.graph.output[0].name
    proto.graph.node[-1].output[0] = "inner"
    proto.graph.node.append(onnx.helper.make_node(op, ["inner"], [output], name))
    onnx.save(proto, path)


def test_regressions_are_caught_and_can_be_accepted(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    retrain(repository / "models/mnist.onnx")
    append(repository / "models/mnist.onnx", "Ceil", "rounding")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository / "step.md"))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(repository))
    assert main(["build", "--github", "--summary", "out.md"]) == 5
    shown = capsys.readouterr()
    for text in (
        "mnist: coverage is 88.89%, 100% in the baseline (coverage<-0): refused: Ceil by operator 0 -> 1",
        "mnist: missing is 1, 0 in the baseline (missing>0): ai.onnx;6;Ceil",
        "mnist: outputs is 1, 0 in the baseline (outputs>0): 'Plus214_Output_0'",
        "hint: if this is meant, accept it: ortconv build --update",
        "::error file=models/mnist.onnx,title=ortconv%3A mnist%2C gate missing>0::missing is 1",
    ):
        assert text in shown.err
    assert "3 gates fail" in shown.out
    summary = (repository / "step.md").read_text()
    assert summary == (repository / "out.md").read_text()
    assert "### 2 artifacts of ortconv.toml: 3 gates fail" in summary
    assert "| missing | 0 | 1 |" in summary
    assert main(["build", "--update", "-q"]) == 0
    assert main(["build", "-q"]) == 0


def test_failures_of_single_models(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "models/mnist.onnx").write_bytes(b"no model")
    (repository / "baselines/cnn.json").unlink()
    found = ortconv.build(repository)
    assert [a.file for a in found.artifacts] == ["", str(repository / "ort_models/cnn.ort")]
    assert "cnn.json yet" in found.artifacts[1].error
    assert found.config == ""
    with pytest.raises(BatchError, match="2 of 2 artifacts failed, the first: mnist"):
        found.refuse()
    assert main(["build", "--json"]) == 7
    shown = capsys.readouterr()
    assert json.loads(shown.out)["artifacts"][0]["error"]
    assert f"error: {Path('models/mnist.onnx')}:" in shown.err


def test_a_gate_of_convert_keeps_the_file_in_place(repository: Path) -> None:
    before = (repository / "ort_models/mnist.ort").read_bytes()
    (repository / "ortconv.toml").write_text(
        PROJECT.replace("use-nnapi = true", 'use-nnapi = true\nfail-on = ["size<100x"]')
    )
    found = ortconv.build(repository, models=["mnist"])
    assert "conditions of --fail-on hold" in found.artifacts[0].error
    with pytest.raises(GateError, match="1 gate fails: mnist: 1 of 1 conditions of --fail-on hold: size is"):
        found.refuse()
    assert (repository / "ort_models/mnist.ort").read_bytes() == before


def test_targets_have_folders(repository: Path) -> None:
    text = (
        PROJECT
        + 'fail-on = "partitions>0"\n[targets.android]\nuse-nnapi = true\n[targets.ios]\nuse-coreml = true\nuse-nnapi = false\n'
    )
    (repository / "ortconv.toml").write_text(text)
    found = ortconv.build(repository, models=["mnist"], update=True)
    assert [a.file for a in found.artifacts] == [
        str(repository / f"ort_models/{t}/mnist.ort") for t in ("android", "ios")
    ]
    assert [a.check.target[0] for a in found.artifacts if a.check is not None] == ["ep=nnapi", "ep=coreml"]
    found = ortconv.build(repository, models=["mnist"])
    assert [message.partition(" is")[0] for message in found.failed_gates] == [
        "mnist for android: partitions",
        "mnist for ios: partitions",
    ]
    with pytest.raises(GateError, match="2 gates fail: mnist for android: partitions is 1"):
        found.refuse()


def test_the_time_limit_is_that_of_a_model(repository: Path) -> None:
    """The command itself takes longer than this."""
    command = [sys.executable, "-m", "ortconv", "build", "mnist", "--force", "--timeout", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert "mnist: not done after 0.001 s, the time limit" in done.stderr
