"""Partitioning: which device takes which operation, in which steps, and what they hand on."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from nnapi_models import Builder, adding, bound, chain, choosing, compiled, condition, counting_to, device, run, tensor

from ortconv import nnapi
from ortconv.nnapi import Operand, OperandType, Operation, Preference
from ortconv.nnapi.partitioning import GotoStep, IfStep, ModelStep, PartitionStep, WhileStep
from ortconv.nnapi.plan import CompoundPlan, SimplePlan
from ortconv.nnapi.properties import override
from ortconv.nnapi.simulated import SimulatedDevice

X = np.arange(4, dtype=np.float32)

pytestmark = pytest.mark.usefixtures("no_devices")


def where(compilation: nnapi.Compilation) -> list[tuple[str, list[str]]]:
    """The devices of the steps, and what runs there."""
    plan = compilation.plan
    if isinstance(plan, SimplePlan):
        return [(plan.device.name, [one.code.name for one in plan.model.operations])]
    return [(step.device.name, [one.code.name for one in step.model.operations]) for step in plan.model_steps]


def test_the_best_device_takes_an_operation() -> None:
    devices = device("fast", time=0.2, power=3), device("frugal", time=3, power=0.2)
    model = chain(Operation.RELU)
    with nnapi.registered(*devices):
        for preference in Preference:
            name = "frugal" if preference is Preference.LOW_POWER else "fast"
            compilation = nnapi.Compilation(model)
            compilation.set_preference(preference)
            compilation.finish()
            assert where(compilation) == [(name, ["RELU"])]


@pytest.mark.parametrize(("times", "name"), [((0.5, 0.5), "a"), ((1.0, 1.0), "nnapi-reference"), ((1.5, 0.9), "b")])
def test_ties(times: tuple[float, float], name: str) -> None:
    with nnapi.registered(device("a", time=times[0]), device("b", time=times[1])):
        assert where(compiled(chain(Operation.RELU))) == [(name, ["RELU"])]


def test_relaxed_models_are_judged_by_relaxed_figures() -> None:
    figures = {
        "TENSOR_FLOAT32": {"exec_time": 2.0, "power_usage": 2.0},
        "relaxed": {"exec_time": 0.5, "power_usage": 0.5},
    }
    with nnapi.registered(SimulatedDevice({"name": "a", "performance": figures})):
        assert where(compiled(chain(Operation.RELU)))[0][0] == "nnapi-reference"
        assert where(compiled(chain(Operation.RELU, relaxed=True)))[0][0] == "a"
        quantized = tensor(2, type=Operand.TENSOR_QUANT8_ASYMM, scale=1.0)
        assert where(compiled(adding(quantized)))[0][0] == "nnapi-reference"


def test_nobody_can_do_it(caplog: pytest.LogCaptureFixture) -> None:
    one = device("a", "RELU")
    nnapi.register_device(one)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA: TANH"):
        compiled(chain(Operation.TANH), [one])
    assert "No driver can do operation TANH" in caplog.messages


def test_steps_and_what_they_hand_on() -> None:
    with nnapi.registered(device("a", "ADD"), device("b", "MUL")):
        compilation = compiled(chain(Operation.ADD, Operation.MUL, Operation.RELU, Operation.ADD))
    assert where(compilation) == [
        ("a", ["ADD"]), ("b", ["MUL"]), ("nnapi-reference", ["RELU"]), ("a", ["ADD"])
    ]  # fmt: skip
    assert run(compilation, X).tolist() == (2 * (2 * X) ** 2).tolist()


def diamond() -> nnapi.Model:
    """(relu(x) + tanh(x)) and relu(x), both outputs; tanh(x) is an output as well."""
    b = Builder()
    kind = tensor(4)
    x = b.operand(kind)
    p, q = b.operation(Operation.RELU, [x], kind), b.operation(Operation.TANH, [x], kind)
    both = b.operation(Operation.ADD, [p, q, b.int32(0)], kind)
    return b.finish([x], [both, p])


def test_an_output_that_another_step_reads() -> None:
    with nnapi.registered(device("a", "ADD"), device("b", "TANH")):
        compilation = compiled(diamond())
    plan = compilation.plan
    assert isinstance(plan, CompoundPlan)
    last = plan.model_steps[-1]
    assert [plan.model.operands[index].lifetime.name for _, index in last.inputs] == ["TEMPORARY", "OUTPUT"]
    out, p = np.zeros(4, np.float32), np.zeros(4, np.float32)
    execution = bound(compilation, [X], [out, p])
    execution.compute()
    assert np.array_equal(p, X)
    assert np.allclose(out, X + np.tanh(X))


def test_the_cpu_goes_first_and_takes_along_what_it_can() -> None:
    with nnapi.registered(device("a", "RELU")):
        compilation = compiled(diamond())
    assert where(compilation)[0] == ("nnapi-reference", ["TANH"])
    assert where(compilation)[1:] == [("a", ["RELU"]), ("nnapi-reference", ["ADD"])]


def kinds(compilation: nnapi.Compilation) -> list[type[PartitionStep]]:
    assert isinstance(compilation.plan, CompoundPlan)
    return [type(step) for step in compilation.plan.steps.steps]


def test_control_flow_is_partitioned_inside() -> None:
    with nnapi.registered(device("a", "ADD"), device("b", "MUL")):
        branches, loop = compiled(choosing(tensor(4))), compiled(counting_to(5))
    assert kinds(branches) == [IfStep, ModelStep, GotoStep, ModelStep]
    assert [name for name, _ in where(branches)] == ["a", "b"]
    assert run(branches, np.array([False]), X, dims=(4,)).tolist() == [0, 1, 4, 9]
    assert run(branches, np.array([True]), X, dims=(4,)).tolist() == [0, 2, 4, 6]
    assert kinds(loop) == [WhileStep, ModelStep, GotoStep, ModelStep, GotoStep]
    assert [name for name, _ in where(loop)] == ["nnapi-reference", "a"]
    assert run(loop, np.array([0.5], np.float32)) == 5.5


def test_control_flow_on_a_device() -> None:
    with nnapi.registered(device("a")):
        compilation = compiled(choosing(tensor(4)))
    assert where(compilation) == [("a", ["IF"])]


def test_control_flow_of_unknown_size_stays_on_the_cpu() -> None:
    with nnapi.registered(device("a")):
        compilation = compiled(choosing(tensor(0)))
    assert where(compilation) == [("nnapi-reference", ["IF"])]
    assert run(compilation, np.array([False]), X, dims=(4,)).tolist() == [0, 1, 4, 9]


def dynamic() -> nnapi.Model:
    b = Builder()
    x = b.operand(tensor(4))
    middle = b.operation(Operation.RELU, [x], tensor(0))
    return b.finish([x], [b.operation(Operation.TANH, [middle], tensor(4))])


def test_temporaries_of_unknown_size_cross_steps() -> None:
    with nnapi.registered(device("a", "RELU")):
        compilation = compiled(dynamic())
    assert [name for name, _ in where(compilation)] == ["a", "nnapi-reference"]
    assert np.allclose(run(compilation, X), np.tanh(X))


def test_but_not_from_an_old_device() -> None:
    old = device("a", "RELU", feature_level=2)
    with nnapi.registered(old):
        assert where(compiled(dynamic())) == [("nnapi-reference", ["RELU", "TANH"])]
        with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
            compiled(dynamic(), nnapi.get_devices())


def test_a_step_without_inputs() -> None:
    b = Builder()
    kind = tensor(4)
    x = b.operand(kind)
    constant = b.operation(Operation.RELU, [b.constant(X, kind)], kind)
    model = b.finish([x], [b.operation(Operation.ADD, [x, constant, b.int32(0)], kind)])
    with nnapi.registered(device("a", "RELU")):
        assert where(compiled(model)) == [("nnapi-reference", ["RELU", "ADD"])]
        with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
            compiled(model, nnapi.get_devices())


def test_messages_of_partitioning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with nnapi.registered(device("a", "ADD")), override(vlog="compilation"):
        compiled(chain(Operation.ADD, Operation.RELU))
    assert [(record.name.rpartition(".")[2], record.message) for record in caplog.records] == [
        ("Manager", "Found interface a (version = 1.0)"),
        ("ExecutionPlan", "ModelBuilder::partitionTheWork: sourceModelIndex = 0, deviceCount = 2, operationCount = 2"),
        ("ExecutionPlan", "ModelBuilder::findBestDeviceForEachOperation(ADD:0) = 0 (a)"),
        ("ExecutionPlan", "Device a can't do operation RELU:1"),
        ("ExecutionPlan", "ModelBuilder::findBestDeviceForEachOperation(RELU:1) = 1 (nnapi-reference)"),
        ("ExecutionPlan", "enqueueOnAppropriateDevice 0 onto 0 (a)"),
        ("ExecutionPlan", "findNextDeviceToProcess: 0 (a)"),
        ("ExecutionPlan", "enqueueOnAppropriateDevice 1 onto 1 (nnapi-reference)"),
        ("ExecutionPlan", "findNextDeviceToProcess: 1 (nnapi-reference)"),
        ("ExecutionPlan", "ExecutionStep::finishStepModel, compilation on a"),
        ("ExecutionPlan", "ExecutionStep::finishStepModel, compilation on nnapi-reference"),
        ("ExecutionPlan", "Step#0: execute on a"),
        ("ExecutionPlan", "Step#1: execute on nnapi-reference"),
        ("Manager", "CpuPreparedModel::create"),
        ("ExecutionPlan", "ExecutionPlan::CompoundBody::finish: compilation finished successfully"),
    ]


def test_conditions_on_devices_may_be_wrong_sized() -> None:
    b = Builder()
    c, x = b.operand(condition(0)), b.operand(tensor(4))
    inner = chain(Operation.RELU)
    models = [b.operand(OperandType(Operand.MODEL)) for _ in range(2)]
    for index in models:
        b.model.set_operand_value_from_model(index, inner)
    model = b.finish([c, x], [b.operation(Operation.IF, [c, *models, x], tensor(4))])
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        run(compiled(model), np.array([True, False]), X, dims=(4,))


def emptied() -> nnapi.Model:
    """relu of a slice of no elements, which is known when it runs"""
    b = Builder()
    x = b.operand(tensor(4))
    begin, size = (b.constant([value], tensor(1, type=Operand.TENSOR_INT32)) for value in (4, -1))
    none = b.operation(Operation.SLICE, [x, begin, size], tensor(0))
    return b.finish([x], [b.operation(Operation.RELU, [none], tensor(0))])


def test_a_tensor_without_elements_crosses_no_step() -> None:
    with nnapi.registered(device("a", "RELU")):
        compilation, strict = compiled(emptied()), compiled(emptied(), nnapi.get_devices())
    assert [name for name, _ in where(compilation)] == ["nnapi-reference", "a"]
    execution = bound(compilation, [X], [np.zeros(1, np.float32)])
    execution.compute()
    assert execution.get_output_operand_dimensions(0) == (0,)
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        run(strict, X)


def test_an_output_of_a_step_without_room() -> None:
    with nnapi.registered(device("a", "RELU")):
        compilation = compiled(chain(Operation.RELU, Operation.TANH, dims=(0,)))
    execution = bound(compilation, [X], [np.zeros(3, np.float32)])
    with pytest.raises(nnapi.NnapiError, match="OUTPUT_INSUFFICIENT_SIZE"):
        execution.compute()
    with pytest.raises(nnapi.NnapiError) as small:
        execution.get_output_operand_dimensions(0)
    assert small.value.dimensions == (4,)


def test_an_output_without_room_when_the_cpu_steps_in() -> None:
    """The dimensions are those of the model's outputs, not of the outputs of a step."""
    b = Builder()
    x = b.operand(tensor(2, 3))
    first = b.operation(Operation.RELU, [x], tensor(0, 0))
    last = b.operation(Operation.TANH, [first], tensor(0, 0))
    model = b.finish([x], [last, first])
    failing = device("a", "TANH", faults={"execute": "OP_FAILED"})
    with nnapi.registered(failing):
        execution = nnapi.Execution(compiled(model))
    execution.set_input(0, np.ones((2, 3), np.float32))
    for index, size in ((0, 5), (1, 6)):
        execution.set_output(index, np.zeros(size, np.float32))
    with pytest.raises(nnapi.NnapiError, match="OUTPUT_INSUFFICIENT_SIZE"):
        execution.compute()
    assert execution.get_output_operand_dimensions(1) == (2, 3)
    with pytest.raises(nnapi.NnapiError) as small:
        execution.get_output_operand_dimensions(0)
    assert small.value.dimensions == (2, 3)
