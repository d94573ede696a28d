"""What is left of executions that end in all kinds of ways: no thread, no file, no mapping, and nothing of what they were given.

Garbage collection is off, so that what is only kept by a circle of references counts as left behind.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from nnapi_models import bound, chain, compiled, counting_to, device

from ortconv import nnapi
from ortconv.nnapi import Operation, ResultCode
from ortconv.nnapi.memory import PROT_READ
from ortconv.nnapi.properties import override

X = np.array([1, -2, 3, -4], np.float32)
MS = 1_000_000  # ns

MODES: dict[str, Callable[[nnapi.Execution], None]] = {
    "sync": lambda e: e.compute(),
    "async": lambda e: waited(e.start_compute()),
    "burst": lambda e: nnapi.Burst(e.compilation).compute(e),
    "fenced": lambda e: waited(e.start_compute_with_dependencies([])),
}


def waited(event: nnapi.Event) -> None:
    with event:
        event.wait()


def held() -> tuple[int, int, int]:
    """Threads, open files and mappings of files of the test."""
    with open("/proc/self/maps") as maps:
        mapped = sum("/weights" in line for line in maps)
    return threading.active_count(), len(os.listdir("/proc/self/fd")), mapped


@pytest.fixture(scope="module", autouse=True)
def no_garbage() -> None:
    """Once for all tests: a collection looks through every test that was collected."""
    gc.collect()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.disable()
    before = held()
    try:
        yield
        assert held() == before
    finally:
        gc.enable()


def on(model: nnapi.Model, *devices: nnapi.Device) -> nnapi.Compilation:
    with nnapi.registered(*(one for one in devices if not one.is_reference)):
        return compiled(model, devices)


def slow(seconds: float = 0.05) -> nnapi.Compilation:
    return on(chain(Operation.RELU), device("slow", faults={"slow_s": seconds}))


def begun(compilation: nnapi.Compilation, x: np.ndarray = X) -> tuple[nnapi.Execution, np.ndarray]:  # type: ignore[type-arg]
    """An execution, and where its result goes. Both arrays are its own."""
    out = np.zeros(x.shape, np.float32)
    return bound(compilation, [x.copy()], [out]), out


def code_of(call: Callable[..., object], *given: object) -> ResultCode:
    """How a call ends. The error, and all that its traceback holds, is gone afterward."""
    try:
        call(*given)
    except nnapi.NnapiError as error:
        return error.code
    return ResultCode.NO_ERROR


def watch(execution: nnapi.Execution, out: np.ndarray) -> list[weakref.ref[object]]:  # type: ignore[type-arg]
    fed = execution._inputs[0]
    assert fed is not None
    assert fed.data is not None
    return [weakref.ref(one) for one in (execution, out, fed.data)]


ENDINGS: dict[str, tuple[Callable[[], nnapi.Compilation], dict[str, int], ResultCode]] = {
    "well": (slow, {}, ResultCode.NO_ERROR),
    "late": (slow, {"timeout": 5 * MS}, ResultCode.MISSED_DEADLINE_TRANSIENT),
    "late on arrival": (lambda: on(chain(Operation.RELU), device("npu")), {"timeout": 1}, ResultCode.MISSED_DEADLINE_PERSISTENT),
    "late in a loop": (
        lambda: on(counting_to(np.inf), device("npu")), {"timeout": 20 * MS, "loop_timeout": 15_000 * MS},
        ResultCode.MISSED_DEADLINE_TRANSIENT,
    ),
    "loop timeout": (
        lambda: on(counting_to(np.inf), device("npu")), {"loop_timeout": 10 * MS}, ResultCode.MISSED_DEADLINE_TRANSIENT
    ),
    "loop timeout between steps": (
        lambda: on(counting_to(np.inf), device("adder", "ADD"), nnapi.get_device("nnapi-reference")),
        {"loop_timeout": 10 * MS}, ResultCode.MISSED_DEADLINE_TRANSIENT,
    ),
    "failure": (
        lambda: on(chain(Operation.RELU), device("bad", faults={"execute": "RESOURCE_EXHAUSTED_PERSISTENT"})), {},
        ResultCode.RESOURCE_EXHAUSTED_PERSISTENT,
    ),
    "recovery": (lambda: fallible(), {}, ResultCode.NO_ERROR),
}  # fmt: skip


def fallible() -> nnapi.Compilation:
    """The CPU steps in for a device that fails."""
    with nnapi.registered(device("bad", "RELU", faults={"execute": "OP_FAILED"})):
        return compiled(chain(Operation.RELU, Operation.ADD))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_of_an_execution_outlives_it(ending: str, mode: str) -> None:
    make, settings, code = ENDINGS[ending]
    compilation = make()
    dims = compilation.model.input_types[0].dims
    execution, out = begun(compilation, np.zeros(dims, np.float32))
    for name, nanoseconds in settings.items():
        getattr(execution, f"set_{name}")(nanoseconds)
    left = watch(execution, out)
    assert code_of(MODES[mode], execution) is code
    del execution, out
    assert [one() for one in left] == [None] * 3


@pytest.mark.parametrize("mode", ["async", "fenced"])
def test_events_that_nobody_waits_for(mode: str) -> None:
    execution, out = begun(slow())
    left = watch(execution, out)
    event = execution.start_compute() if mode == "async" else execution.start_compute_with_dependencies([])
    (thread,) = (t for t in threading.enumerate() if t is event._thread)
    del execution, out, event
    thread.join()
    del thread
    assert [one() for one in left] == [None] * 3


def test_freeing_an_execution_that_is_running(caplog: pytest.LogCaptureFixture, go: threading.Event) -> None:
    execution, out = begun(slow())
    with execution.start_compute() as event:
        execution.close()
        assert caplog.messages == ["ANeuralNetworksExecution_free called on a running execution"]
        go.set()
        event.wait()
    assert out.tolist() == [1, 0, 3, 0]
    assert execution.get_output_operand_dimensions(0) == (4,)
    execution.close()
    for call in (execution.compute, lambda: execution.get_output_operand_rank(0), lambda: execution.set_reusable(True)):
        assert code_of(call) is ResultCode.BAD_STATE


def test_asking_for_an_output_without_room() -> None:
    compilation = on(chain(Operation.RELU, dims=(0,)), nnapi.get_device("nnapi-reference"))
    execution = bound(compilation, [X], [np.zeros(3, np.float32)])
    assert code_of(execution.compute) is ResultCode.OUTPUT_INSUFFICIENT_SIZE
    assert code_of(execution.get_output_operand_rank, 0) is ResultCode.OUTPUT_INSUFFICIENT_SIZE
    left = weakref.ref(execution)
    del execution
    assert left() is None


def test_freeing_lets_go_of_arguments() -> None:
    execution, out = begun(slow(0.0))
    execution.set_reusable(True)
    execution.compute()
    left = watch(execution, out)[1:]
    del out
    execution.close()
    execution.close()
    assert [one() for one in left] == [None] * 2
    assert code_of(execution.compute) is ResultCode.BAD_STATE


def test_freeing_an_event_waits() -> None:
    execution, out = begun(slow())
    execution.start_compute_with_dependencies([]).close()
    assert out.tolist() == [1, 0, 3, 0]


def test_freeing_a_burst_that_is_running() -> None:
    compilation = slow(0.1)
    (first, out), (second, _) = begun(compilation), begun(compilation)
    burst = nnapi.Burst(compilation)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(burst.compute, first)
        while not (burst._busy.locked() or running.done()):
            pass
        burst.close()
        running.result()
    assert out.tolist() == [1, 0, 3, 0]
    assert code_of(burst.compute, second) is ResultCode.BAD_STATE


def test_freeing_a_compilation_that_is_running() -> None:
    compilation = slow()
    execution, out = begun(compilation)
    with execution.start_compute() as event:
        compilation.close()
        event.wait()
    assert out.tolist() == [1, 0, 3, 0]
    assert code_of(nnapi.Execution, compilation) is ResultCode.BAD_STATE
    assert code_of(compilation.finish) is ResultCode.BAD_STATE


def test_what_waits_for_an_execution_that_fails_fails() -> None:
    """And so on; what is written by those that fail cannot be read."""
    npu = device("npu", memory={"allocates": True}, faults={"slow_s": 0.02, "execute": "OP_FAILED"})
    compilation = on(chain(Operation.RELU), npu)
    desc = nnapi.MemoryDesc()
    desc.add_output_role(compilation, 0, 1.0)
    desc.finish()
    with nnapi.Memory.from_desc(desc) as memory:
        events: list[nnapi.Event] = []
        executions = []
        for _ in range(4):
            execution = nnapi.Execution(compilation)
            execution.set_input(0, X)
            execution.set_output_from_memory(0, memory)
            events.append(execution.start_compute_with_dependencies(events[-1:]))
            executions.append(execution)
        fds = [event.get_sync_fence_fd() for event in events]
        assert [code_of(event.wait) for event in events] == [ResultCode.OP_FAILED] * 4
        assert [code_of(e.get_output_operand_rank, 0) for e in executions] == [ResultCode.BAD_STATE] * 4
        for fd, event in zip(fds, events):
            with nnapi.Event.from_sync_fence_fd(fd) as imported:
                imported.wait()  # signaled all the same
            os.close(fd)
            event.close()
        left = [weakref.ref(one) for one in (*executions, *events)]
        del execution, executions, event, events
        assert [one() for one in left] == [None] * 8
        target = nnapi.Memory.from_array(np.zeros(4, np.float32))
        assert code_of(nnapi.Memory.copy, memory, target) is ResultCode.BAD_DATA
    assert npu._executions == 1


def test_freeing_a_device_memory_that_is_being_written() -> None:
    compilation = on(chain(Operation.RELU), device("npu", memory={"allocates": True}, faults={"slow_s": 0.05}))
    desc = nnapi.MemoryDesc()
    desc.add_output_role(compilation, 0, 1.0)
    desc.finish()
    memory = nnapi.Memory.from_desc(desc)
    execution = nnapi.Execution(compilation)
    execution.set_input(0, X)
    execution.set_output_from_memory(0, memory)
    with execution.start_compute() as event:
        memory.close()
        event.wait()
    assert memory.array is None


@pytest.mark.usefixtures("clock")
def test_a_fenced_execution_keeps_to_both_its_limits() -> None:
    for timeout, duration in ((10 * MS, 60_000 * MS), (60_000 * MS, 10 * MS)):
        execution, _ = begun(slow(5.0))
        execution.set_timeout(timeout)
        with execution.start_compute_with_dependencies([], duration) as event:
            assert code_of(event.wait) is ResultCode.MISSED_DEADLINE_TRANSIENT


@pytest.mark.skipif(os.name != "posix", reason="counts open files")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("mode", MODES)
def test_a_mapped_file_is_let_go_of(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(X.tobytes())
    with path.open("rb") as file:
        memory = nnapi.Memory.from_fd(16, PROT_READ, file.fileno())
    for timeout, code in ((0, ResultCode.NO_ERROR), (5 * MS, ResultCode.MISSED_DEADLINE_TRANSIENT)):
        execution = nnapi.Execution(slow(0.02))
        execution.set_timeout(timeout)
        execution.set_input_from_memory(0, memory, 0, 16)
        execution.set_output(0, np.zeros(4, np.float32))
        assert code_of(MODES[mode], execution) is code
        execution.close()
    assert held()[2] == 1
    memory.close()


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    compilation = slow()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for call in (nnapi.Execution.start_compute, lambda e: e.start_compute_with_dependencies([])):
            execution, out = begun(compilation)
            assert code_of(call, execution) is ResultCode.RESOURCE_EXHAUSTED_TRANSIENT
            assert code_of(execution.compute) is ResultCode.BAD_STATE
            left = watch(execution, out)
            del execution, out
            assert [one() for one in left] == [None] * 3


def test_a_defect_is_told_to_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    execution, _ = begun(slow(0.0))
    monkeypatch.setattr(execution, "_computed", lambda request: 1 / 0)
    with execution.start_compute() as event, pytest.raises(ZeroDivisionError):
        event.wait()
    assert code_of(execution.get_output_operand_rank, 0) is ResultCode.BAD_STATE


def test_settings_and_devices_are_those_of_a_thread() -> None:
    """Two compilations at the same time, for two phones."""
    gate = threading.Barrier(2)

    def compile(name: str, level: int) -> tuple[list[str], int]:
        with override(feature_level=nnapi.FeatureLevel(level)), nnapi.registered(device(name)):
            gate.wait()
            compilation = compiled(chain(Operation.RELU))
            gate.wait()
            return [d.name for d in nnapi.get_devices()] + [
                d.name for d in compilation.plan.devices
            ], nnapi.get_runtime_feature_level()

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(compile, ("one", "two"), (28, 30)))
    assert found == [(["one", "nnapi-reference", "one"], 28), (["two", "nnapi-reference", "two"], 30)]
    assert [d.name for d in nnapi.get_devices()] == ["nnapi-reference"]
