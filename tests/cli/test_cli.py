"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ortconv.cli import VERBS, main
from tests.batches import slow_except


def ortconv(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ortconv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.parametrize("verb", ["", *VERBS])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_verb_has_help(verb: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*([verb] if verb else []), flag]) == 0
    assert "Usage: ortconv" in capsys.readouterr().out


@pytest.mark.parametrize("verb", slow_except([["convert"]], ([], ["convert"], ["diff"])))
def test_help_imports_nothing_heavy(verb: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "ortconv", *verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"numpy", "onnx", "rich", "onnxruntime", "flatbuffers"}


def test_convert_run_verify(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", samples / "mnist.onnx", "--use_nnapi", "--optimization_level", "extended", "-o", tmp_path]
    assert main([str(a) for a in arguments]) == 0
    assert "1 partition, 8 of 8 nodes" in capsys.readouterr().out
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["mnist.extended.ort", "mnist.required_operators.extended.config"]
    images = np.load(samples / "mnist_test.npz")["images"][:1].astype(np.float32)
    np.savez(tmp_path / "feeds.npz", Input3=images)
    model, got = str(tmp_path / "mnist.extended.ort"), {}
    for backend in ("numpy", "onnxruntime"):
        out = tmp_path / f"{backend}.npz"
        feeds = str(tmp_path / "feeds.npz")
        assert main(["run", model, "--inputs", feeds, "--save", str(out), "--backend", backend, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["backends"] == [backend]
        got[backend] = np.load(out)["Plus214_Output_0"]
    np.testing.assert_allclose(got["numpy"], got["onnxruntime"], rtol=0, atol=1e-5 * np.abs(got["onnxruntime"]).max())
    assert main(["verify", model]) == 0


def test_both_spellings_of_flags(samples: Path, tmp_path: Path) -> None:
    for i, (level, nnapi) in enumerate(
        [("--optimization-level", "--use-nnapi"), ("--optimization_level", "--use_nnapi")]
    ):
        out = tmp_path / str(i) / "model.ort"
        assert main(["convert", str(samples / "mnist.onnx"), level, "basic", nnapi, "-o", str(out), "--quiet"]) == 0
    assert (tmp_path / "0/model.ort").read_bytes() == (tmp_path / "1/model.ort").read_bytes()


@pytest.mark.slow
def test_a_directory_of_models(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "models"
    (source / "deep").mkdir(parents=True)
    shutil.copy(samples / "mnist.onnx", source / "a.onnx")
    shutil.copy(samples / "if_branch.onnx", source / "deep" / "b.onnx")
    shutil.copy(samples / "mnist.onnx", source / "a.optimized.onnx")
    out = tmp_path / "out"
    assert main(["convert", str(source), "--output_dir", str(out), "--optimization_level", "basic", "--json"]) == 0
    *models, document = map(json.loads, capsys.readouterr().out.splitlines())
    assert sorted(Path(m["source"]).name for m in models) == ["a.onnx", "b.onnx"]
    assert (document["total"], document["converted"], document["failures"]) == (2, 2, [])
    found = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert found == [".ortconv-journal.jsonl", "a.basic.ort", "deep/b.basic.ort", "required_operators.basic.config"]


@pytest.mark.slow
def test_part_of_a_batch_fails(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(samples / "mnist.onnx", tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"this is not a model")
    assert main(["convert", str(tmp_path), "-q"]) == 7
    message = capsys.readouterr().err
    assert "bad.onnx" in message
    assert "1 of 2 models" in message
    assert (tmp_path / "good.ort").exists()
    assert main(["convert", str(tmp_path), "-q", "--allow_conversion_failures"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["convert", "{samples}/missing.onnx"], 2, "does not exist"),
        (["convert", "{samples}/mnist.onnx", "--optimization_level", "most"], 2, "most"),
        (["convert", "{samples}/mnist.onnx", "--nnapi_feature_level", "26"], 2, "26"),
        (["convert", "{samples}/mnist.onnx", "--nnapi_feature_level", "9" * 5000], 2, "no feature level"),
        (["convert", "{samples}/mnist.onnx", "--nnapi_feature_level", "29"], 2, "no effect without --use-nnapi"),
        (
            ["convert", "{samples}/mnist.onnx", "--coreml-version", "6", "--use-nnapi"],
            2,
            "no effect without --use-coreml",
        ),
        (["convert", "{samples}/mnist.onnx", "--allow-unchecked", "--no-validate"], 2, "leave out --no-validate"),
        (["convert", "{tmp}/text.onnx"], 3, "text.onnx"),
        pytest.param(["convert", "{tmp}"], 7, "", marks=pytest.mark.slow),
        (["convert", "{tmp}", "-o", "{tmp}/all.ort"], 2, "one .ort file cannot hold a directory of models"),
        (["run", "{samples}/mnist.onnx", "--backend", "gpu"], 2, "known backends: litert, nnapi, numpy, onnxruntime"),
        (["run", "{samples}/mnist.onnx", "--inputs", "{tmp}/text.onnx"], 3, "not an .npz archive"),
        (["run", "{samples}/mnist.onnx", "--inputs", "{tmp}/wrong.npz"], 2, "no input 'x'"),
        (["verify", "{samples}/mnist.onnx"], 3, "mnist.onnx"),
        (["optimise"], 2, "optimise"),
    ],
)
def test_bad_input_gets_one_message_and_its_exit_code(
    arguments: list[str], code: int, words: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    np.savez(tmp_path / "wrong.npz", x=np.zeros(3))
    assert main([a.format(samples=samples, tmp=tmp_path) for a in arguments]) == code
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert words in shown.err
    assert shown.out == ""


def test_a_process_exits_with_the_code(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    done = ortconv("convert", tmp_path / "text.onnx")
    assert (done.returncode, done.stdout) == (3, "")
    assert "text.onnx" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_same_bytes_in_every_process(samples: Path, tmp_path: Path) -> None:
    written = []
    for seed in ("1", "4242"):
        out = tmp_path / seed
        done = ortconv("convert", samples, "-o", out, "--no-validate", "-q", "--use_nnapi", PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        written.append({path.name: path.read_bytes() for path in out.glob("*.ort")})
    assert len(written[0]) == len(list(samples.glob("*.onnx")))
    assert written[0] == written[1]


KILLED = """
import os, signal, sys
from pathlib import Path
left, folder = int(sys.argv[1]), sys.argv[2]

def hook(event, given):
    global left
    if event in ("open", "os.mkdir", "os.chmod", "os.rename", "os.remove") and str(given[0]).startswith(folder):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

from ortconv.cli import main
sys.addaudithook(hook)
sys.exit(main(["convert", sys.argv[3], "-o", folder + "/model.ort", "-q"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_killed_at_any_moment_nothing_is_lost(samples: Path, tmp_path: Path) -> None:
    """Killed before each thing that it does to the folder of the output, in turn."""
    target = tmp_path / "out" / "model.ort"
    target.parent.mkdir()
    source = samples / "mnist.onnx"
    assert main(["convert", str(source), "-o", str(target), "-q"]) == 0
    complete = target.read_bytes()
    for moment in range(100):
        target.write_bytes(b"before")
        command = [sys.executable, "-c", KILLED, str(moment), str(target.parent), str(source)]
        code = subprocess.run(command).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert target.read_bytes() in (b"before", complete)
    assert moment > 4
    assert sorted(p.name for p in target.parent.iterdir()) == ["model.ort", "model.required_operators.config"]
    assert target.read_bytes() == complete
