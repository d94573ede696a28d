"""What every verb does at a terminal and in a pipe: outputs, tables, errors as JSON, names that are nearly right, streams."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import onnx
import onnx.helper
import onnx.parser
import pytest

from ortconv.cli import LINES, VERBS, cli, color, main, printable, progress
from ortconv.cli.options import Role, is_output, role_of
from ortconv.cli.render import grid, labeled
from ortconv.report.sections import Toned
from tests.batches import slow_except

MNIST = Path(__file__).resolve().parents[2] / "sample_models" / "mnist.onnx"


pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def k() -> Path:
    return Path(shutil.copy(MNIST, "k.onnx"))


def dynamic(name: str, kind: str = "float") -> Path:
    Path(name).parent.mkdir(exist_ok=True)
    text = (
        f'<ir_version: 8, opset_import: ["": 17]>\ng ({kind}[batch,3] x) => ({kind}[batch,3] y) {{ y = Identity(x) }}'
    )
    Path(name).write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return Path(name)


# ------------------------------------------------------------------------------------------------------------------ outputs

OVERWRITING = {
    "run --save": "run k.onnx --save k.onnx",
    "run --save of another spelling": "run k.onnx --save ./x/../k.onnx",
    "run --save of a link": "run k.onnx --save link.npz",
    "run --save of its inputs": "run k.onnx --inputs i.npz --save i.npz",
    "run --save of one input": "run k.onnx --input Input3=i.npz --save i.npz",
    "run --profile": "run k.onnx --profile k.onnx",
    "run --save and --profile": "run k.onnx --profile o.x --save o.x",
    "partition --html": "partition k.onnx --html k.onnx",
    "partition --svg": "partition k.onnx --svg k.onnx",
    "partition --svg and --html": "partition k.onnx --svg o.x --html o.x",
    "partition --svg of another model": "partition k.onnx --svg other.ort",
    "partition --svg of a device": "partition k.onnx --svg d.toml --device d.toml",
    "nnapi benchmark --html": "nnapi benchmark k.onnx --repeat 1 --html k.onnx",
    "ops from": "ops from d -o d/k.ort",
    "ops from one": "ops from d/k.ort -o d/k.ort",
    "convert": "convert k.onnx -o k.onnx",
    "convert to a model's name": "convert k.onnx -o out.onnx",
    "convert over its inputs": "convert k.onnx -o i.ort --validate-with i.ort",
}


@pytest.mark.parametrize("case", slow_except([*OVERWRITING][::2], OVERWRITING))
def test_no_output_is_an_input(case: str, k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("d").mkdir()
    Path("x").mkdir()
    assert main(["convert", "k.onnx", "-o", "d/k.ort", "-q", "--no-validate"]) == 0
    for name in ("i.npz", "i.ort", "other.ort"):
        Path(name).write_bytes(b"mine")
    Path("d.toml").write_text("name = 'mine'")
    os.link("k.onnx", "link.npz") if os.name == "nt" else os.symlink("k.onnx", "link.npz")
    before = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    assert main(OVERWRITING[case].split()) == 2
    assert {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()} == before
    assert capsys.readouterr().err.count("error:") == 1


def test_a_config_may_take_another_one_in(k: Path) -> None:
    Path("a.config").write_text("ai.onnx;13;Relu\n")
    Path("b.config").write_text("ai.onnx;13;Neg\n")
    assert main(["ops", "merge", "a.config", "b.config", "-o", "a.config"]) == 0
    assert "Neg,Relu" in Path("a.config").read_text()


def every_option() -> Iterator[tuple[str, click.Parameter]]:
    context = click.Context(cli)
    for verb in VERBS:
        command = cli.get_command(context, verb)
        for one in (command, *getattr(command, "commands", {}).values()):
            yield from ((f"{verb} {p.opts[-1]}", p) for p in one.params)


def test_outputs_have_a_role() -> None:
    """A path that need not exist is one that the command writes."""
    written = {name for name, p in every_option() if isinstance(p.type, click.Path) and not p.type.exists}
    assert written == {name for name, p in every_option() if is_output(p)}
    assert written >= {"convert --output", "convert --output-dir", "run --save", "partition --svg", "nnapi --html"}


def test_views_have_a_role() -> None:
    names = {"--json", "--quiet", "--verbose", "--markdown", "--dark"}
    flags = {name for name, p in every_option() if name.partition(" ")[2] in names}
    assert flags - {name for name, p in every_option() if role_of(p) is Role.VIEW} == {"run --verbose"}


def test_a_page_lists_the_options_that_decide_about_it(k: Path) -> None:
    line = "partition k.onnx --level basic --html page.html --svg p.svg --dark --markdown --min-nodes 2 -q"
    assert main(line.split()) == 0
    page = Path("page.html").read_text("utf-8")
    assert "--level" in page
    assert "--min-nodes" in page
    assert not any(name in page for name in ("--html", "--svg", "--dark", "--markdown", "--quiet"))


UNWRITABLE = ["convert {} -o m.txt/m.ort", "convert {} -o m.txt", "run {} --save m.txt/x.npz", "run {} --save folder",
              "partition {} --html m.txt/x.html", "run {} --profile m.txt/x.json", "convert {} --output-dir m.txt",
              "nnapi benchmark {} --repeat 1 --backend numpy --html m.txt/x.html", "run {} --save pipe"]  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
@pytest.mark.parametrize("line", slow_except(UNWRITABLE[::3], UNWRITABLE))
def test_what_cannot_be_written_is_a_usage_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.txt").write_text("mine")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    assert main([word.format(MNIST) for word in line.split()]) == 2
    said = capsys.readouterr().err
    assert any(name in said for name in ("m.txt", "folder", "pipe"))
    assert ".ortconv-" not in said
    assert Path("m.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "line", ["reduce {} --check false -o m.txt/x.onnx", "run {} --backend nnapi --nnapi-cache m.txt/c"]
)
def test_a_path_that_cannot_be_written_is_named(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.txt").write_text("mine")
    assert main([word.format(MNIST) for word in line.split()]) == 2
    said = capsys.readouterr().err
    assert "error: m.txt" in said
    assert "write: Not a directory" in said or os.name != "posix"


def test_a_name_that_leaves_no_room_for_endings() -> None:
    name = "n" * 241 + ".ort"
    assert main(["convert", str(MNIST), "-o", name, "-q", "--no-validate", "--save-optimized-onnx-model"]) == 0
    names = [p.name for p in Path().iterdir()]
    assert name in names
    assert sorted(len(n) for n in names) == [245, 255, 255]


# ------------------------------------------------------------------------------------------------------------------- errors


def test_a_name_that_is_near_to_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "explain", "Foo"]) == 2
    assert "hint: see: ortconv passes list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "near"),
    [("covert k.onnx", "convert"), ("run k.onnx --backend nunpy", "numpy"), ("nnapi dmup k.onnx", "dump"),
     ("run k.onnx --backend nnapi --device gpu-fp61", "gpu-fp16"), ("run k.onnx --sede 3", "seed"),
     ("passes explain gelu", "gelufusion"), ("convert k.onnx --level basic", "--optimization-level")],
)  # fmt: skip
def test_the_nearest_name(line: str, near: str, k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr().err.lower()
    assert "did you mean" in said
    assert near in said


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [("run none.onnx", "MODEL: path 'none.onnx' does not exist", None),
     ("convert k.onnx --use-nnpai", "no such option", "did you mean --use-nnapi?"),
    ("run k.onnx --html k.html", "no such option", "MODEL may be a directory of models"),
     ("convert k.onnx l.onnx", "got unexpected extra argument (l.onnx)", "MODEL may be a directory of models"),
     ("tune k.onnx l.onnx", "got unexpected extra argument (l.onnx)", "see ortconv tune --help"),
     ("diff k.onnx", "missing argument 'B'", "usage: ortconv diff [OPTIONS] A B; see ortconv diff --help"),
     ("partition k.onnx --nnapi-feature-level 26", "--nnapi-feature-level: NNAPI has no feature level 26", None),
     ("run k.onnx --seed x", "--seed: 'x' is not a valid whole number", None),
     ("run k.onnx --rtol nan", "--rtol: 'nan' is not a finite number", None),
     ("run k.onnx --timeout inf", "--timeout: 'inf' is not a finite number", None),
     ("convert k.onnx -o -", "-o -: results are written to files, not to stdout", "name a file"),
     ("ops build-command k.onnx", "missing option '--platform'. Choose from: android, ios, linux, macos, windows",
      "see ortconv ops build-command --help"),
     ("devices nearest", "ortconv devices has no command 'nearest'", "choose from show")],
)  # fmt: skip
def test_wrong_arguments_end_as_all_errors_do(
    line: str, error: str, hint: str | None, k: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {error}")
    assert len(rest) == (hint is not None)
    assert not hint or (rest[0].startswith("hint: ") and rest[0].endswith(hint))


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: ortconv ops")


@pytest.mark.parametrize(
    ("line", "code"),
    [("convert bad.onnx -o m.ort", 3), ("run bad.onnx", 3), ("partition bad.onnx", 3), ("verify bad.ort", 3), ("run none.onnx", 2),
     ("run k.onnx --seed x", 2), ("compare k.onnx", 2), ("convert k.onnx -o m.onnx", 2)],
)  # fmt: skip
def test_a_failure_is_a_document(line: str, code: int, k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.onnx").write_bytes(b"no model")
    Path("bad.ort").write_bytes(b"no model")
    assert main([*line.split(), "--json"]) == code
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["exit_code"] == code
    assert found["error"]
    assert set(found) == {"version", "error", "file", "node", "hint", "exit_code"}
    assert shown.err


def test_a_failure_after_the_document_adds_none(k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "k.onnx", "k.onnx", "--fail-on", "max_abs>=0", "--json"]) == 5
    assert "version" in json.loads(capsys.readouterr().out)


def test_memory_that_there_is_not(k: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr("ortconv.runtime.session.Session.run", refuse)
    assert main(["run", "k.onnx"]) == 3
    assert "out of memory: Unable to allocate 3 TiB" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["\ud800", "a\0b"] if os.name == "posix" else ["a\0b"])
def test_arguments_that_name_nothing(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", argument]) == 2
    assert capsys.readouterr().err.startswith("error: argument")


def test_verify_says_what_it_takes(k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "k.onnx"]) == 3
    assert "ortconv convert makes an .ort file" in capsys.readouterr().err


def run(*arguments: str, redirect: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell, its stdout redirected."""
    line = f'exec "$0" -m ortconv "$@" {redirect}'
    return subprocess.run(["/bin/sh", "-c", line, sys.executable, *arguments], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closes streams in a shell")
def test_a_closed_stdout(k: Path) -> None:
    found = run("convert", "k.onnx", "-o", "m.ort", redirect=">&-")
    assert (found.returncode, found.stderr) == (0, "")
    assert run("verify", "m.ort", redirect="<&- >&- 2>&-").returncode == 0


@pytest.mark.slow
def test_characters_that_a_console_lacks(k: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding is that of Western consoles of Windows."""
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    command = [sys.executable, "-m", "ortconv", "convert", "k.onnx", "-o", "\u2192.ort", "--no-validate"]
    found = subprocess.run(command, capture_output=True, encoding="cp1252")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("k.onnx -> \\u2192.ort\n")


@pytest.mark.skipif(os.name != "posix", reason="closes a pipe in a shell")
@pytest.mark.parametrize(
    "arguments",
    slow_except(
        [("run", "k.onnx")],
        [
            ("partition", "k.onnx"),
            ("run", "k.onnx"),
            ("inspect", "k.onnx"),
            ("compare", "k.onnx", "k.onnx"),
            ("diff", "k.onnx", "k.onnx"),
        ],
    ),
)
def test_a_reader_that_goes_away(k: Path, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, redirect="| true").stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_stdout(k: Path) -> None:
    found = run("run", "k.onnx", redirect=">/dev/full")
    assert found.returncode == 2
    assert "cannot write the output: No space left" in found.stderr
    assert "Traceback" not in found.stderr


# ------------------------------------------------------------------------------------------------------------------- tables


def test_nothing_is_cut_without_a_terminal(
    k: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for line in ("compare k.onnx k.onnx", "run k.onnx --plan", "partition k.onnx --compare-levels"):
        assert main(line.split()) == 0
        shown = capsys.readouterr().out
        assert "…" not in shown
    assert "worth it" in shown


HEADER = ("name", "type", ">max", "verdict")
ROWS = [("a" * 30, "float", 1.25, ""), ("b", "int64", 100, "differs")]


@pytest.mark.parametrize("width", [None, 200, 55, 40, 25, 10])
def test_rows_that_are_wider_than_the_terminal(width: int | None) -> None:
    head, body = grid(HEADER, ROWS, width)
    text = "\n".join([*head, *body])
    for cell in (*(name.lstrip(">") for name in HEADER), *(str(c) for row in ROWS for c in row)):
        assert cell in text
    rest = [line for line in (*head, *body) if "differs" in line or "verdict" in line]
    assert all(len(line) <= max(width or 1000, 24) for line in rest)
    assert len(body) == (2 if width in (None, 200, 55) else 4)
    assert [line.index("max") for line in head if "max" in line] == [
        line.index("100") for line in body if "100" in line
    ]


def test_facts_are_wrapped_beside_their_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortconv.cli.render.room", lambda: 40)
    lines = click.unstyle(labeled("rewrites", "ConvAddFusion x2, ConstantFolding, MatMulAddFusion")).splitlines()
    assert lines == ["  rewrites   ConvAddFusion x2,", f"{' ' * 13}ConstantFolding,", f"{' ' * 13}MatMulAddFusion"]
    assert click.unstyle(labeled("", "")) == " " * 13


def test_facts_are_escaped_and_colored() -> None:
    shown = labeled("numbers", Toned("loads in \x1b[2J; equal on numpy", "equal", "green"))
    assert shown.endswith(f" loads in \\x1b[2J; {click.style('equal', fg='green')} on numpy")


# ----------------------------------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A stderr that says it is a terminal. Not a fixture: pytest puts its own in place for the test."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_what_takes_long_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line appears while the job runs, and is gone in the end."""
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(progress, "QUIET", 0.0)
    monkeypatch.setattr(progress, "STEP", 0.001)
    seen = threading.Event()
    write = terminal.write
    monkeypatch.setattr(terminal, "write", lambda text: (write(text), seen.set() if "optimize" in text else None)[0])
    with progress.stage_line("a\x1b.onnx", shown=True) as started:
        assert started is not None
        started("load")
        started("optimize")
        assert seen.wait(60)
    assert "a\\x1b.onnx: optimize, 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith(progress.CLEAR)


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.stage_line("a.onnx", shown=True) as started:
        assert started is not None
        started("load")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("dumb", [True, False])
def test_no_stage_line_where_it_is_not_wanted(dumb: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
    with progress.stage_line("a.onnx", shown=dumb) as started:
        assert started is None


@pytest.mark.slow
def test_results_of_a_batch_go_where_stdout_leads(
    k: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    Path("in").mkdir()
    shutil.copy(k, "in/k.onnx")
    assert main(["convert", "in", "--output-dir", "out", "--no-validate"]) == 0
    assert f"k.onnx -> {Path('out/k.ort')}" in capsys.readouterr().out
    assert "k.ort" not in terminal.getvalue()


# ------------------------------------------------------------------------------------------------------------------ options


@pytest.mark.slow
def test_a_dimension_that_some_models_lack(k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dynamic("in/dynamic.onnx")
    shutil.copy(k, "in/static.onnx")
    assert main(["convert", "in", "--output-dir", "out", "--fix-dim", "batch=1", "--fix-dim", "batch=2"]) == 0
    assert "2 of 2 converted" in capsys.readouterr().err
    assert main(["convert", "in", "--output-dir", "out", "-q", "--fix-dim", "batch=1", "--fix-dim", "btach=1"]) == 2
    assert "--fix-dim btach: no input of any model" in capsys.readouterr().err
    assert main(["convert", "in/static.onnx", "-o", "s.ort", "-q", "--fix-dim", "batch=1"]) == 2
    assert "no input has a dimension named 'batch'" in capsys.readouterr().err
    assert main(["convert", "in/dynamic.onnx", "-o", "s.ort", "-q", "--fix-dim", f"batch={10**18}"]) == 2
    assert "is not NAME=N with a positive number of at most 18 digits" in capsys.readouterr().err


def test_a_misspelled_pass_is_said_once(k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dynamic("in/a.onnx")
    dynamic("in/b.onnx")
    assert main(["convert", "in", "--output-dir", "out", "-q", "--disable-pass", "ConvBNFusoin"]) == 2
    assert capsys.readouterr().err.count("ConvBNFusoin") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize("verb", ["convert k.onnx -o m.ort", "run k.onnx", "compare k.onnx k.onnx"])
def test_a_library_must_be_one(verb: str, k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("library.so").write_text("no library")
    assert main([*verb.split(), "--custom-op-library", "library.so", "-q"]) == 2
    assert "'library.so' is not a shared library" in capsys.readouterr().err


HUGE = "9" * 5000
NUMBERS = [
    f"convert d.onnx -o m.ort --fix-dim batch={HUGE}", "convert d.onnx -o m.ort --fix-dim batch=0",
    f"convert d.onnx -o m.ort --fold-limit {HUGE}", f"convert d.onnx -o m.ort --fold-limit {HUGE}.5",
    f"convert d.onnx -o m.ort --stop-after {HUGE}", "convert d.onnx -o m.ort --max-partitions -1", "run d.onnx --seed -5",
    f"run d.onnx --seed {'1' * 5000}", "run d.onnx --input x:9999999999x3", f"run d.onnx --input x:{HUGE}",
    "run d.onnx --input x:1000000000000x3", "run d.onnx --input x:2x4", f"run d.onnx --input x:0..{HUGE}",
    "run d.onnx --input x:1e400",
    f"run d.onnx --input x:{'1' * 100_000}z", "run d.onnx --repeat 0",
    "run i.onnx --input x:0..9223372036854775807", "run d.onnx --threads -3", "run d.onnx --top 0",
]  # fmt: skip


@pytest.mark.parametrize("line", slow_except(NUMBERS[::2], NUMBERS), ids=lambda line: line[:60])
def test_numbers_of_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    dynamic("d.onnx")
    dynamic("i.onnx", kind="uint8")
    assert main(line.split()) == 2
    shown = capsys.readouterr().err
    assert "bug" not in shown
    assert line.split()[-2] in shown or "input 'x' must be" in shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\x1b[31m", "a\\x1b[31m"),
        ("::error::x", ":\\x3aerror::x"),
        ("a\n  ::add-mask::x", "a\n  :\\x3aadd-mask::x"),
        ("a ##[group]", "a #\\x23[group]"),
        ("ns::Relu ## ok", "ns::Relu ## ok"),
    ],
)
def test_names_control_neither_the_terminal_nor_a_workflow(name: str, shown: str) -> None:
    assert printable(name, LINES) == shown


def test_a_name_of_two_lines_is_shown_in_one(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\nerror: b.onnx"
    shutil.copy(samples / "mnist.onnx", tmp_path / name)
    (tmp_path / "c\n.onnx").write_bytes(b"damaged")
    monkeypatch.chdir(tmp_path)
    for arguments in (["convert", name, "-o", "c\nd.ort"], ["inspect", name], ["run", name], ["partition", name]):
        assert main(arguments) == 0
    assert main(["inspect", "c\n.onnx"]) == 3
    shown = "".join(capsys.readouterr())
    assert "error: b.onnx" not in [line[:13] for line in shown.splitlines()]
    for part in (
        "a\\nerror: b.onnx -> c\\nd.ort\n",
        "also wrote c\\nd.required_operators.config\n",
        "error: c\\n.onnx: ",
    ):
        assert part in shown


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colors_where_they_are_not_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert color() is None
    monkeypatch.setenv(name, value)
    assert color() is False


def test_names_are_escaped_in_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of files, of operators and of domains; in summaries, traces, warnings and lists."""
    node = onnx.helper.make_node("Ev\ril", ["x"], ["y"], domain="do\rmain")
    ports = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    graph = onnx.helper.make_graph([node], "g", *([port] for port in ports))
    imports = [onnx.helper.make_opsetid("do\rmain", 1), onnx.helper.make_opsetid("", 17)]
    Path("d\r").mkdir()
    name = "d\r/a\rb.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8), name)
    shutil.copy(MNIST, "d\r/k\r.onnx")
    Path("c.config").write_text("ai.onnx;13;Relu\n")
    for code, line in (
        (0, ["convert", name, "-o", "m.ort", "-q", "--allow-unchecked"]),
        (0, ["convert", "d\r/k\r.onnx", "-o", "k.ort", "-v"]),
        (0, ["verify", "m.ort"]),
        (5, ["ops", "lint", "c.config", "--model", "m.ort"]),
        (0, ["init", "d\r"]),
    ):
        assert main(line) == code
        shown = "".join(capsys.readouterr())
        assert shown
        assert "\r" not in shown


@pytest.mark.parametrize(
    "line",
    [
        "inspect k.onnx --json --markdown",
        "convert k.onnx -o k.ort -q -v",
        "run k.onnx --quiet --plan",
        "passes list --as-text --json",
        "tune k.onnx --list --json",
    ],
)
def test_only_one_view_is_printed(line: str, k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert "exclude each other" in shown.err
    assert shown.out == "" or "exclude each other" in json.loads(shown.out)["error"]
    assert not Path("k.ort").exists()
