"""What a person sees of a batch, and verbs on folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from ortconv.batch import Failure
from ortconv.cli import main
from ortconv.cli.batch_view import BatchView, _cut, _duration
from ortconv.errors import CrashError, FormatError, LimitError
from ortconv.watch import Activity
from tests.batch_models import folder_of

posix = pytest.mark.skipif(os.name != "posix", reason="paths and links of POSIX")


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def models() -> dict[str, str]:
    return folder_of(Path("in"), 5, ["corrupt", "unreadable"])


CONVERT = ["convert", "in", "--output-dir", "out", "--no-validate", "--jobs", "2"]


@posix
def test_lines_counts_and_a_table_of_failures(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CONVERT) == 7
    shown = capsys.readouterr()
    lines = sorted(shown.out.splitlines())
    assert [line.split(" -> ")[0] for line in lines] == [f"in/m000{i}.onnx" for i in (1, 2, 3)]
    assert re.fullmatch(r"in/m0001.onnx -> out/m0001.ort: 3 -> 2 nodes, \d.\d kB, not checked", lines[0])
    errors = [line for line in shown.err.splitlines() if line.startswith("error: in/")]
    assert len(errors) == 2
    assert any(
        "m0000.onnx: not a valid ONNX model" in line and "export or download it again" in line for line in errors
    )
    assert re.search(r"\nkind +model +reason\ndamaged file +in/m0000.onnx +not a valid", shown.err)
    assert re.search(
        r"\n3 of 5 converted in \d\.\d s, 2 failed\noperator config out/required_operators.config\n", shown.err
    )
    assert "error: in: 2 of 5 models could not be converted\nhint: --resume tries these again" in shown.err
    assert main([*CONVERT, "--resume", "--allow-conversion-failures"]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("unchanged") == 3
    assert "3 of 5 converted" in shown.err
    assert ", 2 failed, 3 unchanged\n" in shown.err


@pytest.mark.slow
def test_a_folder_named_like_a_model_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in/x.onnx"), 1, [])
    assert main([*CONVERT[:-2], "-q"]) == 0
    Path("out/y.ort").mkdir()
    assert main(["ops", "from", "out", "-o", "out/all.config"]) == 0
    (file,) = (path for path in Path("out").rglob("*.ort") if path.is_file())
    assert file.name == "m0000.ort"
    assert main(["ops", "from", str(file.rename("out/without_suffix")), "-o", "out/one.config"]) == 0


@pytest.mark.slow
def test_hidden_files_and_folders_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 1, [])
    (model,) = Path("in").glob("*.onnx")
    for hidden in (".x.onnx", ".venv/site-packages/x.onnx", "a/.cache/x.onnx", "a/x.optimized.onnx"):
        Path("in", hidden).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(model, Path("in", hidden))
    assert main(["convert", "in", "-o", ".out", "--no-validate"]) == 0
    assert "1 of 1 converted" in capsys.readouterr().err
    assert main(["verify", ".out", "-q"]) == 0


@pytest.mark.slow
def test_quiet(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CONVERT, "-q"]) == 7
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(line.startswith(("error: ", "hint: ")) for line in shown.err.splitlines())


@pytest.mark.slow
@posix
def test_one_line_of_json_for_each_model(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CONVERT, "--json"]) == 7
    *lines, document = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["source"]: line["status"] for line in lines} == {
        f"in/m000{i}.onnx": "failed" if i in (0, 4) else "converted" for i in range(5)
    }
    assert all(line["nodes_after"] == 2 for line in lines if line["status"] == "converted")
    assert (document["version"], document["total"], document["converted"], document["failed"]) == (1, 5, 3, 2)
    assert [(one["source"], one["kind"]) for one in document["failures"]] == [
        ("in/m0000.onnx", "damaged file"), ("in/m0004.onnx", "file or option"),
    ]  # fmt: skip
    assert document["written"] == ["operator config out/required_operators.config"]


@pytest.mark.slow
@posix
def test_markdown(models: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CONVERT, "--github"]) == 2
    assert "GITHUB_STEP_SUMMARY is not set" in capsys.readouterr().err
    assert not Path("out").exists()
    Path("step.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    assert main([*CONVERT, "--github", "--summary", "s.md", "-q"]) == 7
    text = Path("s.md").read_text()
    assert Path("step.md").read_text() == "before\n" + text
    assert re.match(r"### ortconv: 3 of 5 converted in \d\.\d s, 2 failed\n\n- operator config out/", text)
    assert "\n\n| kind | model | reason |\n" in text
    assert "| damaged file | in/m0000.onnx | not a valid ONNX model" in text
    assert main([*CONVERT, "--summary", "in/m0001.onnx"]) == 2


def test_all_parts_of_a_summary_state_one_duration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ortconv.cli.batch_view.time", SimpleNamespace(monotonic=count(1.0).__next__))
    BatchView("converted", 0, as_json=False, quiet=False, _began=0.0).end(summary=Path("s.md"))
    assert "converted in 1.0 s" in Path("s.md").read_text()
    assert "converted in 1.0 s" in capsys.readouterr().err


def test_text_of_models_is_no_markup() -> None:
    view = BatchView("converted", 1, as_json=False, quiet=True)
    view.fail(Failure("a|b.onnx", CrashError("node `x` | <b>\n# y")))
    assert "| crash | a\\|b.onnx | node \\`x\\` \\| &lt;b> \\# y |" in view._markdown()


def test_a_failure_names_the_node() -> None:
    failure = Failure("a.onnx", CrashError("it is wrong", node="Relu 'r'"))
    view = BatchView("converted", 1, as_json=False, quiet=True, failures=[failure])
    assert view._rows() == [("crash", "a.onnx", "Relu 'r': it is wrong")]
    assert failure.to_dict()["error"] == "Relu 'r': it is wrong"


def test_failures_are_sorted_by_kind() -> None:
    view = BatchView("converted", 3, as_json=False, quiet=True)
    for name, error in (("c", LimitError("1")), ("b", FormatError("2")), ("a", LimitError("3"))):
        view.fail(Failure(name, error))
    assert view._rows() == [("damaged file", "b", "2"), ("limit", "a", "3"), ("limit", "c", "1")]


def test_an_error_of_a_batch_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 1, [])
    assert main([*CONVERT, "--json", "--disable-pass", "x"]) == 2
    assert [json.loads(line)["exit_code"] for line in capsys.readouterr().out.splitlines()] == [2]


@pytest.mark.slow
@posix
def test_styles_are_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 2, [])
    assert main([*CONVERT, "--optimization-style", "Fixed", "Runtime"]) == 0
    shown = capsys.readouterr().err
    assert "4 of 4 converted" in shown
    assert "operator config out/required_operators.config\n" in shown
    assert "operator config out/required_operators.with_runtime_opt.config\n" in shown


@pytest.mark.parametrize("flags", [["--summary", "s.md"], ["--github"], ["--cluster", "local:2"], ["--resume"]])
def test_options_of_folders(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 1, [])
    verbs = ("convert",) if flags == ["--resume"] else ("convert", "partition", "run", "verify")
    for verb in verbs:
        assert main([verb, "in/m0000.onnx", *flags]) == 2
        assert f"{flags[0]} needs a directory of models" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- live display


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("height", [4, 24])
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    view = BatchView("converted", 500, as_json=False, quiet=False, finished=120)
    busy = [(f"models/{'deep/' * i}model\x1b{i}.onnx", Activity(stage="optimize"), float(i)) for i in range(8)]
    lines = view._picture(lambda: busy, width, height).plain.split("\n")
    assert all(len(line) < width for line in lines)
    assert len(lines) <= height
    assert "\x1b" not in "".join(lines)
    assert re.search(r"120 of 500", lines[-1])
    if height == 24:
        assert len(lines) == 9
        assert lines[0].startswith("    7 s  optimize  models/dee")
        assert lines[0].endswith("7.onnx")


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [("abc", 10, "abc"), ("a" * 30 + "b" * 30, 40, "a" * 19 + "…" + "b" * 19), ("abcdef", 4, "a…f")],
)
def test_long_names_lose_their_middle(text: str, width: int, cut: str) -> None:
    assert _cut(text, width) == cut


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (41.2, "41 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_finished_models_scroll_above_the_display(here: Path) -> None:
    import os
    import pty
    import subprocess

    folder_of(Path("in"), 6, ["corrupt"])
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "COLUMNS": "100",
    }
    command = [sys.executable, "-m", "ortconv", *CONVERT]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait(60) == 7
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode())
    lines = [line.strip() for line in re.split(r"\r|\n|\x1b\[[0-9]*[A-Z]", plain)]
    assert "of 6" in plain
    assert not [line for line in lines if "━" in line and "->" in line]
    assert (
        len([line for line in lines if re.fullmatch(r"in/\S+ -> out/\S+: 3 -> 2 nodes, \S+ kB, not checked", line)])
        == 5
    )


# ------------------------------------------------------------------------------------------------------------- other verbs


@posix
@pytest.mark.slow
def test_verify_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 3, [])
    assert main([*CONVERT, "-q"]) == 0
    assert main(["verify", "out", "--jobs", "2"]) == 0
    shown = capsys.readouterr()
    assert sorted(line.split(":")[0] for line in shown.out.splitlines()) == [f"out/m000{i}.ort" for i in range(3)]
    assert "3 of 3 verified" in shown.err
    data = Path("out/m0001.ort").read_bytes()
    Path("out/m0001.ort").write_bytes(data[: len(data) // 2])
    assert main(["verify", "out", "--json"]) == 7
    *lines, document = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["source"]: line["status"] for line in lines}["out/m0001.ort"] == "failed"
    assert (document["verified"], document["failed"]) == (2, 1)
    assert main(["verify", "in"]) == 2


@posix
@pytest.mark.slow
def test_partition_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 3, ["corrupt"])
    assert main(["partition", "in", "--jobs", "2"]) == 7
    shown = capsys.readouterr()
    assert len(re.findall(r"in/m000\d.onnx: \d partitions?, \d of 3 nodes\n", shown.out)) == 2
    assert "2 of 3 partitioned" in shown.err
    Path("in/m0000.onnx").unlink()
    assert main(["partition", "in", "--fail-on", "nodes>1", "-q"]) == 7
    assert capsys.readouterr().err.count("conditions of --fail-on hold") == 2
    for wrong in (
        ["--fail-on", "nods>1"],
        ["--svg", "x.svg"],
        ["--level", "aware", "--maximize-offload", "--stop-ops", "x,"],
    ):
        assert main(["partition", "in", *wrong]) in (2, 7)


@posix
def test_check_the_models_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>\ng (float[2] x) => (float[2] y) { y = Relu (x) }'
    )
    for number, expected in enumerate(([0.0, 2.0], [0.0, 3.0])):
        folder = Path("tests/relu") / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        for name, values in (("input_0.pb", [-1.0, 2.0]), ("output_0.pb", expected)):
            tensor = numpy_helper.from_array(np.float32(values))
            (folder / name).write_bytes(tensor.SerializeToString())
    onnx.save(model, "tests/relu/model.onnx")
    assert main(["run", "tests", "--check", "tests"]) == 7
    shown = capsys.readouterr()
    assert re.fullmatch(r"tests/relu/model.onnx with test_data_set_0: 1 output as expected, \d+\.\d\d ms\n", shown.out)
    assert "numbers differ  tests/relu/model.onnx with test_data_set_1  'y' differs" in shown.err
    assert "1 of 2 checked" in shown.err
    shutil.rmtree("tests/relu/test_data_set_1")
    assert main(["run", "tests", "-q"]) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--backend", "nmpy"], "did you mean numpy?"),
        (["--save", "x.npz"], "--save is for one model"),
        (["--inputs", "."], "--inputs is for one model"),
        (["--input", "x:2"], "--input is for one model"),
        (["--nodes", "y"], "--nodes is for one model"),
        (["--check", "other"], "--check is that directory"),
        ([], "has a folder test_data_set_0 next to it"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_once(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(Path("in"), 2, [])
    Path("other").mkdir()
    assert main(["run", "in", *flags]) == 2
    assert capsys.readouterr().err.count(words) == 1


@pytest.mark.slow
def test_the_arguments_reach_the_workers(capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(Path("in"), 2, [])
    documents: list[Any] = []
    for flags in ([], ["--nnapi-feature-level", "27", "--jobs", "1"]):
        assert main(["partition", "in", "--json", *flags]) == 0
        documents.append([json.loads(line) for line in capsys.readouterr().out.splitlines()][:-1])
    levels = [{document["feature_level"] for document in found} for found in documents]
    assert levels == [{31}, {27}]
