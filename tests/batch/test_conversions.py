"""Batches of conversions: troubles, journals, and results that depend on nothing but the models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortconv
from ortconv.batch import journal
from ortconv.batch.crew import TIMEOUT, crew_of
from ortconv.batch.journal import BatchJournal, FinishedModel
from ortconv.errors import LimitError, UsageError
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.pipeline import required_by
from ortconv.watch import ProcessLimits
from ortconv.workers.pool import LocalPool
from tests.batch_models import REASONS, custom_ops, folder_of, good

QUICK: dict[str, Any] = {"validate": False}


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a batch but for its journal."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != journal.NAME)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def lines(folder: Path) -> list[FinishedModel]:
    found = [FinishedModel.parse(line) for line in (folder / journal.NAME).read_bytes().splitlines(keepends=True)]
    return [record for record in found if record is not None]


posix = pytest.mark.skipif(os.name != "posix", reason="makes links")


@pytest.mark.slow
@posix
def test_every_trouble_is_named_and_the_others_are_converted(tmp_path: Path) -> None:
    troubles = folder_of(tmp_path / "in", 40, [trouble for trouble in REASONS if trouble != "endless"])
    library = custom_ops(tmp_path)
    batch = ortconv.convert_all(tmp_path / "in", tmp_path / "out", jobs=2, custom_op_library=library)
    done = {Path(one.source).name: one for one in batch}
    assert len(done) == batch.total == 40
    for name, one in done.items():
        if name not in troubles:
            assert isinstance(one, ortconv.Result)
            assert one.validation is not None
            assert one.validation.skipped is None
            continue
        assert isinstance(one, ortconv.Failure)
        if troubles[name] == "aborts" and library is None:
            continue
        expected = "8192 GiB" if troubles[name] == "huge" else REASONS[troubles[name]]
        assert expected in f"{one.error}"
        assert one.error.exit_code in (2, 3)
    assert {name.removesuffix(".ort") for name in contents(tmp_path / "out") if name.endswith(".ort")} == {
        name.removesuffix(".onnx") for name in done.keys() - troubles.keys()
    }


def test_without_a_converted_model_there_is_no_config(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 1, ["corrupt"])
    (failed,) = ortconv.convert_all(tmp_path / "in", tmp_path / "out")
    assert isinstance(failed, ortconv.Failure)
    assert contents(tmp_path / "out") == {}


@pytest.mark.slow
def test_an_endless_model_has_a_time_limit(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 1, ["endless"])
    (late,) = ortconv.convert_all(tmp_path / "in", tmp_path / "out", timeout=4)
    assert isinstance(late, ortconv.Failure)
    assert isinstance(late.error, LimitError)
    assert REASONS["endless"] in f"{late.error}"
    assert contents(tmp_path / "out") == {}


@pytest.mark.slow
@pytest.mark.parametrize("style", ["Fixed", "Runtime"])
def test_bytes_do_not_depend_on_who_does_the_work(style: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 12, [])
    options = ortconv.Options(**QUICK, optimization_style=style, enable_type_reduction=True)
    paths = sorted((tmp_path / "in").glob("*.onnx"))
    found = []
    with ThreadPoolExecutor(2) as threads:
        crews: list[dict[str, Any]] = [{"jobs": 1}, {"jobs": 3}, {"executor": threads}, {"observer": lambda *_: None}]
        for number, crew in enumerate(crews):
            out = tmp_path / f"out{number}"
            list(ortconv.convert_all(paths[::-1] if number % 2 else paths, out, options=options, **crew))
            found.append({name: data.replace(bytes(out), b"out") for name, data in contents(out).items()})
    assert len(found[0]) == 13
    assert found[1:] == found[:1] * 3


@pytest.mark.slow
def test_the_config_is_that_of_the_files(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 5, ["huge", "aborts"])
    batch = ortconv.convert_all(tmp_path / "in", tmp_path / "out", jobs=2, **QUICK, enable_type_reduction=True)
    results = [one for one in batch if isinstance(one, ortconv.Result)]
    assert batch.config == tmp_path / "out" / "required_operators_and_types.config"
    files = [Path(result.files[0]) for result in results]
    assert batch.config.read_text() == required_by(files, types=True).text()


@pytest.mark.slow
def test_the_config_has_what_an_earlier_batch_left_in_place(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 2, [])
    list(ortconv.convert_all(tmp_path / "in", tmp_path / "out", jobs=1, **QUICK))
    before = (tmp_path / "out" / "required_operators.config").read_text()
    (tmp_path / "in" / "m0001.onnx").write_bytes(b"damaged")
    batch = ortconv.convert_all(tmp_path / "in", tmp_path / "out", jobs=1, **QUICK)
    assert sum(isinstance(one, ortconv.Failure) for one in batch) == 1
    assert (tmp_path / "out" / "required_operators.config").read_text() == before


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Workers do not import the script that started them."""
    folder_of(tmp_path / "in", 3, [])
    script = tmp_path / "script.py"
    script.write_text("import ortconv\nprint(len(list(ortconv.convert_all('in', 'out', jobs=2, validate=False))))\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3\n", "")


