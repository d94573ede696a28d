"""Limits of validation: budgets, deadlines, memory, loops without end, and inputs that are too large."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortconv
from ortconv.backends.onnxruntime_cpu import countdown
from ortconv.compare.gap import Gap, gap
from ortconv.errors import MismatchError, UnsupportedError, UsageError
from ortconv.inputs import size_search, trials
from ortconv.inputs.budget import Budget, Clock
from ortconv.models import load
from ortconv.pipeline.settings import Settings
from ortconv.runtime.deadline import TimeLimitError, check_limit, deadline, within
from ortconv.runtime.session import Session
from ortconv.validation import reference
from ortconv.validation.reference import Reference
from ortconv.validation.source_runs import ValidationSettings
from tests import text_models
from tests.batches import slow_except
from tests.text_models import save_nodes


def endless(path: Path, turns: int, condition: str = "going") -> Path:
    """Write a model whose Loop adds 1 to x in each of its turns."""
    text = f"""g (float[1] x) => (float[1] y)
        <int64 n = {{{turns}}}, bool t = {{1}}> {{
        y = Loop(n, t, x) <body = b (int64 i, bool going, float[1] v) => (bool more, float[1] w) {{
            more = Identity({condition}) one = Constant<value_floats = [1.0]>() w = Add(v, one) }}> }}"""
    return text_models.save(path, text)


@pytest.mark.parametrize(
    ("text", "seconds", "size"),
    [
        ("30s", 30, 2 << 30),
        ("2min", 120, 2 << 30),
        ("500M", 20, 500 << 20),
        ("1.5s,4GiB", 1.5, 4 << 30),
        ("1h 1GB", 3600, 10**9),
    ],
)
def test_budgets(text: str, seconds: float, size: int) -> None:
    assert Budget.parse(text) == Budget(seconds, size)


@pytest.mark.parametrize("text", ["", "soon", "30", "-1s", "0s", "5 parsecs", "1e9s"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        Budget.parse(text)


def test_a_loop_without_end_is_not_tried(tmp_path: Path) -> None:
    source = endless(tmp_path / "m.onnx", 1 << 62)
    began = time.monotonic()
    with pytest.raises(UnsupportedError, match="could not be checked: Loop 'y' has more than"):
        ortconv.convert(source, tmp_path / "m.ort")
    assert time.monotonic() - began < 10
    assert ortconv.convert(source, tmp_path / "m.ort", allow_unchecked=True).validation is not None


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "sign"), [("n", 1), ("", -1)])
def test_elements_with_which_a_loop_ends_are_found(limit: str, sign: int, tmp_path: Path) -> None:
    """x is added in each turn until the sum is 5 or more, or -5 or less."""
    text = f"""g (float[4] x) => (float y)
        <int64 n = {{9223372036854775807}}, float zero = {{0}}, float end = {{{5 * sign}}}, bool t = {{1}}> {{
        low = ReduceMin<keepdims = 0>(x) high = ReduceMax<keepdims = 0>(x) product = Mul(low, high) one = Abs(low)
        opposite = Less(product, zero) step = Where(opposite, zero, {"low" if sign > 0 else "high"})
        y = Loop({limit}, t, zero) <body = b (int64 i, bool going, float v) => (bool more, float w) {{
            w = Add(v, step) more = {"Less" if sign > 0 else "Greater"}(w, end) }}> }}"""
    source = text_models.save(tmp_path / "m.onnx", text)
    found = ortconv.convert(source, tmp_path / "m.ort").validation
    assert found is not None
    assert found.inputs[0].startswith("fraction" if sign > 0 else "negative")


def test_a_loop_that_nothing_ends_runs_on_no_engine(tmp_path: Path) -> None:
    body = "y = Loop(, , x) <body = b (int64 i, bool going, float[2] v) => (bool more, float[2] w) {"
    source = save_nodes(tmp_path / "m.onnx", f"{body} more = Identity(going) w = Neg(v) }}>", "float[2] x")
    expected = Reference(load(source), source, ValidationSettings())
    assert not expected.outputs
    assert expected.reasons.keys() == {"numpy"}
    assert "its body never ends it" in expected.reasons["numpy"]


def test_sizes_of_inputs_larger_than_the_memory_are_not_checked(tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = Size(x)", "float[2147483648,4,5] x")
    with pytest.raises(UnsupportedError, match="could not be checked"):
        ortconv.convert(source, tmp_path / "m.ort")


def test_ranks_that_numpy_lacks_are_refused_before_sizes_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_search, "sizes_to_try", None)
    dims = ",".join(f"d{i}" for i in range(3000))
    source = save_nodes(tmp_path / "m.onnx", "y = Size(x)", f"float[{dims}] x")
    with pytest.raises(UnsupportedError, match="input 'x' has rank 3000, numpy's limit is 64"):
        ortconv.convert(source, tmp_path / "m.ort")


def test_endless_skips_run_on_no_engine(tmp_path: Path) -> None:
    body = """y = TfIdfVectorizer<max_gram_length = 2, max_skip_count = 4611686018427387904, min_gram_length = 2, mode = "TF",
        ngram_counts = [0, 0], ngram_indexes = [0, 1], pool_int64s = [5, 6, 7, 8]>(x)"""
    source = save_nodes(tmp_path / "m.onnx", body, "int32[12] x")
    expected = Reference(load(source), source, ValidationSettings())
    assert not expected.outputs
    assert expected.reasons.keys() == {"numpy"}
    assert "max_skip_count is 4611686018427387904" in expected.reasons["numpy"]


def test_the_rows_of_a_loop_without_turns_have_any_shape(tmp_path: Path) -> None:
    body = """l, y = Loop(n, , x) <body = b (int64 i, bool going, float[2] v) => (bool more, float[2] w, float[2] row) {
        more = Identity(going) w = Add(v, v) row = Mul(v, x) }>"""
    source = save_nodes(tmp_path / "m.onnx", body, "int64 n, float[2] x")
    feeds = {"n": np.array(0), "x": np.ones(2, np.float32)}
    expected = Reference(load(source), source, ValidationSettings(engines=("numpy",), given=(feeds,)))
    assert expected.outputs["numpy"][0] is not None
    expected.judge("numpy", [[np.zeros((0, 0), np.float32)]], "", "", False)
    for wrong in (np.zeros((1, 2), np.float32), np.zeros((2, 0), np.float32), np.zeros((0, 2), np.float16)):
        with pytest.raises(MismatchError):
            expected.judge("numpy", [[wrong]], "", "", False)


@pytest.mark.parametrize("backend", slow_except(["numpy"], ("numpy", "onnxruntime")))
@pytest.mark.parametrize("cpu", [False, True])
def test_a_long_run_is_given_up(cpu: bool, backend: str, tmp_path: Path) -> None:
    session = Session(endless(tmp_path / "m.onnx", 1 << 24), [backend])
    with within(0.2, cpu=cpu), pytest.raises(TimeLimitError, match="exceeds its time limit"):
        session.run(None, {"x": np.zeros(1, np.float32)})


def test_time_in_which_the_process_waits_counts_by_a_quarter() -> None:
    clock = Clock(Budget(seconds=10))
    with clock:
        time.sleep(0.2)
        assert clock.left > 10 - 0.15
    assert 0.05 <= clock.used < 0.15


@pytest.mark.skipif(sys.platform != "linux", reason="threads cannot read each other's CPU time")
def test_another_thread_sees_how_much_cpu_time_a_run_has_left() -> None:
    assert deadline() is None
    with within(10, cpu=True):
        limit = deadline()
        assert limit is not None
        left = countdown(limit)
        time.sleep(0.2)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(left).result() > 10 - 0.1
        began = time.thread_time()
        while time.thread_time() < began + 0.1:
            pass
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(left).result() <= 10 - 0.1


def test_without_a_deadline_nothing_is_given_up(tmp_path: Path) -> None:
    session = Session(endless(tmp_path / "m.onnx", 3))
    with within(60):
        assert session.run(None, {"x": np.zeros(1, np.float32)})[0] == 3
    assert session.run(None, {"x": np.zeros(1, np.float32)})[0] == 3


def test_what_needs_too_much_memory_is_not_tried(tmp_path: Path) -> None:
    source = save_nodes(
        tmp_path / "m.onnx", "s = Constant<value_ints = [64, 100000]>() e = Expand(x, s) y = ReduceSum(e)", "float[1] x"
    )
    with pytest.raises(UnsupportedError, match=r"needs 0\.02\d* GiB at Expand"):
        ortconv.convert(source, tmp_path / "m.ort", validate_budget="1M")
    assert ortconv.convert(source, tmp_path / "m.ort").validation is not None


@pytest.mark.parametrize("allowed", [False, True])
def test_a_comparison_that_needs_too_much_memory_is_none(
    allowed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arrays: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(reference, "gap", full)
    source, output = save_nodes(tmp_path / "m.onnx", "y = Relu(x)"), tmp_path / "m.ort"
    if allowed:
        found = ortconv.convert(source, output, allow_unchecked=True).validation
        assert found is not None
        assert found.skipped == "validation needs more memory than there is"
    else:
        with pytest.raises(UnsupportedError, match="validation needs more memory than there is"):
            ortconv.convert(source, output)
        assert not output.exists()


def test_large_outputs_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex64):
        want = (40 * rng.standard_normal((7, 5))).astype(dtype)
        got = np.where(rng.random((7, 5)) < 0.5, want, want[::-1])
        if want.dtype.kind == "f":
            want[3, 1:4], got[3, 2:5] = np.nan, np.inf
        whole = gap(want, got)
        with monkeypatch.context() as patch:
            patch.setattr("ortconv.compare.gap.PIECE_ELEMENTS", 4)
            assert astuple(gap(want, got))[:-2] == pytest.approx(astuple(whole)[:-2], rel=1e-12)
    large = np.zeros(1 << 24, np.float32)
    tracemalloc.start()
    assert gap(large, large) == Gap(size=large.size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < large.nbytes


@pytest.mark.parametrize("settings", [{}, {"verify_each": True}, {"optimization_style": "Runtime"}])
def test_inputs_declared_too_large_are_made_smaller(settings: Settings, tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "z = Identity(x)\ny = Relu(z)", "float[2,1000000] x", "float[2,1000000] y")
    result = ortconv.convert(source, tmp_path / "m.ort", validate_budget="1M", **settings)
    found = result.validation
    assert found is not None
    assert ortconv.load(tmp_path / "m.ort").graph.outputs[0].static_shape == (2, 1000000)
    assert found.skipped is None
    assert found.backend == "numpy"
    assert any("smaller inputs than declared" in note for note in found.notes)


@pytest.mark.parametrize(("slow", "proof"), [(1, "onnxruntime"), (2, "numpy")])
def test_runs_that_take_too_long(slow: int, proof: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is too slow on numpy runs on onnxruntime; what is too slow on both runs on smaller inputs."""
    timed, late = trials._timed, [TimeLimitError("late", backend="numpy")] * slow

    def timed_unless_late(run: Any, feeds: Any, clock: Any, *share: float) -> Any:
        if late:
            clock.used = 100.0
            raise late.pop()
        assert clock.left > 4
        return timed(run, feeds, clock, *share)

    monkeypatch.setattr(trials, "_timed", timed_unless_late)
    source = save_nodes(tmp_path / "m.onnx", "y = Relu(x)", "float[2,10000] x", "float[2,10000] y")
    found = ortconv.convert(source, tmp_path / "m.ort").validation
    assert found is not None
    assert found.backend == proof
    assert any("smaller inputs than declared" in note for note in found.notes) == (proof == "numpy")


