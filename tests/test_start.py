"""What a command imports before it answers. Imports are most of a small conversion or run; they are counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.counting import imported

MORE = 8
"""So many modules may come without a reason."""


def convert(samples: Path, folder: Path) -> list[str]:
    return ["convert", "--no-validate", "--quiet", str(samples / "mnist.onnx"), "--output-dir", str(folder)]


def run(samples: Path, folder: Path) -> list[str]:
    np.savez(folder / "inputs.npz", Input3=np.zeros((1, 1, 28, 28), np.float32))
    return ["run", "--quiet", str(samples / "mnist.onnx"), "--inputs", str(folder / "inputs.npz")]


UNUSED = ("difflib", "hashlib", "numpy.random", "onnx", "onnxruntime", "random", "rich", "tempfile")
COMMANDS: dict[str, tuple[Callable[[Path, Path], list[str]], int, tuple[str, ...]]] = {
    "convert": (convert, 141, ("ortconv.batch", "ortconv.compare", "ortconv.partition", "ortconv.pipeline.manifest")),
    "run": (run, 119, ("ortconv.compare.feeds", "ortconv.optimizer", "ortconv.partition", "ortconv.pipeline")),
}
"""By verb: a command, how many modules of ours it needs, and modules that it must not import."""


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_small_command_imports_what_it_uses(verb: str, samples: Path, tmp_path: Path) -> None:
    command, count, unused = COMMANDS[verb]
    loaded = imported("-m", "ortconv", *command(samples, tmp_path))
    assert sorted(loaded.intersection((*UNUSED, *unused))) == []
    own = sum(1 for name in loaded if name.split(".")[0] == "ortconv")
    assert count - MORE <= own <= count + MORE


def test_a_watcher_imports_little_before_it_forks() -> None:
    """The child copies whatever the parent has in memory."""
    loaded = imported("-c", "import ortconv.__main__, ortconv.supervisor")
    assert {name for name in loaded if name.startswith("ortconv")} == {
        "ortconv", "ortconv.__main__", "ortconv.supervisor",
    }  # fmt: skip
    assert loaded.isdisjoint({"click", "ctypes", "dataclasses", "json", "pathlib", "threading"})
