"""The whole of a tuning on small models."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortconv
from ortconv.backends import onnxruntime_c
from ortconv.backends.onnxruntime_app import AppSession, SessionSettings
from ortconv.cli import main
from ortconv.errors import BackendError, UnsupportedError, UsageError
from ortconv.gates import metrics_of
from ortconv.tuning import contest
from ortconv.tuning import tune as tuning
from ortconv.tuning.axes import Form
from ortconv.tuning.measuring import Entrant
from ortconv.tuning.result import Row, Tuning
from ortconv.tuning.workshop import Progress
from tests import text_models

pytestmark = pytest.mark.slow

FEW = {
    "level": ("all", "basic"),
    "style": ("Fixed",),
    "offload": ("no",),
    "ort": ("default",),
    "threads": ("1",),
    "direct": ("no",),
}


@pytest.fixture(autouse=True, scope="module")
def few_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest, "MOST_BLOCKS", 3)
        yield


NEEDS_1_14 = "g (int32[2] x) => (int32[2] y) { y = BitwiseNot (x) }"


def model(path: Path, text: str, opset: int = 17) -> Path:
    return text_models.save(path, text, opset, text_models.MICROSOFT)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Tuning:
    return ortconv.tune(samples / "mnist.onnx", only=FEW, output_dir=tmp_path_factory.mktemp("tuned"))


def test_every_file_is_validated_measured_and_estimated(found: Tuning) -> None:
    assert found.is_complete
    assert found.candidates == 6  # two levels, for any CPU and for arm, and awareness above level basic
    assert found.base is not None
    assert "level extended" in found.base.what
    assert [row.rank for row in found.rows] == list(range(1, len(found.rows) + 1))
    for row in found.rows:
        assert row.error is None
        assert row.measured is not None
        assert row.measured.latency.ratio > 0
        assert row.measured.bytes == Path(row.file or "").stat().st_size
        assert row.measured.peak_bytes is None or row.measured.peak_bytes > 0
        assert row.scaled is not None
        assert row.limit is not None
        assert row.scaled <= row.limit
        assert row.estimated is not None
        assert row.estimated.target == "nnapi"
        assert row.unchecked is None


def test_equal_files_are_measured_once(found: Tuning) -> None:
    assert found.files == len(found.rows) < found.candidates
    assert sum(len(row.same) for row in found.rows) == found.candidates - found.files
    basic = next(row for row in found.rows if row.label == "basic")
    assert "basic arm" in basic.same


def test_the_command_makes_the_recommended_file(found: Tuning, tmp_path: Path) -> None:
    assert found.recommended is not None
    assert found.best is not None
    words = shlex.split(found.recommended.command, posix=os.name == "posix")
    assert main([*words[1:], "-o", str(tmp_path / "m.ort"), "-q"]) == 0
    assert (tmp_path / "m.ort").read_bytes() == Path(found.best.file or "").read_bytes()


def test_a_second_tuning_goes_on_from_the_first(found: Tuning, samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(found.rows[0].file or "").parent

    def forbidden(*arguments: object) -> None:
        raise AssertionError("this was known")

    monkeypatch.setattr(tuning, "draft", forbidden)
    monkeypatch.setattr(tuning, "prove", forbidden)
    monkeypatch.setattr(contest, "measure_block", forbidden)
    monkeypatch.setattr(contest, "measure_memory", forbidden)
    again = ortconv.tune(samples / "mnist.onnx", only=FEW, output_dir=folder)
    assert [row.measured for row in again.rows] == [row.measured for row in found.rows]
    assert again.recommended == found.recommended


def test_a_file_that_was_changed_is_made_again(samples: Path, tmp_path: Path) -> None:
    only = {**FEW, "level": ("all",), "aware": ("none",)}
    first = ortconv.tune(samples / "mnist.onnx", only=only, output_dir=tmp_path)
    path = Path(first.rows[0].file or "")
    whole = path.read_bytes()
    path.write_bytes(b"x")
    ortconv.tune(samples / "mnist.onnx", only=only, output_dir=tmp_path)
    assert path.read_bytes() == whole


def test_an_interruption_keeps_what_is_known(samples: Path, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage.startswith("measuring, ") and progress.done == 2:
            raise KeyboardInterrupt

    found = ortconv.tune(samples / "mnist.onnx", only=FEW, notify=interrupt)
    assert found.is_interrupted
    assert not found.is_complete
    assert {row.measured.blocks for row in found.rows if row.measured is not None} == {2}
    assert found.recommended is not None


def test_a_block_that_fails_keeps_what_is_known(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, calls = contest.Contest._measure, []

    def second_fails(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise UnsupportedError("too slow")
        measure(*arguments)

    monkeypatch.setattr(contest.Contest, "_measure", second_fails)
    found = ortconv.tune(samples / "mnist.onnx", only=FEW)
    assert found.notes == ["measuring ended early: too slow"]
    assert not found.is_complete
    assert found.recommended is not None


def test_a_first_block_that_fails_is_the_error(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise UnsupportedError("too slow")

    monkeypatch.setattr(contest.Contest, "_measure", fails)
    with pytest.raises(UnsupportedError, match="too slow"):
        ortconv.tune(samples / "mnist.onnx", only=FEW)


def test_a_budget_ends_the_work(samples: Path) -> None:
    found = ortconv.tune(samples / "mnist.onnx", budget=0.5)
    assert not found.is_complete
    assert any(row.error == tuning.LATE for row in found.rows)


def test_session_settings_of_the_leaders_are_measured(samples: Path) -> None:
    found = ortconv.tune(
        samples / "qdq_cnn.onnx", only={**FEW, "style": ("Runtime",), "level": ("all",), "threads": ("1", "2")}
    )
    settings = {(row.settings.threads, row.settings.saved) for row in found.rows}
    assert settings == {(1, True), (1, False), (2, True), (2, False)}


def test_what_is_refused_is_a_row(tmp_path: Path) -> None:
    source = model(tmp_path / "m.onnx", NEEDS_1_14, opset=18)
    found = ortconv.tune(source, only={**FEW, "ort": ("default", "1.13"), "aware": ("none",), "platform": ("any",)})
    refused = [row for row in found.rows if row.rank is None]
    assert {row.form.ort for row in refused} == {"1.13"}
    assert all("needs onnxruntime" in (row.error or "") for row in refused)
    assert found.recommended is not None


def test_nothing_to_measure(tmp_path: Path) -> None:
    source = model(tmp_path / "m.onnx", NEEDS_1_14, opset=18)
    with pytest.raises(UnsupportedError, match=r"no candidate could be measured: .*needs onnxruntime"):
        ortconv.tune(source, only={**FEW, "ort": ("1.13",)})


def test_an_ort_file_is_not_tuned(tmp_path: Path, samples: Path) -> None:
    ortconv.convert(samples / "mnist.onnx", tmp_path / "m.ort", validate=False)
    with pytest.raises(UsageError, match=r"tune reads \.onnx models"):
        ortconv.tune(tmp_path / "m.ort")


def test_a_target_that_there_is_not(samples: Path) -> None:
    with pytest.raises(UsageError, match="target 'npu'"):
        ortconv.tune(samples / "mnist.onnx", target="npu")


def test_sessions_of_a_process_fit_into_memory() -> None:
    row = Row("c", Form(), SessionSettings(), "")
    entrants = [
        contest.Candidate(row, Entrant("f", row.settings), "d", 1, peak=peak) for peak in (10, 20, 30, 200, None)
    ]
    assert [[c.peak for c in part] for part in contest.parts(entrants, 5, 100)] == [[10, 20], [30], [200], [None]]
    assert [len(part) for part in contest.parts(entrants, 5, None)] == [5]
    assert list(contest.parts([], 5, 100)) == []


# ---------------------------------------------------------------------- sessions


def test_a_file_that_does_not_open(tmp_path: Path) -> None:
    (tmp_path / "m.ort").write_bytes(b"nothing")
    with pytest.raises(BackendError):
        AppSession(tmp_path / "m.ort", SessionSettings(), {"x": np.zeros(1, np.float32)})


def test_inputs_of_another_shape_are_refused(samples: Path) -> None:
    session = AppSession(
        samples / "mnist.onnx", SessionSettings(), {"Input3": np.zeros((2, 2), np.float32)}, is_source=True
    )
    with pytest.raises(BackendError):
        session.run_first()


@pytest.mark.skipif(not onnxruntime_c.is_available(), reason="this package of onnxruntime has no C library")
@pytest.mark.parametrize("direct", [False, True])
def test_sessions_of_c_compute_the_same(samples: Path, tmp_path: Path, direct: bool) -> None:
    file = tmp_path / "m.ort"
    ortconv.convert(samples / "mobilenet_v2_small.onnx", file, validate=False)
    plain = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (port,) = plain.get_inputs()
    feeds = {port.name: np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)}
    settings = SessionSettings(direct=direct)
    session = onnxruntime_c.NativeSession(file, feeds, threads=1, entries=settings.entries, level=None, direct=direct)
    want = plain.run(None, feeds)[0]
    got = np.zeros_like(want)
    values = (onnxruntime_c.P * 1)(session._tensor(got).value)
    session._api.call("Run", session._session, None, session._inputs, session._values, 1, session._outputs, 1, values)
    assert np.array_equal(got, want)


def test_conditions_are_about_the_recommended_candidate(found: Tuning) -> None:
    assert found.best is not None
    assert found.best.measured is not None
    assert found.base is not None
    now, base = found.metrics(), found.base_metrics()
    assert set(now) == set(base)
    assert set(metrics_of("tune")) - set(now) == (set() if sys.platform == "linux" else {"memory"})
    assert now["latency"] / base["latency"] == pytest.approx(found.best.measured.latency.ratio)
    assert (now["size"], base["size"]) == (found.best.measured.bytes, found.base.bytes)
    assert replace(found, rows=[]).metrics() == {}