def test_a_source_too_slow_for_onnxruntime_is_not_run_on_numpy_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(run: Any, feeds: Any, clock: Any, *share: float) -> Any:
        raise TimeLimitError("late", backend="onnxruntime")

    monkeypatch.setattr(trials, "_timed", late)
    source = save_nodes(tmp_path / "m.onnx", "y = Relu(x)", "float[2,10000] x", "float[2,10000] y")
    found = ortconv.convert(source, tmp_path / "m.ort", validate_on="onnxruntime", allow_unchecked=True).validation
    assert found is not None
    assert found.skipped == "one run takes longer than half of 20 s"


def tried_inputs(folder: Path, run: Callable[[dict[str, Any]], list[Any]]) -> tuple[list[str], list[str]]:
    """The kinds of inputs that are tried with a run, and the notes."""
    graph = load(save_nodes(folder / "m.onnx", "y = Relu(x)")).graph
    clock, notes = Clock(Budget()), list[str]()
    found = trials.trials(graph, run, (), clock, notes, size_search.choices(graph, clock))
    return [trial.what.split()[0] for trial, _ in found], notes


def test_unusual_inputs_are_left_out_if_a_run_is_slow(tmp_path: Path) -> None:
    def slow(feeds: dict[str, Any]) -> list[Any]:
        began = time.process_time()
        while time.process_time() - began < 0.1:
            pass
        return [feeds["x"]]

    found, notes = tried_inputs(tmp_path, slow)
    assert len(found) == 1
    assert notes == [
        "negative, large, zeros inputs were left out for time; --validate-budget 3min may have room for them"
    ]


