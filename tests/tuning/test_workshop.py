"""Work of a tuning: remembered by key, in new processes, and ended in time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ortconv.errors import OrtconvError, UsageError
from ortconv.tuning.workshop import MEMO_NAME, Job, Memo, Progress, Workshop, key_of


def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def refuse() -> None:
    raise UsageError("no")


def same(value: Any) -> Any:
    return value


def test_values_are_remembered_across_processes(tmp_path: Path) -> None:
    memo = Memo(tmp_path)
    memo.put("a", {"value": 1})
    memo.put("b", {"value": None})
    memo.close()
    with open(tmp_path / MEMO_NAME, "ab") as file:
        file.write(b'{"version": 1, "key": "c"')  # a full disk
    again = Memo(tmp_path)
    assert [again.get(key) for key in "abc"] == [{"value": 1}, {"value": None}, None]
    again.put("c", {"value": 3})
    again.close()
    assert Memo(tmp_path).get("c") == {"value": 3}


def test_a_full_disk_is_an_error_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = Memo(tmp_path)
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) // 2)
    with pytest.raises(UsageError, match=f"{MEMO_NAME}: cannot write: No space left on device"):
        memo.put("a", 1)
    memo.close()


def test_a_folder_has_one_tuning_at_a_time(tmp_path: Path) -> None:
    memo = Memo(tmp_path)
    with pytest.raises(UsageError, match="another"):
        Memo(tmp_path)
    memo.close()


def test_keys_depend_on_all_parts() -> None:
    assert key_of("a", [1, 2]) == key_of("a", [1, 2])
    assert len({key_of("a", [1, 2]), key_of("a", [2, 1]), key_of("b", [1, 2]), key_of("a", [1], 2)}) == 4


def test_jobs_are_done_once_for_each_key() -> None:
    with Workshop(Memo(None), 2) as workshop:
        first = workshop.run_alone("x", Job("k", slow, (0.0,)), same)
        assert workshop.run_alone("x", Job("k", slow, (0.0,)), same) == first
        assert workshop.run_alone("x", Job("", slow, (0.0,)), same) != first
        workshop.memo.forget("k")
        assert workshop.run_alone("x", Job("k", slow, (0.0,)), same) != first


@pytest.mark.slow
def test_errors_are_results_and_remembered() -> None:
    memo = Memo(None)
    with Workshop(memo, 1) as workshop:
        ((_, found),) = workshop.each("x", [Job("k", refuse, ())], same)
        assert isinstance(found, OrtconvError)
        with pytest.raises(OrtconvError, match="no"):
            workshop.run_alone("x", Job("k", refuse, ()), same)
    assert memo.get("k") == {"error": "no"}


@pytest.mark.slow
def test_when_the_time_is_up_workers_end() -> None:
    reports: list[Progress] = []
    with Workshop(Memo(None), 2, seconds=0.01, notify=reports.append) as workshop:
        begun = time.monotonic()
        jobs = [Job(str(n), slow, (0.0 if n == 0 else 60.0,)) for n in range(3)]
        assert len(list(workshop.each("x", jobs, same))) == 1
        assert workshop.is_late()
    assert time.monotonic() - begun < 30
    assert reports[-1].stage == "x"
    assert (reports[-1].done, reports[-1].total) == (1, 3)
    assert (reports[-1].seconds_left or 0) <= 0.01