# ------------------------------------------------------------------------------------------------------------------ journal


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three models, of which one has its weights in another file."""
    folder_of(tmp_path / "in", 2, [])
    proto = onnx.load_from_string(good(7))
    onnx.save(proto, tmp_path / "in" / "far.onnx", save_as_external_data=True, location="far.data", size_threshold=0)
    return tmp_path / "in"


def resumed(source: Path, **settings: Any) -> list[str]:
    """The models that a batch converts again."""
    batch = ortconv.convert_all(source, source.parent / "out", jobs=2, resume=True, **{**QUICK, **settings})
    return sorted(Path(one.source).stem for one in batch if not getattr(one, "unchanged", False))


def test_what_is_unchanged_is_skipped(source: Path) -> None:
    assert resumed(source) == ["far", "m0000", "m0001"]
    before, stamps = (
        contents(source.parent / "out"),
        {p: p.stat().st_mtime_ns for p in (source.parent / "out").iterdir()},
    )
    assert resumed(source) == []
    assert contents(source.parent / "out") == before
    kept = [path for path in stamps if path.suffix == ".ort"]
    assert [path.stat().st_mtime_ns for path in kept] == [stamps[path] for path in kept]
    assert len(lines(source.parent / "out")) == 3


def change_model(source: Path) -> None:
    (source / "m0000.onnx").write_bytes(good(99))


def change_weights(source: Path) -> None:
    path = source / "far.data"
    path.write_bytes(bytes(4) + path.read_bytes()[4:])


def change_output(source: Path) -> None:
    path = source.parent / "out" / "m0001.ort"
    path.write_bytes(path.read_bytes() + b"\0")


def remove_output(source: Path) -> None:
    (source.parent / "out" / "m0001.ort").unlink()


def tear_journal(source: Path) -> None:
    """The last line is half there, as after a full disk."""
    path = source.parent / "out" / journal.NAME
    *others, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(others) + last[: len(last) // 2])


@pytest.mark.parametrize(
    ("change", "again"),
    [
        pytest.param(change_model, 1, marks=pytest.mark.slow),
        pytest.param(change_weights, 1, marks=pytest.mark.slow),
        pytest.param(change_output, 1, marks=pytest.mark.slow),
        pytest.param(remove_output, 1, marks=pytest.mark.slow),
        pytest.param(tear_journal, 1, marks=pytest.mark.slow),
    ],
)
def test_what_is_changed_is_converted_again(change: Any, again: int, source: Path) -> None:
    resumed(source)
    change(source)
    assert len(resumed(source)) == again
    assert resumed(source) == []
    fresh = source.parent / "fresh"
    list(ortconv.convert_all(source, fresh, jobs=1, **QUICK))
    assert {k: v for k, v in contents(fresh).items() if k.endswith(".ort")} == {
        k: v for k, v in contents(source.parent / "out").items() if k.endswith(".ort")
    }


@pytest.mark.slow
def test_other_options_or_versions_change_all(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(resumed(source)) == 3
    assert len(resumed(source, target_ort="1.20")) == 3
    assert len(resumed(source, details=True, target_ort="1.20")) == 0
    assert len(resumed(source)) == 3


def test_the_fingerprint_of_options(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"1")
    (tmp_path / "b.so").write_bytes(b"2")
    arrays = {"x": np.zeros(3, np.float32)}
    different = [
        {}, {"use_nnapi": True}, {"fix_dims": {"batch": 1}}, {"fix_dims": {"batch": 2}},
        {"custom_op_library": tmp_path / "a.so"}, {"custom_op_library": tmp_path / "b.so"},
        {"validate_with": arrays}, {"validate_with": {"x": np.ones(3, np.float32)}},
        {"validate_with": {"x": np.array(["a", "b"], object)}},
    ]  # fmt: skip
    prints = [journal.fingerprint(ortconv.Options.of(settings)) for settings in different]
    assert len(set(prints)) == len(different)
    assert prints == [journal.fingerprint(ortconv.Options.of(settings)) for settings in different]
    assert journal.fingerprint(ortconv.Options(details=True)) == prints[0]


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"[]", b"{}", b'{"version": 1}', b"\xff", b'{"version": 9, "output": "a"}']
)
def test_a_line_that_is_no_record(line: bytes) -> None:
    assert FinishedModel.parse(line) is None


@pytest.mark.slow
def test_two_batches_do_not_write_to_the_same_folder(source: Path) -> None:
    other = BatchJournal(source.parent / "out")
    with pytest.raises(UsageError, match="another batch is writing to this folder"):
        resumed(source)
    other.close()
    assert len(resumed(source)) == 3


@posix
def test_the_journal_is_no_link(source: Path) -> None:
    out = source.parent / "out"
    out.mkdir()
    (source.parent / "precious").write_text("x")
    (out / journal.NAME).symlink_to(source.parent / "precious")
    with pytest.raises(UsageError, match="cannot write"):
        resumed(source)
    assert (source.parent / "precious").read_text() == "x"


def test_a_folder_that_is_a_file(source: Path) -> None:
    (source.parent / "out").write_text("x")
    with pytest.raises(UsageError, match="cannot write"):
        resumed(source)


@pytest.mark.slow
def test_a_batch_that_nobody_reads_locks_nothing(source: Path) -> None:
    batch = ortconv.convert_all(source, source.parent / "out", resume=False, **QUICK)
    del batch
    assert len(resumed(source)) == 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems let workers finish their model")
def test_a_batch_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    count = 60
    folder_of(tmp_path / "in", count, [])
    list(ortconv.convert_all(tmp_path / "in", tmp_path / "whole", jobs=2, **QUICK))
    command = [sys.executable, "-m", "ortconv", "convert", "in", "--output-dir", "out", "--resume", "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = tmp_path / "out"
    for reached in (3, 20, 40):
        process = subprocess.Popen([*command, "--no-validate", "-q"], cwd=tmp_path, env=environment)
        end = time.monotonic() + 60
        while len(list(out.glob("*.ort"))) < reached and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for_quiet(out)
    done = subprocess.run([*command, "--no-validate", "--json"], cwd=tmp_path, env=environment, capture_output=True)
    document = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, document["converted"]) == (0, count)
    assert document["unchanged"] >= 40 - 2  # each of the two jobs may end between a file and its record
    assert {k: v for k, v in contents(out).items() if k.endswith(".ort")} == {
        k: v for k, v in contents(tmp_path / "whole").items() if k.endswith(".ort")
    }
    assert {path.suffix for path in out.iterdir()} == {".ort", ".config", ".jsonl"}


def wait_for_quiet(out: Path) -> None:
    """Wait until no worker has the journal open: they die a moment after what started them."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            BatchJournal(out).close()
            return
        except UsageError:
            time.sleep(0.01)
    raise AssertionError("the folder is still locked")


