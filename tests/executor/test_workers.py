"""Processes that share the work of a recording: they do all of it once, and end when they should."""

import multiprocessing
import os
import signal
import sys
import threading
import time

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from ortconv.executor import lanes, workers
from ortconv.executor.recording import Recorder
from ortconv.executor.work import ChangedError, divided, parts
from ortconv.executor.workers import Workers, lanes_for, shared_memory
from ortconv.session import Session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs processes that can be forked")
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def start_for_little(monkeypatch):
    monkeypatch.setattr(lanes, "_FEWEST_SECONDS_OF_A_RUN", 0)
    monkeypatch.setattr(workers, "cores", lambda: 3)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def _numbers(count):
    return shared_memory(8 * count).view(np.int64)


def _add_one(x):
    np.add(x, 1, x)


def _children():
    return {p.pid for p in multiprocessing.active_children()}


@pytest.fixture
def pair():
    """Two lanes, what they count in, and a run of all pieces."""
    two, counts = Workers(2), _numbers(6)
    calls = [
        two.add([[(_add_one, (counts[2 * i : 2 * i + 1],))], [(_add_one, (counts[2 * i + 1 : 2 * i + 2],))]])
        for i in range(3)
    ]
    before = _children()

    def run():
        two.begin()
        for function, args in calls:
            function(*args)

    yield two, counts, run
    two.stop()
    assert _children() == before


def test_every_lane_is_done_once_per_run(pair):
    two, counts, run = pair
    run()  # by this process alone
    two.start()
    for _ in range(100):
        run()
    np.testing.assert_array_equal(counts, 101)


def test_pieces_come_one_after_the_other():
    """Each lane reads what the other one wrote in the piece before."""
    two, x, y = Workers(2), _numbers(2), _numbers(2)
    calls = []
    for _ in range(50):
        for source, target in ((x, y), (y, x)):
            calls.append(two.add([[(np.add, (source[1 - lane :][:1], 1, target[lane:][:1]))] for lane in range(2)]))
    two.start()
    for run in range(1, 20):
        two.begin()
        for function, args in calls:
            function(*args)
        np.testing.assert_array_equal(x, 100 * run)
    two.stop()


def test_workers_sleep_between_runs(pair):
    two, counts, run = pair
    two.start()
    run()
    time.sleep(0.05)
    (worker,) = two._others
    with open(f"/proc/{worker._process.pid}/stat") as file:
        before = file.read().rsplit(")")[1].split()[11:13]
    time.sleep(0.3)
    with open(f"/proc/{worker._process.pid}/stat") as file:
        assert file.read().rsplit(")")[1].split()[11:13] == before
    run()
    np.testing.assert_array_equal(counts, 2)


def test_a_run_that_broke_off_ends_the_workers(pair):
    two, counts, run = pair
    two.start()

    def fail():
        raise ZeroDivisionError

    function, args = two.add([[(fail, ())], []])
    two._others[0].go = lambda: None
    two.begin()
    with pytest.raises(ZeroDivisionError):
        function(*args)
    with pytest.raises(ChangedError):
        two.begin()
    run()
    np.testing.assert_array_equal(counts, 1)


def test_what_a_worker_does_not_begin_is_not_left_undone(pair):
    two, counts, run = pair
    two.start()
    (worker,) = two._others
    os.kill(worker._process.pid, signal.SIGSTOP)
    for _ in range(3):
        run()
    np.testing.assert_array_equal(counts, 3)
    os.kill(worker._process.pid, signal.SIGCONT)
    for _ in range(100):
        run()
    np.testing.assert_array_equal(counts, 103)


def test_without_its_worker_a_process_does_it_all(pair):
    two, counts, run = pair
    two.start()
    os.kill(two._others[0]._process.pid, signal.SIGKILL)
    run()
    np.testing.assert_array_equal(counts, 1)


def _only_in(process):
    """Fails in a worker, which this process must not do for it."""
    assert os.getpid() == process


