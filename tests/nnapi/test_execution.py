"""Executions: modes, states, arguments, dynamic outputs, timeouts."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from nnapi_models import Builder, adding, bound, chain, choosing, compiled, condition, counting_to, run, tensor

from ortconv import nnapi
from ortconv.nnapi import DurationCode, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.execution import NO_DURATION
from ortconv.nnapi.simulated import SimulatedDevice

ONES = np.ones(4, np.float32)


def reference() -> list[nnapi.Device]:
    return [nnapi.get_device("nnapi-reference")]


def prepared(model: nnapi.Model, *inputs: np.ndarray) -> tuple[nnapi.Execution, np.ndarray]:  # type: ignore[type-arg]
    out = np.zeros(4, np.float32)
    return bound(compiled(model, reference()), inputs, [out]), out


MODES: dict[str, Callable[[nnapi.Execution], None]] = {
    "sync": lambda e: e.compute(),
    "async": lambda e: e.start_compute().wait(),
    "burst": lambda e: nnapi.Burst(e.compilation).compute(e),
    "fenced": lambda e: e.start_compute_with_dependencies([]).wait(),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    execution, out = prepared(adding(tensor(4)), ONES, 2 * ONES)
    MODES[mode](execution)
    assert out.tolist() == [3, 3, 3, 3]
    assert execution.get_output_operand_dimensions(0) == (4,)
    assert execution.get_output_operand_rank(0) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_reusable_execution(mode: str) -> None:
    x = ONES.copy()
    execution, out = prepared(chain(Operation.RELU), x)
    execution.set_reusable(True)
    for value in (1, 2, 3):
        x[:] = value
        MODES[mode](execution)
        assert out.tolist() == [value] * 4
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        execution.set_loop_timeout(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.set_reusable(True),
        lambda e: e.set_measure_timing(True),
        lambda e: e.set_timeout(1),
        lambda e: e.set_loop_timeout(1),
        lambda e: e.enable_input_and_output_padding(True),
        lambda e: e.set_input(0, ONES),
        lambda e: e.set_output(0, ONES.copy()),
        *MODES.values(),
    ],
)
def test_an_execution_computes_once_and_is_closed(call: Callable[[nnapi.Execution], None]) -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    execution.compute()
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        call(execution)


def test_results_are_not_there_before_the_run() -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    for ask in (execution.get_output_operand_dimensions, execution.get_output_operand_rank, execution.get_duration):
        with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
            ask(0)


def test_a_missing_argument() -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    execution.set_input(0, ONES)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA: output 0 is not set"):
        execution.compute()
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        execution.compute()
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        execution.get_output_operand_dimensions(0)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.zeros(3, np.float32), None),
        (np.zeros(5, np.float32), None),
        (np.zeros(4, np.int32), None),
        (np.zeros(4, np.float64), None),
        (np.zeros(4, np.float32), tensor(2, 2)),
        (np.zeros(4, np.float32), tensor(5)),
        (np.zeros(4, np.float32), tensor(0)),
        (np.zeros(4, np.float32), tensor()),
        (np.zeros(4, np.float32), tensor(4, type=Operand.TENSOR_FLOAT16)),
        (np.zeros(4, np.float32), OperandType(Operand.TENSOR_FLOAT32, [4], 1.0, 0)),
    ],
)
def test_arguments_that_do_not_fit(array: np.ndarray, kind: OperandType | None) -> None:  # type: ignore[type-arg]
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    for setter in (execution.set_input, execution.set_output):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            setter(0, array, kind)


@pytest.mark.parametrize("index", [-1, 1])
def test_arguments_that_are_not_there(index: int) -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    for setter in (execution.set_input, execution.set_output):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            setter(index, ONES.copy())


def test_an_argument_is_set_once() -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    for setter in (execution.set_input, execution.set_output):
        setter(0, ONES.copy())
        with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
            setter(0, ONES.copy())


def test_padding() -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    execution.enable_input_and_output_padding(True)
    out = np.full(8, 9, np.float32)
    execution.set_input(0, np.arange(8, dtype=np.float32))
    execution.set_output(0, out)
    execution.compute()
    assert out.tolist() == [0, 1, 2, 3, 9, 9, 9, 9]


def test_padding_comes_first() -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        execution.enable_input_and_output_padding(True)


def test_an_input_that_is_needed_is_omitted() -> None:
    execution = bound(compiled(chain(Operation.RELU), reference()), [None], [ONES.copy()])
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        execution.compute()


@pytest.mark.parametrize("dims", [(), (0,), (0, 3)])
def test_dimensions_given_when_the_execution_is_set_up(dims: tuple[int, ...]) -> None:
    compilation = compiled(chain(Operation.RELU, dims=dims), reference())
    given = (2, 3) if len(dims) != 1 else (6,)
    for kind in (None, tensor(*given)):
        execution = nnapi.Execution(compilation)
        execution.set_input(0, np.arange(6, dtype=np.float32).reshape(given), kind)
        out = np.zeros(10, np.float32)
        execution.set_output(0, out)
        execution.compute()
        assert execution.get_output_operand_dimensions(0) == given
        assert out.tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]


def test_an_input_of_unknown_dimensions() -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU, dims=(0,)), reference()))
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        execution.set_input(0, np.zeros(0, np.float32))


def test_an_output_without_room() -> None:
    execution = bound(compiled(chain(Operation.RELU, dims=(0,)), reference()), [ONES], [np.zeros(3, np.float32)])
    with pytest.raises(nnapi.NnapiError, match="OUTPUT_INSUFFICIENT_SIZE"):
        execution.compute()
    for ask in (execution.get_output_operand_dimensions, execution.get_output_operand_rank):
        with pytest.raises(nnapi.NnapiError) as small:
            ask(0)
        assert small.value.code is ResultCode.OUTPUT_INSUFFICIENT_SIZE
        assert small.value.dimensions == (4,)


def test_regions_of_memory() -> None:
    memory = nnapi.Memory.from_array(np.zeros(48, np.uint8))
    memory.data[16:32] = np.array([1, -2, 3, -4], np.float32).view(np.uint8)
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    execution.set_input_from_memory(0, memory, 16, 16)
    execution.set_output_from_memory(0, memory, 32, 16)
    execution.compute()
    assert memory.data[32:].view(np.float32).tolist() == [1, 0, 3, 0]


@pytest.mark.parametrize(("offset", "length"), [(40, 16), (0, 12), (0, 20), (-16, 16)])
def test_regions_that_do_not_fit(offset: int, length: int) -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU), reference()))
    memory = nnapi.Memory.from_array(np.zeros(48, np.uint8))
    for setter in (execution.set_input_from_memory, execution.set_output_from_memory):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            setter(0, memory, offset, length)


def test_the_cpu_does_not_measure() -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    execution.set_measure_timing(True)
    execution.compute()
    assert [execution.get_duration(code) for code in DurationCode] == [NO_DURATION] * 4
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        execution.get_duration(4)


def test_what_needs_one_named_device() -> None:
    execution = nnapi.Execution(compiled(chain(Operation.RELU)))
    for call in (lambda: execution.set_timeout(1), lambda: execution.set_measure_timing(True)):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            call()
    execution.set_input(0, ONES)
    execution.set_output(0, ONES.copy())
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        execution.start_compute_with_dependencies([], 1_000_000)


def test_a_deadline_that_is_past() -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    execution.set_timeout(1)
    with pytest.raises(nnapi.NnapiError, match="MISSED_DEADLINE_PERSISTENT"):
        execution.compute()


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_without_end(mode: str) -> None:
    execution = nnapi.Execution(compiled(counting_to(np.inf), reference()))
    execution.set_loop_timeout(10_000_000)
    execution.set_input(0, np.zeros(1, np.float32))
    execution.set_output(0, np.zeros(1, np.float32))
    with pytest.raises(nnapi.NnapiError, match="MISSED_DEADLINE_TRANSIENT"):
        MODES[mode](execution)


@pytest.mark.parametrize(("start", "end"), [(0.0, 5.0), (4.5, 5.5), (7.0, 7.0)])
def test_loops(start: float, end: float) -> None:
    assert run(compiled(counting_to(5)), np.array([start], np.float32)) == end


def test_branches() -> None:
    compilation = compiled(choosing(tensor(4)))
    x = np.arange(4, dtype=np.float32)
    assert run(compilation, np.array([True]), x, dims=(4,)).tolist() == [0, 2, 4, 6]
    assert run(compilation, np.array([False]), x, dims=(4,)).tolist() == [0, 1, 4, 9]


def test_fences_need_outputs_of_known_size() -> None:
    with nnapi.registered(SimulatedDevice({"name": "npu"})):
        execution = nnapi.Execution(compiled(chain(Operation.RELU, dims=(0,)), [nnapi.get_device("npu")]))
    execution.set_input(0, ONES)
    execution.set_output(0, ONES.copy())
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        execution.start_compute_with_dependencies([])


def test_the_cpu_gives_no_fence() -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    event = execution.start_compute_with_dependencies([])
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        event.get_sync_fence_fd()


def slow_device() -> SimulatedDevice:
    return SimulatedDevice({"name": "slow", "faults": {"slow_s": 0.05}})


@pytest.mark.skipif(os.name != "posix", reason="select waits for files")
def test_fences_of_a_device(go: threading.Event) -> None:
    with nnapi.registered(slow_device()):
        compilation = compiled(chain(Operation.RELU), [nnapi.get_device("slow")])
        first, second = nnapi.Execution(compilation), nnapi.Execution(compilation)
        middle, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
        first.set_input(0, ONES)
        first.set_output(0, middle)
        second.set_input(0, middle)
        second.set_output(0, out)
        with first.start_compute_with_dependencies([]) as event:
            fd = event.get_sync_fence_fd()
            assert select.select([fd], [], [], 0)[0] == []
            go.set()
            with nnapi.Event.from_sync_fence_fd(fd) as imported:
                last = second.start_compute_with_dependencies([imported])
                last.wait()
            assert select.select([fd], [], [], 0)[0] == [fd]
            os.close(fd)
        assert out.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("fd", [-1, 0])
def test_file_descriptors_that_are_no_fence(fd: int) -> None:
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Event.from_sync_fence_fd(fd)


def test_a_dependency_that_failed() -> None:
    bad, _ = prepared(chain(Operation.RELU), ONES)
    bad.set_timeout(1)
    event = bad.start_compute()
    execution, _ = prepared(chain(Operation.RELU), ONES)
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        execution.start_compute_with_dependencies([event]).wait()


def test_asynchronous_errors_pass_through_the_status_of_drivers() -> None:
    with nnapi.registered(SimulatedDevice({"name": "bad", "faults": {"execute": "BAD_STATE"}})):
        execution = nnapi.Execution(compiled(chain(Operation.RELU), [nnapi.get_device("bad")]))
    execution.set_input(0, ONES)
    execution.set_output(0, ONES.copy())
    event = execution.start_compute()
    for _ in range(2):
        with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
            event.wait()


def test_a_running_execution_is_left_alone() -> None:
    with nnapi.registered(slow_device()):
        execution = nnapi.Execution(compiled(chain(Operation.RELU), [nnapi.get_device("slow")]))
    execution.set_reusable(False)
    execution.set_input(0, ONES)
    execution.set_output(0, ONES.copy())
    with execution.start_compute():
        for call in (execution.compute, lambda: execution.set_input(0, ONES), lambda: execution.get_duration(0)):
            with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
                call()


def test_a_burst_serves_one_compilation() -> None:
    execution, _ = prepared(chain(Operation.RELU), ONES)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Burst(compiled(chain(Operation.RELU))).compute(execution)


def test_a_burst_serves_one_execution_at_a_time() -> None:
    with nnapi.registered(slow_device()):
        compilation = compiled(chain(Operation.RELU), [nnapi.get_device("slow")])
    codes = []
    burst = nnapi.Burst(compilation)
    gate = threading.Barrier(2)

    def compute() -> None:
        execution = bound(compilation, [ONES], [ONES.copy()])
        gate.wait()
        try:
            burst.compute(execution)
            codes.append(ResultCode.NO_ERROR)
        except nnapi.NnapiError as error:
            codes.append(error.code)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: compute(), range(2)))
    assert sorted(codes) == [ResultCode.NO_ERROR, ResultCode.BAD_STATE]


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_threads_share_a_compilation(times: int) -> None:
    with nnapi.registered(SimulatedDevice({"name": "adder", "accept": {"operations": ["ADD"]}, "performance": {
        "default": {"exec_time": 0.5, "power_usage": 0.5}}})):  # fmt: skip
        compilation = compiled(chain(Operation.ADD, Operation.MUL, Operation.ADD))

    def compute(thread: int) -> int:
        wrong = 0
        for at in range(times):
            x = np.full(4, thread * times + at, np.float32)
            wrong += int(not np.array_equal(run(compilation, x), 2 * (2 * x) * (2 * x)))
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compute, range(8))) == [0] * 8


def test_background_executions_complete_in_any_order() -> None:
    with nnapi.registered(slow_device()):
        slow = compiled(chain(Operation.RELU), [nnapi.get_device("slow")])
    executions = [(nnapi.Execution(one), np.zeros(4, np.float32)) for one in (slow, compiled(chain(Operation.RELU)))]
    for execution, out in executions:
        execution.set_input(0, ONES)
        execution.set_output(0, out)
    first, second = (execution.start_compute() for execution, _ in executions)
    second.wait()
    assert executions[1][1].tolist() == [1, 1, 1, 1]
    first.wait()
    assert executions[0][1].tolist() == [1, 1, 1, 1]


@pytest.mark.usefixtures("clock")
def test_nothing_is_left_behind() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with nnapi.registered(slow_device()):
        compilation = compiled(chain(Operation.RELU), [nnapi.get_device("slow")])
    for timeout in (0, 1_000_000):
        execution = nnapi.Execution(compilation)
        execution.set_timeout(timeout)
        execution.set_input(0, ONES)
        execution.set_output(0, ONES.copy())
        event = execution.start_compute_with_dependencies([])
        if timeout:
            with pytest.raises(nnapi.NnapiError, match="MISSED_DEADLINE_TRANSIENT"):
                event.wait()
        event.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_loop_timeout_has_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    assert (nnapi.get_default_loop_timeout(), nnapi.get_maximum_loop_timeout()) == (2 * 10**9, 15 * 10**9)
    execution, _ = prepared(chain(Operation.RELU), ONES)
    execution.set_loop_timeout(15 * 10**9)
    assert caplog.messages == []
    execution.set_loop_timeout(15 * 10**9 + 1)
    assert len(caplog.messages) == 1


NULLS: dict[str, Callable[[], object]] = {
    "model": lambda: nnapi.Compilation(None),  # type: ignore[arg-type]
    "device": lambda: nnapi.Compilation(chain(Operation.RELU), [None]),  # type: ignore[list-item]
    "asked": lambda: nnapi.get_supported_operations_for_devices(None, reference()),  # type: ignore[arg-type]
    "token": lambda: nnapi.Compilation(chain(Operation.RELU)).set_caching("/tmp", None),  # type: ignore[arg-type]
    "directory": lambda: nnapi.Compilation(chain(Operation.RELU)).set_caching(None, bytes(32)),  # type: ignore[arg-type]
    "compilation": lambda: nnapi.Execution(None),  # type: ignore[arg-type]
    "burst": lambda: nnapi.Burst(None),  # type: ignore[arg-type]
    "execution": lambda: nnapi.Burst(compiled(chain(Operation.RELU))).compute(None),  # type: ignore[arg-type]
    "event": lambda: prepared(chain(Operation.RELU), ONES)[0].start_compute_with_dependencies([None]),  # type: ignore[list-item]
    "memory": lambda: nnapi.Execution(compiled(chain(Operation.RELU))).set_input_from_memory(0, None),  # type: ignore[arg-type]
    "copy": lambda: nnapi.Memory.copy(None, nnapi.Memory.from_array(ONES)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", NULLS)
def test_none_where_something_is_needed(what: str) -> None:
    with pytest.raises(nnapi.NnapiError, match="UNEXPECTED_NULL"):
        NULLS[what]()


def growing(inner: tuple[int, ...], outer: tuple[int, ...]) -> nnapi.Model:
    """while x[0] < 3: x = concat(x + 1, x + 1)"""
    one = tensor(1)
    test, body, b = Builder(), Builder(), Builder()
    x = test.operand(tensor(*inner))
    ints = [test.constant([value], tensor(1, type=Operand.TENSOR_INT32)) for value in (0, 1)]
    first = test.operation(Operation.SLICE, [x, *ints], one)
    test_model = test.finish([x], [test.operation(Operation.LESS, [first, test.constant([3], one)], condition(1))])
    x = body.operand(tensor(*inner))
    more = body.operation(Operation.ADD, [x, body.constant([1], one), body.int32(0)], tensor(*inner))
    both = body.operation(Operation.CONCATENATION, [more, more, body.int32(0)], tensor(*inner))
    body_model = body.finish([x], [both])
    x = b.operand(one)
    models = [b.operand(OperandType(Operand.MODEL)) for _ in range(2)]
    for index, model in zip(models, (test_model, body_model)):
        b.model.set_operand_value_from_model(index, model)
    return b.finish([x], [b.operation(Operation.WHILE, [*models, x], tensor(*outer))])


def test_what_a_loop_carries_may_grow() -> None:
    assert run(compiled(growing((0,), (8,))), np.zeros(1, np.float32), dims=(8,)).tolist() == [3] * 8
    assert run(compiled(growing((0,), (0,))), np.full(1, 3, np.float32)).tolist() == [3]


@pytest.mark.parametrize(("inner", "outer"), [((0,), (4,)), ((1,), (0,))])
def test_but_not_beyond_what_is_declared(inner: tuple[int, ...], outer: tuple[int, ...]) -> None:
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        run(compiled(growing(inner, outer)), np.zeros(1, np.float32), dims=outer if outer[0] else (8,))


def test_bytes_say_nothing_of_dimensions() -> None:
    compilation = compiled(chain(Operation.RELU, dims=(0,)), reference())
    memory = nnapi.Memory.from_array(ONES)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Execution(compilation).set_input_from_memory(0, memory, 0, 16)
    execution = nnapi.Execution(compilation)
    execution.set_input_from_memory(0, memory, 0, 16, tensor(4))
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        execution.set_output(0, np.zeros(4))
    out = np.zeros(16, np.uint8)
    execution.set_output(0, out)
    execution.compute()
    assert out.view(np.float32).tolist() == [1, 1, 1, 1]
