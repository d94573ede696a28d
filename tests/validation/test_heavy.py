"""Models of much weight: validation proves the same, without copies of the weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortconv
from ortconv import process
from ortconv.backends import onnxruntime_app, onnxruntime_c
from ortconv.backends.onnxruntime_cpu import ModelFile
from ortconv.errors import BackendError, MismatchError
from ortconv.files import mapped
from ortconv.ir.graph import Graph
from ortconv.optimizer.engine import Context
from ortconv.optimizer.passes import Pass
from ortconv.runtime.deadline import TimeLimitError, within
from ortconv.validation import engines, source_runs

needs_c = pytest.mark.skipif(not onnxruntime_c.is_available(), reason="this package of onnxruntime has no C library")
SIDE = 256


@pytest.fixture(autouse=True)
def everything_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_runs, "HEAVY", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two products; their weights are in a file beside the model."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal((SIDE, SIDE), np.float32), name) for name in ("w", "v")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
        helper.make_node("Greater", ["y", "x"], ["z"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIDE]) for name in "xy")
    z = helper.make_tensor_value_info("z", TensorProto.BOOL, ["n", SIDE])
    graph = helper.make_graph(nodes, "heavy", [x], [y, z], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save_model(made, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path


def engine_results(found: ortconv.Result) -> dict[str, tuple[bool, str | None]]:
    assert found.validation is not None
    return {e.name: (e.loads, e.skipped) for e in found.validation.engines}


BOTH = {"numpy": (True, None), "onnxruntime": (True, None)}


@needs_c
def test_no_session_copies_weights(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, bool]] = []
    make, direct = ModelFile.__init__, onnxruntime_c.DirectFile.__init__

    def make_file(self: ModelFile, file: Path, *, default: bool, **more: Any) -> None:
        make(self, file, default=default, **more)
        opened.append((file.suffix, more.get("entries") == engines.AS_STORED and len(self._mappings) == 2))

    def make_direct(self: onnxruntime_c.DirectFile, file: Path, entries: dict[str, str]) -> None:
        direct(self, file, entries)
        opened.append((file.suffix, entries.keys() >= {*engines.AS_STORED, *onnxruntime_app.DIRECT}))

    monkeypatch.setattr(ModelFile, "__init__", make_file)
    monkeypatch.setattr(onnxruntime_c.DirectFile, "__init__", make_direct)
    assert engine_results(ortconv.convert(model, tmp_path / "m.ort")) == BOTH
    assert sorted(opened) == [(".onnx", True), (".ort", True)]


def test_other_numbers_are_found(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortconv.optimizer import basic

    def spoil(graph: Graph, context: Context) -> int:
        wrong = [node for node in graph if node.op == "Tanh"]
        for node in wrong:
            node.op = "Sigmoid"
        return len(wrong)

    monkeypatch.setattr(basic, "PASSES", (*basic.PASSES, Pass("Spoil", spoil)))
    for engine in BOTH:
        with pytest.raises(MismatchError, match=f"output '[yz]' differs from the source's on {engine}"):
            ortconv.convert(model, tmp_path / "m.ort", validate_on=engine)


@pytest.mark.parametrize("fails", ["opening", "running"])
def test_what_needs_copies_gets_them(fails: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def run(self, feeds: object) -> list[Any]:
            raise BackendError("no", backend="onnxruntime")

    def without_copies(*_: object) -> Refused:
        if fails == "opening":
            raise BackendError("no", backend="onnxruntime")
        return Refused()

    feeds = {"x": np.ones((2, SIDE), np.float32)}
    want = onnxruntime.InferenceSession(model).run(None, feeds)
    monkeypatch.setattr(engines, "_without_copies", without_copies)
    opened = engines.open_file(model, True, None, light=True)
    for _ in range(2):
        assert all(map(np.array_equal, opened.run(feeds), want))
    with pytest.raises(BackendError, match="Required inputs"):
        opened.run({})


def test_a_late_run_is_not_repeated(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        def run(self, feeds: object) -> list[Any]:
            raise TimeLimitError("late", backend="onnxruntime")

    monkeypatch.setattr(engines, "_without_copies", lambda *_: Late())
    with pytest.raises(TimeLimitError):
        engines.open_file(model, True, None, light=True).run({})


@needs_c
def test_a_mapped_file_computes_the_same(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    ortconv.convert(model, path, validate=False)
    opened = onnxruntime_c.DirectFile(path, onnxruntime_app.SessionSettings(direct=True).entries)
    session = onnxruntime.InferenceSession(path)
    for rows in (3, 1, 0):
        feeds = {"x": np.linspace(-1, 1, rows * SIDE, dtype=np.float32).reshape(rows, SIDE)}
        for got, want in zip(opened.run(feeds), session.run(None, feeds), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)
    with pytest.raises(BackendError, match="rank"):
        opened.run({"x": np.ones(SIDE, np.float32)})
    with pytest.raises(BackendError, match="arrays of numbers"):
        opened.run({"x": ["text"]})
    with pytest.raises(BackendError):
        onnxruntime_c.DirectFile(model, {})


@pytest.mark.slow
@needs_c
def test_a_run_of_c_ends_at_its_deadline(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y)
        <int64 n = {1000000000}, bool t = {1}> {
        y = Loop(n, t, x) <body = b (int64 i, bool going, float[1] v) => (bool more, float[1] w) {
            more = Identity(going) one = Constant<value_floats = [1.0]>() w = Add(v, one) }> }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort", validate=False)
    opened = onnxruntime_c.DirectFile(tmp_path / "m.ort", onnxruntime_app.SessionSettings(direct=True).entries)
    with within(0.2), pytest.raises(TimeLimitError):
        opened.run({"x": np.ones(1, np.float32)})


def resident(address: int) -> int:
    """Kilobytes of a mapping that are in the process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(f"{address:x}-"))
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is in memory")


@linux
def test_mappings_of_native_code_are_found_and_let_go(tmp_path: Path) -> None:
    import mmap

    file = tmp_path / "a file"
    file.write_bytes(bytes(range(256)) * 4096)
    with file.open("rb") as opened:
        own = mapped(opened.fileno())
        native = mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    ((address, size),) = process.private_mappings([file])
    assert size == len(native) == own.nbytes
    assert process.private_mappings([tmp_path / "other"]) == []
    total = sum(native[::4096])
    assert resident(address) == size // 1024
    process.drop_mappings([(address, size)])
    assert resident(address) == 0
    assert sum(native[::4096]) == total


def test_pages_are_kept_out_until_the_end() -> None:
    calls: list[str] = []
    enough = threading.Event()

    def drop_pages() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) > 3:
            enough.set()

    with process.repeatedly(drop_pages):
        assert enough.wait(10)
    before = len(calls)
    assert calls[-1] == threading.current_thread().name
    time.sleep(0.01)
    assert len(calls) == before


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of mapped files whose pages each run of numpy lets go."""
    seen: list[int] = []
    monkeypatch.setattr(engines, "drop_pages", lambda view: seen.append(view.nbytes))
    yield seen


def test_runs_on_numpy_let_pages_go(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted(monkeypatch) as seen:
        assert engine_results(ortconv.convert(model, tmp_path / "m.ort", validate_on="numpy")) == {
            "numpy": (True, None)
        }
    assert set(seen) == {SIDE * SIDE * 4}