FAILURES = {"ends": (os._exit, (1,)), "fails": (_only_in, (os.getpid(),)), "takes too long": (time.sleep, (60,))}


@pytest.mark.parametrize("call", FAILURES.values(), ids=FAILURES)
def test_a_worker_that_does_not_come_to_its_end_is_noticed(call, monkeypatch):
    monkeypatch.setattr(workers, "_CHECKED_AFTER", 0.05)
    monkeypatch.setattr(workers, "_PATIENCE", 0.1)
    two = Workers(2)
    function, args = two.add([[(time.sleep, (0.3,))], [call]])
    two.start()
    two.begin()
    with pytest.raises(ChangedError):
        function(*args)
    assert not two._others


def test_without_processes_one_does_it_all(pair, monkeypatch):
    two, counts, run = pair

    def refuse(*_):
        raise OSError

    monkeypatch.setattr(workers, "_Worker", refuse)
    two.start()
    run()
    np.testing.assert_array_equal(counts, 1)


MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 8, 64, 64] x) => (float[1, 8, 64, 64] z)
{ a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Sigmoid(a) z = Mul(b, x) }"""


@pytest.fixture
def path(tmp_path):
    model = parse_model(MODEL)
    model.graph.initializer.append(onnx.numpy_helper.from_array(f32(8, 8, 3, 3), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _runs(session, alone, count):
    for _ in range(count):
        x = f32(1, 8, 64, 64)
        (got,), (want,) = session.run(None, {"x": x}), alone.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_session_has_workers_until_it_is_closed(path):
    before = _children()
    alone, session = Session(path), Session(path, threads=3)
    _runs(session, alone, 1)
    assert _children() == before
    _runs(session, alone, 4)
    assert len(_children() - before) == 2
    session.close()
    assert _children() == before


def test_little_work_has_no_workers(path, monkeypatch):
    monkeypatch.setattr(lanes, "_FEWEST_SECONDS_OF_A_RUN", 1)
    before = _children()
    _runs(Session(path, threads=2), Session(path), 4)
    assert _children() == before


def test_workers_end_with_the_session(path):
    before = _children()
    session = Session(path, threads=2)
    _runs(session, Session(path), 3)
    assert len(_children() - before) == 1
    del session
    assert _children() == before


def test_a_lost_worker_costs_no_result(path, monkeypatch):
    monkeypatch.setattr(workers, "_CHECKED_AFTER", 0.05)
    before = _children()
    alone, session = Session(path), Session(path, threads=2)
    _runs(session, alone, 3)
    (worker,) = _children() - before
    os.kill(worker, signal.SIGKILL)
    _runs(session, alone, 3)
    session.close()


def _in_child(session, alone, connection):
    _runs(session, alone, 5)
    connection.send(True)


def test_a_forked_process_leaves_them_alone(path):
    """Both go on at the same time, each with memory of its own."""
    alone, session = Session(path), Session(path, threads=2)
    _runs(session, alone, 3)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_in_child, args=(session, alone, there))
    child.start()
    _runs(session, alone, 20)
    assert here.poll(30)
    child.join(30)
    assert child.exitcode == 0
    _runs(session, alone, 3)
    session.close()


def test_in_a_thread(path):
    alone, session = Session(path), Session(path, threads=2)
    failed = []

    def run():
        try:
            _runs(session, alone, 5)
        except AssertionError as error:
            failed.append(error)

    for _ in range(2):
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    session.close()


def test_no_more_lanes_than_cores():
    assert [lanes_for(count) for count in (1, 2, 3, 4)] == [1, 2, 3, 3]


def test_parts():
    for size in range(1, 40):
        for count in range(1, 5):
            for cut in (divided(slice(3, 3 + size), count), parts(slice(3, 3 + size), count)):
                lengths = [s.stop - s.start for s in cut]
                assert [i for s in cut for i in range(s.start, s.stop)] == list(range(3, 3 + size))
                assert max(lengths) == lengths[0] <= min(lengths) + 1
            assert len(divided(slice(0, size), count)) == count
            assert max(lengths) <= count


CALLS = {
    "product": lambda: (np.matmul, f32(50, 30), f32(30, 40), f32(50, 40)),
    "wide product": lambda: (np.matmul, f32(2, 300), f32(300, 90), f32(2, 90)),
    "batch": lambda: (np.matmul, f32(3, 4, 20, 9), f32(4, 9, 30), f32(3, 4, 20, 30)),
    "transposed": lambda: (np.matmul, f32(50, 30), f32(40, 30).T, f32(40, 50).T),
    "sum": lambda: (np.add, f32(5, 7, 90), f32(7, 1), f32(5, 7, 90)),
    "scalar": lambda: (np.multiply, f32(700), np.float32(3), f32(700)),
    "channels last": lambda: (np.add, f32(1, 9, 20, 20), f32(9, 1, 1), f32(1, 20, 20, 9).transpose(0, 3, 1, 2)),
    "copy": lambda: (np.copyto, f32(30, 30), f32(30)),
    "copy of bytes": lambda: (np.copyto, f32(30, 30).astype(np.uint8), f32(30, 30) * 9, "unsafe"),
    "short first axis": lambda: (np.exp, f32(1, 2, 3, 400), f32(1, 2, 3, 400)),
    "one by one": lambda: (np.exp, f32(400)[::2], f32(400)[::2]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("count", [2, 3])
def test_a_call_in_lanes_makes_the_same(call, count, monkeypatch):
    monkeypatch.setattr(lanes, "_FEWEST_SECONDS", 0)
    function, *args = call()
    out = args[0] if function is np.copyto else args[-1]
    function(*args)
    want = out.copy()
    out.fill(77)
    cut = lanes.in_lanes(function, args, count)
    assert len(cut) == count
    for one, its in reversed(cut):
        assert (out == 77).any()
        one(*its)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_in_place_calls_are_cut_only_element_by_element(monkeypatch):
    monkeypatch.setattr(lanes, "_FEWEST_SECONDS", 0)
    x = f32(400)
    assert lanes.in_lanes(np.add, (x, x, x), 2)
    assert lanes.in_lanes(np.add, (x[1:], x[:-1], x[:-1]), 2) is None
    assert lanes.in_lanes(np.copyto, (x[1:], x[:-1]), 2) is None
    assert lanes.in_lanes(np.matmul, (x.reshape(20, 20), f32(20, 20), x.reshape(20, 20)), 2) is None


def test_what_is_not_known_is_not_cut(monkeypatch):
    monkeypatch.setattr(lanes, "_FEWEST_SECONDS", 0)
    for function, args in (
        (np.add.reduce, (f32(400, 9), 0, None, f32(9))),
        (_add_one, (f32(400),)),
        (np.dot, (f32(90, 9), f32(9))),
    ):
        assert lanes.in_lanes(function, args, 2) is None
    assert lanes.in_lanes(np.vecdot, (f32(90, 9), f32(90, 9), f32(90)), 2) is None


def test_little_work_is_not_shared():
    assert lanes.in_lanes(np.add, (f32(40), f32(40), f32(40)), 2) is None
    assert lanes.in_lanes(np.matmul, (f32(4, 4), f32(4, 4), f32(4, 4)), 2) is None


def test_shares_have_memory_of_their_own():
    recorder = Recorder(Workers(2))
    seen = []
    for cut in recorder.shares(10, 3):
        with recorder.scratch():
            seen.append((cut, recorder.empty((100,))))
        seen.append((cut, recorder.empty((100,))))
    first, second = seen[:2], seen[2:]
    assert [s for cut, _ in (first[0], second[0]) for s in cut] == [slice(0, 3), slice(3, 5), slice(5, 8), slice(8, 10)]
    assert not any(np.may_share_memory(x, y) for _, x in first for _, y in second)
