"""Drivers in Python: what they raise is a failure of theirs, and what they must say of themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nnapi_models import chain, compiled, device, run, tensor

from ortconv import nnapi
from ortconv.errors import UsageError
from ortconv.nnapi import Operation, ResultCode
from ortconv.nnapi.device import NO_WORK
from ortconv.nnapi.errors import OutputTooSmallError
from ortconv.nnapi.properties import override
from ortconv.nnapi.simulated import SimulatedDevice

X = np.array([-1, 2, -3, 4], np.float32)
CALLS = ("supported_operations", "prepare", "execute", "allocates")


class Broken(nnapi.Device):
    """Fails in one call."""

    name, version, type, level = "broken", "0.1", nnapi.DeviceType.ACCELERATOR, nnapi.FeatureLevel.LEVEL_4
    capabilities = nnapi.Capabilities.uniform(nnapi.Performance(0.1, 0.1))

    def __init__(self, call: str = "", answer: Callable[[Any], Any] | None = None) -> None:
        self.call = call
        self.answer = answer

    def reach(self, call: str, result: Any) -> Any:
        if call != self.call:
            return result
        if self.answer is None:
            raise RuntimeError(f"a bug in {call}")
        return self.answer(result)

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        return self.reach("supported_operations", [True] * len(model.operations))  # type: ignore[no-any-return]

    def prepare(self, model: nnapi.Model, options: nnapi.PrepareOptions) -> nnapi.PreparedModel:
        inner = nnapi.get_device("nnapi-reference").prepare(model, nnapi.PrepareOptions())
        return self.reach("prepare", Prepared(self, inner))  # type: ignore[no-any-return]

    def allocates(self, kind: nnapi.OperandType) -> bool:
        return self.reach("allocates", True)  # type: ignore[no-any-return]


class Prepared(nnapi.PreparedModel):
    def __init__(self, device: Broken, inner: nnapi.PreparedModel) -> None:
        self.device = device
        self.inner = inner

    def execute(self, *given: Any) -> tuple[list[nnapi.Tensor], nnapi.Timing]:
        return self.device.reach("execute", self.inner.execute(*given))  # type: ignore[no-any-return]


def test_a_driver_that_works() -> None:
    with nnapi.registered(Broken()):
        compilation = compiled(chain(Operation.RELU))
    assert [one.name for one in compilation.plan.devices] == ["broken"]
    assert run(compilation, X).tolist() == [0, 2, 0, 4]


@pytest.mark.parametrize("call", CALLS[:3])
def test_the_cpu_steps_in_for_one_that_raises(call: str, caplog: pytest.LogCaptureFixture) -> None:
    with nnapi.registered(Broken(call), device("tanh", "TANH")):
        compilation = compiled(chain(Operation.RELU, Operation.TANH))
        assert np.array_equal(run(compilation, X), np.tanh(np.maximum(X, 0)))
    assert f"broken: {call} raised RuntimeError('a bug in {call}')" in caplog.messages


@pytest.mark.parametrize(
    ("call", "code"), [("prepare", "DEAD_OBJECT"), ("execute", "DEAD_OBJECT"), ("supported_operations", "BAD_DATA")]
)
def test_nobody_steps_in_for_a_named_one(call: str, code: str) -> None:
    with nnapi.registered(Broken(call)), pytest.raises(nnapi.NnapiError, match=code):
        run(compiled(chain(Operation.RELU), [nnapi.get_device("broken")]), X)


NONSENSE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda given: None,
    "no results": lambda given: ([], given[1]),
    "arrays": lambda given: ([one.array for one in given[0]], given[1]),
    "another type": lambda given: ([nnapi.Tensor(one, one.array.astype(np.int32)) for one in given[0]], given[1]),
    "durations that are none": lambda given: (given[0], None),
    "a duration of text": lambda given: (given[0], nnapi.Timing("1 ms", 2)),  # type: ignore[arg-type]
    "another scale": lambda given: ([nnapi.Tensor(tensor(4, scale=0.5), one.array) for one in given[0]], given[1]),
    "too much": lambda given: ([nnapi.Tensor(one, np.zeros(5, np.float32)) for one in given[0]], given[1]),
}


def code_of(answer: Callable[[Any], Any]) -> ResultCode:
    """What ends a run on a device that answers so. If no device is named, the CPU steps in."""
    with nnapi.registered(Broken("execute", answer)):
        assert run(compiled(chain(Operation.RELU)), X).tolist() == [0, 2, 0, 4]
        with pytest.raises(nnapi.NnapiError) as failed:
            run(compiled(chain(Operation.RELU), [nnapi.get_device("broken")]), X)
    return failed.value.code


@pytest.mark.parametrize("what", NONSENSE)
def test_answers_that_are_none(what: str) -> None:
    assert code_of(NONSENSE[what]) is ResultCode.DEAD_OBJECT


SHAPES: list[Any] = [
    None,
    [],
    [((5,), True)],
    [((4, 1), False)],
    [((-4,), False)],
    [("a", False)],
    [((1 << 40,), False)],
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes_of_outputs_that_are_none(shapes: Any) -> None:
    def too_small(given: Any) -> Any:
        if shapes is None:
            raise nnapi.NnapiError(ResultCode.OUTPUT_INSUFFICIENT_SIZE, "too small")
        raise OutputTooSmallError(shapes)

    assert code_of(too_small) in (ResultCode.OP_FAILED, ResultCode.DEAD_OBJECT)


@pytest.mark.parametrize("answer", [None, "model", 3])
def test_no_prepared_model(answer: object) -> None:
    with nnapi.registered(Broken("prepare", lambda given: answer)):
        assert run(compiled(chain(Operation.RELU)), X).tolist() == [0, 2, 0, 4]


def test_memory_that_a_driver_fails_to_allocate_is_shared() -> None:
    desc = nnapi.MemoryDesc()
    with nnapi.registered(Broken("allocates")):
        desc.add_input_role(compiled(chain(Operation.RELU)), 0, 1.0)
        desc.finish()
        assert nnapi.Memory.from_desc(desc).device is None


def test_our_own_defects_are_not_hidden() -> None:
    class Defect(SimulatedDevice):
        def supported_operations(self, model: nnapi.Model) -> list[bool]:
            raise RuntimeError("ours")

    with nnapi.registered(Defect({"name": "d"})), pytest.raises(RuntimeError, match="ours"):
        compiled(chain(Operation.RELU))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", 3), ("version", None), ("type", "GPU"), ("level", 30), ("capabilities", {}), ("cache_files", 2),
        ("cache_files", (33, 0)), ("cache_files", (0, 33)), ("cache_files", (-1, 0)), ("alignment", "64"),
        ("extensions", None), ("extensions", ("name",)), ("has_fences", "yes"), ("level", np.zeros(2)),
        ("capabilities", nnapi.Capabilities.uniform(nnapi.Performance(0.0, 1.0))),
        ("capabilities", nnapi.Capabilities.uniform(nnapi.Performance(1.0, float("nan")))),
        ("capabilities", nnapi.Capabilities.uniform(nnapi.Performance(10**400, "1"))),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_a_driver_says_of_itself(attribute: str, value: object) -> None:
    one = type("Stating", (Broken,), {attribute: value})()
    with nnapi.registered(), pytest.raises(nnapi.NnapiError, match=r"BAD_DATA.*cache_files|BAD_DATA"):
        nnapi.register_device(one)


def test_a_driver_that_says_nothing() -> None:
    with nnapi.registered(), pytest.raises(nnapi.NnapiError, match=r"Device\.name"):
        nnapi.register_device(nnapi.Device())


@pytest.mark.parametrize("kind", ["model_files", "data_files"])
def test_cache_files_of_a_profile(kind: str) -> None:
    assert SimulatedDevice({"name": "a", "cache": {kind: 32}}).cache_files
    with pytest.raises(UsageError, match="at most 32"):
        SimulatedDevice({"name": "a", "cache": {kind: 33}})


def test_a_device_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = device("a")
    for _ in range(2):
        with nnapi.registered(one):
            pass
    assert caplog.messages == ["Found interface a (version = 1.0)"]


def test_a_device_without_figures_gets_no_work(caplog: pytest.LogCaptureFixture) -> None:
    with nnapi.registered(SimulatedDevice({"name": "npu"})):
        for _ in range(2):
            compilation = compiled(chain(Operation.RELU))
            assert [one.name for one in compilation.plan.devices] == ["nnapi-reference"]
        assert [one.name for one in compiled(chain(Operation.RELU), nnapi.get_devices()[:1]).plan.devices] == ["npu"]
    assert caplog.messages == [f"npu gets {NO_WORK}"]


def test_executions_say_where_each_step_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with nnapi.registered(device("a", "ADD")), override(vlog="execution"):
        compilation = compiled(chain(Operation.ADD, Operation.RELU))
        simple = compiled(chain(Operation.ADD))
        caplog.clear()
        run(compilation, X)
        run(simple, X)
    assert [(record.name.rpartition(".")[2], record.message) for record in caplog.records] == [
        ("ExecutionBuilder", "ExecutionBuilder::ExecutionBuilder with 1 inputs and 1 outputs"),
        ("ExecutionBuilder", "ExecutionBuilder::compute (synchronous API)"),
        ("ExecutionBuilder", "CompoundExecutionBuilder::computeInternal (from plan, iteratively)"),
        ("ExecutionPlan", "next: Step#0: execute on a"),
        ("Manager", "DriverPreparedModel::execute completed"),
        ("ExecutionPlan", "next: Step#1: execute on nnapi-reference"),
        ("Manager", "CpuPreparedModel::execute completed"),
        ("ExecutionBuilder", "ExecutionBuilder::ExecutionBuilder with 1 inputs and 1 outputs"),
        ("ExecutionBuilder", "ExecutionBuilder::compute (synchronous API)"),
        ("ExecutionBuilder", "SimpleExecutionBuilder::computeInternal: execute on a"),
        ("Manager", "DriverPreparedModel::execute completed"),
    ]
