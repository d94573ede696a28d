"""The commands of README and guide run, and print what the pages show.

UPDATE_GOLDEN=1 writes outputs that differ anew, but for those with a line "...". Of what varies between machines, only the presence
is compared: times, memory, releases, numbers that rounding decides.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT, SAMPLES

GUIDE = ROOT / "docs/guide.md"
README = ROOT / "README.md"
LEFT_OUT = "..."
VARIES = (
    (r"numbers .*", "numbers"),
    (r"onnxruntime \d+\.\d+\.\d+", "onnxruntime"),
    (r"-?\d[\d.,]*(e[+-]\d+)? (ms|s|us)\b", "TIME"),
    (r"process [\d.]+ [kMG]B", "process"),
    (r"(min|max|mean) -?[\d.]+", r"\1"),
    (r"-?\d[\d.]*e[+-]\d+", "SMALL"),
    (r"\s+", " "),
)


class Shown(NamedTuple):
    """A command of the guide, and the lines below it."""

    command: str
    output: list[str]


def blocks(text: str) -> list[str]:
    return re.findall(r"```\n(\$ .*?)```", text, flags=re.DOTALL)


def shown(block: str) -> Iterator[Shown]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Shown(command, output.splitlines())


def plain(line: str) -> str:
    """A line without what varies."""
    for pattern, text in VARIES:
        line = re.sub(pattern, text, line)
    return line.strip()


def table_of_differences(line: str) -> bool:
    """Whether a line is a row of `compare`, whose numbers rounding decides."""
    return line.lstrip().startswith(("last_hidden_state", "pooler_output"))


def matches(expected: list[str], found: list[str]) -> bool:
    """Whether lines are the expected ones, where LEFT_OUT is any number of lines."""
    texts = [line.split()[0] if table_of_differences(line) else plain(line) for line in expected]
    pattern = "".join("(?:.*\n)*?" if text == LEFT_OUT else re.escape(text) + "\n" for text in texts)
    lines = [line.split()[0] if table_of_differences(line) else plain(line) for line in found]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


def updated(block: str, outputs: list[list[str]]) -> str:
    parts = []
    for one, output in zip(shown(block), outputs, strict=True):
        lines = one.output if LEFT_OUT in one.output or matches(one.output, output) else output
        parts.append("".join(f"{line}\n" for line in (f"$ {one.command}", *lines)))
    return "".join(parts)


def run(command: str) -> list[str]:
    """The lines that a command prints. It has a process of its own, in which a crash of onnxruntime is survived, so that the source
    is optimized there, too. Of a program other than ortconv, only the files matter.
    """
    program, *arguments = shlex.split(command)
    if program == "python":
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return []
    assert program == "ortconv"
    done = subprocess.run([sys.executable, "-m", "ortconv", *arguments], capture_output=True, encoding="utf-8")
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]


@pytest.mark.skipif(os.name != "posix", reason="the paths of the page are those of POSIX")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "model", "count", "written"),
    [(GUIDE, "bert_tiny.onnx", 8, ["partition.html", "story.html", "model.ort"]),
     (README, "mnist.onnx", 2, ["theirs/mnist.ort", "ours/mnist.ort", "out/mnist.extended.ort"])],
    ids=["guide", "readme"],
)  # fmt: skip
def test_commands_print_what_the_page_shows(
    page: Path, model: str, count: int, written: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text("utf-8")
    for place in ("model.onnx", f"sample_models/{model}"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(SAMPLES / model, tmp_path / place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    wrong = []
    for block in blocks(text):
        outputs = []
        for one in shown(block):
            outputs.append(run(one.command))
            if not matches(one.output, outputs[-1]):
                wrong.append("\n".join([one.command, *outputs[-1]]))
        if os.environ.get("UPDATE_GOLDEN"):
            text = text.replace(block, updated(block, outputs))
    if os.environ.get("UPDATE_GOLDEN"):
        page.write_text(text, "utf-8")
        return
    assert wrong == []
    assert len(blocks(text)) >= count
    assert [name for name in written if not Path(name).exists()] == []


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        (["a 1.2 ms"], ["a  30 ms"], True),
        (["a", "..."], ["a", "b", "c"], True),
        (["a", "...", "c"], ["a", "b"], False),
        (["nodes 3"], ["nodes 4"], False),
        ([], [], True),
        ([], ["a"], False),
    ],
)
def test_the_comparison_sees_differences(expected: list[str], found: list[str], same: bool) -> None:
    assert matches(expected, found) == same
