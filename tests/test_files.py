"""Files appear whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortconv.files import replacing, write_text


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "before")

    def fail() -> None:
        with replacing(target) as draft:
            draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_folders_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "deep" / "er" / "a.txt", "x")
    assert (tmp_path / "deep" / "er" / "a.txt").read_text() == "x"


@pytest.mark.skipif(os.name != "posix", reason="looks at processes")
def test_drafts_of_killed_processes_are_cleared_away(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    target = tmp_path / "a[1].ort"
    dead, alive, other = (
        tmp_path / f".{name}.tmp.ort" for name in (f"a[1].{ended.pid}", f"a[1].{os.getppid()}", "a[1].x")
    )
    for path in (dead, alive, other):
        path.write_text("draft")
    write_text(target, "done")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([target.name, alive.name, other.name])
