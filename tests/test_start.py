"""What a command imports before it answers. Imports are most of a small conversion or run; they are counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import ortconv
from tests.batches import slow_except
from tests.counting import imported

MORE = 8
"""Tolerance of the counts of modules."""


def convert(samples: Path, folder: Path) -> list[str]:
    return ["convert", "--no-validate", "--quiet", str(samples / "mnist.onnx"), "--output-dir", str(folder)]


def run(samples: Path, folder: Path) -> list[str]:
    np.savez(folder / "inputs.npz", Input3=np.zeros((1, 1, 28, 28), np.float32))
    return ["run", "--quiet", str(samples / "mnist.onnx"), "--inputs", str(folder / "inputs.npz")]


def run_ort(samples: Path, folder: Path) -> list[str]:
    return ["run", "--quiet", converted(samples, folder)]


def partition_ort(samples: Path, folder: Path) -> list[str]:
    return ["partition", converted(samples, folder)]


def partition(samples: Path, folder: Path) -> list[str]:
    """NNAPI supports all of its nodes, so that no advice on others is needed."""
    return ["partition", str(samples / "mnist.onnx")]


def converted(samples: Path, folder: Path) -> str:
    ortconv.convert(samples / "mnist.onnx", folder / "mnist.ort", validate=False)
    return str(folder / "mnist.ort")


def convert_slices(samples: Path, folder: Path) -> list[str]:
    """The loader looks at their constants itself."""
    path = folder / "slices.onnx"
    path.write_bytes(
        onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17]>
            slices (float[4, 6] x) => (float[2, 6] y)
            <int64[1] first = {0}, int64[1] last = {2}, int64[1] axes = {0}, int64[1] steps = {1}>
            { y = Slice(x, first, last, axes, steps) }
        """).SerializeToString()
    )
    return ["convert", "--no-validate", "--quiet", str(path), "--output-dir", str(folder)]


UNUSED = ("difflib", "numpy.ma", "onnx", "onnxruntime", "rich", "tempfile", "ortconv.batch", "ortconv.validation")
DRAWS = ("hashlib", "numpy.random", "random")
COMMANDS: dict[str, tuple[Callable[[Path, Path], list[str]], int, tuple[str, ...]]] = {
    "convert": (convert, 147, (*DRAWS, "ortconv.inputs", "ortconv.partition", "ortconv.pipeline.manifest")),
    "convert Slices": (
        convert_slices,
        131,
        (*DRAWS, "ortconv.inputs", "ortconv.partition", "ortconv.pipeline.manifest"),
    ),
    "run": (run, 127, (*DRAWS, "ortconv.inputs.feeds", "ortconv.optimizer", "ortconv.partition", "ortconv.pipeline")),
    "run an .ort file": (run_ort, 126, ("google.protobuf", "ortconv.optimizer", "ortconv.partition")),
    "partition": (partition, 150, ("ortconv.inputs", "ortconv.optimizer.offload", "ortconv.pipeline.conversion")),
    "partition an .ort file": (partition_ort, 162, ("google.protobuf", "ortconv.inputs", "ortconv.onnxio.load")),
}
"""By name: a command, how many modules of ours it needs, and modules that it must not import."""


@pytest.mark.parametrize("name", slow_except(["run an .ort file"], COMMANDS))
def test_a_small_command_imports_what_it_uses(name: str, samples: Path, tmp_path: Path) -> None:
    command, count, unused = COMMANDS[name]
    loaded = imported("-m", "ortconv", *command(samples, tmp_path))
    assert sorted(loaded.intersection((*UNUSED, *unused))) == []
    own = sum(1 for module in loaded if module.split(".")[0] == "ortconv")
    assert count - MORE <= own <= count + MORE


def test_a_watcher_imports_little_before_it_forks() -> None:
    """The child copies whatever the parent has in memory."""
    loaded = imported("-c", "import ortconv.__main__, ortconv.supervisor")
    assert {name for name in loaded if name.startswith("ortconv")} == {
        "ortconv", "ortconv.__main__", "ortconv.supervisor",
    }  # fmt: skip
    assert loaded.isdisjoint({"click", "ctypes", "dataclasses", "json", "pathlib", "threading"})
