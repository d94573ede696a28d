"""The action, the hook and the examples of docs/ci.md: their commands are run in a repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import onnx
import pytest

import ortconv
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

ACTION = (ROOT / "action.yml").read_text("utf-8")
EXAMPLES = (ROOT / "docs/ci.md").read_text("utf-8")


@pytest.fixture
def repository(samples: Path, tmp_path: Path) -> Path:
    """A git repository with an accepted model."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(samples / "mnist.onnx", folder)
    ortconv.init(folder)
    ortconv.build(folder, update=True).refuse()
    shutil.rmtree(folder / "ort_models")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Models"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    return folder


def spoil(repository: Path) -> None:
    """Let the model need an operator that the accepted one does not have."""
    proto = onnx.load(repository / "mnist.onnx")
    name = proto.graph.output[0].name
    proto.graph.node[-1].output[0] = "inner"
    proto.graph.node.append(onnx.helper.make_node("Elu", ["inner"], [name]))
    onnx.save(proto, repository / "mnist.onnx")


def run(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a runner does: in bash, with `ortconv` and a `python` that records what pip would install."""
    bin = folder.parent / "bin"
    bin.mkdir(exist_ok=True)
    programs = {"ortconv": f'exec {sys.executable} -m ortconv "$@"', "python": f'printf "%s\\n" "$@" > {bin}/installed'}
    for name, text in programs.items():
        (bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin / name).chmod(0o755)
    paths = {"PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, **paths, **variables},
        capture_output=True,
        text=True,
    )


def steps_of_the_action() -> dict[str, tuple[str, dict[str, str]]]:
    """By name: the script of each step that has one, and its environment with the inputs' defaults filled in."""
    inputs = dict(
        re.findall(r"^  ([\w-]+):\n    description: .*\n    default: \"?(.*?)\"?$", ACTION, flags=re.MULTILINE)
    )
    found = {}
    for step in re.split(r"^    - ", ACTION, flags=re.MULTILINE)[1:]:
        script = re.search(r"^      run: (?:\|\n((?:        .*\n?)+)|(.*))", step, flags=re.MULTILINE)
        if script is None:
            continue
        name = re.match(r"name: (.*)", step)
        assert name is not None
        given = re.findall(r"^        ([A-Z]+): \$\{\{ inputs\.([\w-]+) \}\}$", step, flags=re.MULTILINE)
        found[name[1]] = textwrap.dedent(script[1] or script[2]), {key: inputs[value] for key, value in given}
    return found


def test_the_action_installs_itself_or_a_package(repository: Path) -> None:
    script, variables = steps_of_the_action()["Install ortconv"]
    assert variables == {"PACKAGE": ""}
    for package, expected in (("", "/the action"), ("ortconv==0.2.0", "ortconv==0.2.0")):
        assert run(script, repository, GITHUB_ACTION_PATH="/the action", PACKAGE=package).returncode == 0
        installed = (repository.parent / "bin/installed").read_text().splitlines()
        assert installed[:3] == ["-m", "pip", "install"]
        assert installed[-1] == expected


def test_the_action_builds_and_reports(repository: Path, tmp_path: Path) -> None:
    script, variables = steps_of_the_action()["Build the models and check their gates"]
    assert variables == {"PROJECT": ".", "ARGUMENTS": ""}
    files = {name: str(tmp_path / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    ran = run(script, repository, **variables, **files, GITHUB_WORKSPACE=str(repository))
    assert ran.returncode == 0, ran.stderr
    assert "everything is fine" in Path(files["GITHUB_STEP_SUMMARY"]).read_text()
    directory = Path(files["GITHUB_OUTPUT"]).read_text().removeprefix("directory=").strip()
    assert (repository / directory / "mnist.ort").exists()
    assert "steps.build.outputs.directory" in ACTION

    spoil(repository)
    ran = run(
        script, repository, **variables | {"ARGUMENTS": "mnist --jobs 1"}, **files, GITHUB_WORKSPACE=str(repository)
    )
    assert ran.returncode == 5
    assert "::error file=mnist.onnx,title=ortconv%3A mnist%2C gate missing>0::missing is 1" in ran.stderr
    assert "| missing | 0 | 1 |" in Path(files["GITHUB_STEP_SUMMARY"]).read_text()


def test_the_hook_runs_when_a_model_changes(repository: Path) -> None:
    hook = dict(
        re.findall(r"^(?:- |  )(\w+): (.*)$", (ROOT / ".pre-commit-hooks.yaml").read_text(), flags=re.MULTILINE)
    )
    assert hook["pass_filenames"] == "false"
    for name, matches in (("a/m.onnx", True), ("ortconv.toml", True), ("a/ortconv.toml", True), ("m.onnx.md", False)):
        assert bool(re.search(hook["files"], name)) == matches
    assert run(hook["entry"], repository).returncode == 0
    spoil(repository)
    ran = run(hook["entry"], repository)
    assert ran.returncode == 5
    assert "missing is 1" in ran.stderr
    assert f"      - id: {hook['id']}\n" in EXAMPLES


def example(begin: str) -> str:
    """The fenced block of docs/ci.md that begins so."""
    (found,) = (text for text in re.findall(r"```\w*\n(.*?)```", EXAMPLES, flags=re.DOTALL) if text.startswith(begin))
    return found


def test_the_example_of_make(repository: Path) -> None:
    (repository / "Makefile").write_text(example("# Makefile"))
    assert run("make models", repository).returncode == 0
    spoil(repository)
    ran = run("make models", repository)
    assert (ran.returncode, "Error 5" in ran.stderr) == (2, True)
    assert run("make accept-models && make models", repository).returncode == 0


def test_the_example_of_gitlab(repository: Path) -> None:
    text = example("# .gitlab-ci.yml")
    (lines,) = re.findall(r"^  script:\n((?:    - .*\n)+)", text, flags=re.MULTILINE)
    script = re.sub(r"^    - ", "", lines, flags=re.MULTILINE)
    assert run(script, repository).returncode == 0
    for name in re.findall(r'"(ort_models[^"]*)"', text):
        assert (repository / name).exists()
    spoil(repository)
    assert run(script, repository).returncode == 5
    assert "missing" in (repository / "ort_models.md").read_text()


def test_the_examples_of_github(repository: Path, tmp_path: Path) -> None:
    action = re.findall(r"^          ([\w-]+): ", example("# .github/workflows/models.yml"), flags=re.MULTILINE)
    known = re.findall(r"^  ([\w-]+):\n    description", ACTION, flags=re.MULTILINE)
    assert set(action) - {"lfs"} <= set(known)
    assert re.findall(r"^\| `([\w-]+)` \|", EXAMPLES, flags=re.MULTILINE) == [
        name for name in known if name != "directory"
    ]
    script = re.sub(r"^ *- run: ", "", example("      - run:"), flags=re.MULTILINE)
    assert run(script, repository, GITHUB_STEP_SUMMARY=str(tmp_path / "summary")).returncode == 0


def test_what_is_to_be_committed(repository: Path) -> None:
    assert run(example("echo ort_models/"), repository).returncode == 0
    run("ortconv build", repository)
    status = run("git status --short", repository).stdout.splitlines()
    assert status == ["A  .gitignore"]