# ------------------------------------------------------------------------------------------------------------------ options


@pytest.mark.slow
def test_a_stop_operator_of_some_models(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 3, ["aborts"])
    settings: dict[str, Any] = {**QUICK, "use_nnapi": True, "jobs": 2}
    results = list(ortconv.convert_all(tmp_path / "in", nnapi_partitioning_stop_ops=["Abort", "Relu"], **settings))
    assert [type(one) for one in results] == [ortconv.Result] * 3
    with pytest.raises(UsageError, match="no operator 'Rleu' to stop at") as caught:
        ortconv.convert_all(tmp_path / "in", nnapi_partitioning_stop_ops=["Rleu"], **settings)
    assert "Relu" in (caught.value.hint or "")


def test_a_limit_needs_workers_of_our_own(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 2, [])
    with ThreadPoolExecutor(1) as threads, pytest.raises(UsageError, match="knows no limits"):
        ortconv.convert_all(tmp_path / "in", executor=threads, timeout=5)


def test_an_output_in_the_way(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 2, [])
    (tmp_path / "out" / "m0000.ort").mkdir(parents=True)
    bad, fine = sorted(ortconv.convert_all(tmp_path / "in", tmp_path / "out", **QUICK), key=lambda one: one.source)
    assert isinstance(bad, ortconv.Failure)
    assert "it is a directory" in bad.error.message
    assert bad.error.file == str(tmp_path / "out" / "m0000.ort")
    assert isinstance(fine, ortconv.Result)


@pytest.mark.slow
def test_dropping_a_batch_ends_it(tmp_path: Path) -> None:
    folder_of(tmp_path / "in", 20, [])
    batch = ortconv.convert_all(tmp_path / "in", tmp_path / "out", jobs=2, resume=False, **QUICK)
    next(batch)
    batch.close()
    assert len(list((tmp_path / "out").glob("*.ort"))) < 20
    assert not list((tmp_path / "out").glob(".ortconv-[0-9a-f]*"))
    assert len(resumed(tmp_path / "in")) < 20


def test_many_configs_merge_to_the_same_text() -> None:
    texts = ["ai.onnx;17;Relu", "ai.onnx;13;MatMul", "com.microsoft;1;FusedMatMul"]
    merged = []
    for order in (texts, texts[::-1]):
        required = RequiredOperators()
        for text in order:
            required.merge(RequiredOperators.parse(text))
        merged.append(required.text(["a"]))
    assert merged[0] == merged[1]


def test_no_memory_is_a_limit() -> None:
    with crew_of(None, 1, None, 0, isolated=True) as crew:
        assert isinstance(crew.executor, LocalPool)
        assert crew.executor.limits == ProcessLimits(TIMEOUT, 0)
