"""Every one-byte edit of a small model: success or one clear error, within a second and 200 MB, and no crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import small_models

from tests.batches import slow_except

STEP = 23
EDITS = Path(__file__).with_name("edits.py")


def run(path: Path, first: int, step: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EDITS), str(path), str(first), str(step)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"edit {done.stdout.splitlines()[-1:]} of {path.name}: {done.stderr[-500:]}"
    return done.stdout.splitlines()


def check(name: str, directory: Path, step: int) -> None:
    path = directory / f"{name}.onnx"
    path.write_bytes(small_models.ALL[name]().SerializeToString())
    results = run(path, 0, step)
    assert [r for r in results if r.split(" ", 1)[1] not in ("ok", "error")] == []
    assert len(results) == len(range(0, 3 * path.stat().st_size, step))
    assert {r.split(" ", 1)[1] for r in results} == {"ok", "error"}


@pytest.mark.parametrize("name", slow_except(["control_flow"], ("control_flow", "contributed")))
def test_some_edits(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, STEP)


@pytest.mark.slow
@pytest.mark.parametrize("name", small_models.ALL)
def test_every_edit(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 1)
