"""Files appear whole or not at all, under names that nobody can foresee; what is no regular file is not read."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path
from weakref import WeakSet

import pytest

from ortconv import files
from ortconv.errors import FormatError, UsageError
from ortconv.files import (
    byte_count,
    created,
    mapped,
    read_bytes,
    read_text,
    read_toml,
    replacing,
    write_bytes,
    write_text,
)

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and locks of POSIX")


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


def test_folders_of_a_block_that_fails_are_removed(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        with replacing(target) as draft:
            (draft.parent / "mine").touch() if target.name == "b.txt" else None
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError, match="No space left"):
        fail(tmp_path / "deep" / "er" / "a.txt")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="No space left"):
        fail(tmp_path / "deep" / "b.txt")
    assert list(tmp_path.rglob("*")) == [tmp_path / "deep", tmp_path / "deep" / "mine"]


def test_a_folder_that_another_process_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new"
    monkeypatch.setattr(files, "_remove_dead_drafts_once", lambda _: folder.rmdir())
    write_text(folder / "a.txt", "x")
    assert (folder / "a.txt").read_text() == "x"


DIES = """
import os, sys
from pathlib import Path
from ortconv.files import replacing
with replacing(Path(sys.argv[1])) as draft:
    draft.write_text("half")
    print(draft, flush=True)
    sys.stdin.read() if sys.argv[2:] else os._exit(9)
"""


def test_drafts_of_killed_processes_are_cleared_away(tmp_path: Path) -> None:
    """Locks tell who is alive, not numbers of processes: those are the same in every container."""
    command = [sys.executable, "-c", DIES, str(tmp_path / "a[1].ort")]
    dead = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    assert dead.read_text() == "half"
    other = tmp_path / ".ortconv-of-the-user.ort"
    other.write_text("kept")
    with subprocess.Popen([*command, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        alive = Path(process.stdout.readline().strip())
        write_text(tmp_path / "b.txt", "done")
        assert sorted(tmp_path.iterdir()) == sorted([alive, other, tmp_path / "b.txt"])
        process.communicate("")
    assert (tmp_path / "a[1].ort").read_text() == "half"


def test_drafts_have_random_names_of_one_length(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / ("n" * 251 + ".ort")) as draft:
            names.add(draft.name)
    assert len(names) == 3
    assert {len(name) for name in names} == {len(".ortconv-0123456789abcdef.ort")}


@posix
def test_a_link_in_the_place_of_a_draft_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("secret")

    def write() -> None:
        with replacing(tmp_path / "a.txt") as draft:
            draft.unlink()
            draft.symlink_to(victim)
            with created(draft) as file:
                file.write(b"x")

    with pytest.raises(UsageError, match="cannot write"):
        write()
    assert victim.read_text() == "secret"


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("before")
    target.chmod(mode)
    with replacing(target) as draft:
        assert draft.stat().st_mode & 0o777 == 0o600
        draft.write_text("after")
    assert target.read_text() == "after"
    assert target.stat().st_mode & 0o777 == mode


@posix
@pytest.mark.parametrize(("user", "group", "mode"), [(1, 0, 0o664), (0, 1, 0o604), (1, 1, 0o604)])
def test_a_group_that_cannot_be_kept_gets_no_rights(
    user: int, group: int, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tmp_path / "draft"
    draft.touch()
    new = draft.stat()

    def refused(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refused)
    old = os.stat_result((0o100664, 0, 0, 1, new.st_uid + user, new.st_gid + group, 0, 0, 0, 0))
    files._keep_mode_and_owner(draft, old)
    assert draft.stat().st_mode & 0o777 == mode


@posix
def test_a_new_file_has_the_mode_of_the_umask(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"x")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("before")
    os.chown(target, 1234, 2345)
    write_text(target, "after")
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 2345)


@posix
def test_a_link_is_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "after")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "before"


def unwritable(folder: Path) -> dict[str, tuple[Path, str]]:
    (folder / "file").write_text("mine")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    return {
        "below a file": (folder / "file" / "a.txt", "cannot write"),
        "a folder": (folder / "folder", "it is a directory"),
        "a pipe": (folder / "pipe", "not a regular file"),
        "a name too long": (folder / ("n" * 300), "cannot write"),
    }


@posix
@pytest.mark.parametrize("case", ["below a file", "a folder", "a pipe", "a name too long"])
def test_what_cannot_be_written(case: str, tmp_path: Path) -> None:
    target, message = unwritable(tmp_path)[case]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=message) as found:
        write_text(target, "x")
    assert found.value.file == str(target)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_folder_that_takes_no_files() -> None:
    with pytest.raises(UsageError, match="cannot write: No such file"):
        write_text(Path("/proc/a.txt"), "x")


def test_errors_about_a_draft_name_the_target(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "a.ort") as draft:
            raise FormatError(f"load of {draft} failed", file=draft)

    with pytest.raises(FormatError) as found:
        fail()
    assert str(found.value) == f"{tmp_path / 'a.ort'}: load of {tmp_path / 'a.ort'} failed"


@posix
def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / "none", Path("nul\0")):
        with pytest.raises(UsageError, match="cannot read"):
            read_bytes(path)


def test_files_that_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(11))
    assert read_bytes(tmp_path / "a", 11) == bytes(11)
    with pytest.raises(FormatError, match="more than 10 bytes"):
        read_bytes(tmp_path / "a", 10)


def test_text_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read_text(tmp_path / "a")


@pytest.mark.parametrize(
    "text", ["a=" + "[" * 5000 + "]" * 5000, "a=" + "9" * 5000, "a=\n", "a=1\na=2", "a=" + "{b=" * 3000, "\x00"]
)
def test_toml_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UsageError, match="not a TOML file"):
        read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize(("text", "count"), [("4096", 4096), ("64MiB", 64 << 20), ("1.5 kB", 1500), ("0", 0)])
def test_sizes(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "1XB", "9" * 5000, "9" * 400 + ".5", "1..5"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        byte_count(text)


@pytest.mark.usefixtures("young_heap")
def test_mappings_in_dead_cycles_do_not_use_up_descriptors(tmp_path: Path) -> None:
    """The garbage collector is off: only `mapped` collects."""
    (tmp_path / "model").write_bytes(b"data")
    with (tmp_path / "model").open("rb") as file:
        gc.disable()
        try:
            for _ in range(500):
                cycle: list[object] = [mapped(file.fileno())]
                cycle.append(cycle)
            lowest = os.dup(file.fileno())
        finally:
            gc.enable()
    os.close(lowest)
    assert lowest < 300


def test_a_draft_that_only_a_dead_cycle_maps_is_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which renames no mapped file."""
    mappings = WeakSet[object]()
    rename = os.replace

    def replace(draft: Path, target: Path) -> None:
        if mappings:
            raise PermissionError(13, "in use")
        rename(draft, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("ortconv.files._LARGEST_READ", 0)
    with replacing(tmp_path / "a.txt") as draft:
        draft.write_text("whole")
        with draft.open("rb") as file:
            cycle: list[object] = [mapped(file.fileno())]
        cycle.append(cycle)
        mappings.add(cycle[0].obj)  # type: ignore[attr-defined]
        del cycle
    assert (tmp_path / "a.txt").read_text() == "whole"