@pytest.mark.slow
def test_a_busy_machine_leaves_out_no_inputs(tmp_path: Path) -> None:
    def waiting(feeds: dict[str, Any]) -> list[Any]:
        time.sleep(0.1)
        return [feeds["x"]]

    assert tried_inputs(tmp_path, waiting) == (["drawn", "negative", "large", "zeros"], [])


@pytest.mark.slow
def test_unusual_inputs_with_which_a_run_does_not_end_are_left_out(tmp_path: Path) -> None:
    """As with a Loop that doubles a value until it is large."""

    def doubled(feeds: dict[str, Any]) -> list[Any]:
        while feeds["x"].max() <= 0:
            check_limit()
        return [feeds["x"]]

    began = time.thread_time()
    found, notes = tried_inputs(tmp_path, doubled)
    assert time.thread_time() - began < 2
    assert found == ["drawn", "large"]
    assert notes == ["negative, zeros inputs were left out for time; --validate-budget 1min may have room for them"]


@pytest.mark.parametrize("numpy", ["numpy", "numpy:reference"])
def test_the_reason_why_numpy_does_not_run_is_kept(numpy: str, tmp_path: Path) -> None:
    source = save_nodes(tmp_path / "m.onnx", "y = test.Unknown(x)", test=1)
    found = Reference(load(source), source, ValidationSettings(("numpy",), numpy=numpy))
    assert "Unknown" in str(found.reasons.get("numpy"))
