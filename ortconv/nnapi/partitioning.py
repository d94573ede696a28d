"""Assigns operations to devices, and groups them into steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from weakref import WeakSet

from ortconv.nnapi.codes import FeatureLevel, Operation, Preference
from ortconv.nnapi.device import NEVER, NO_WORK, Device, PreparedModel
from ortconv.nnapi.errors import bad_data, op_failed
from ortconv.nnapi.model import Model, ModelOperand, ModelOperation
from ortconv.nnapi.operand import Lifetime
from ortconv.nnapi.slicing import ModelPart, needs_runtime, supported_by
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.validation import dependencies

PLAN = "ExecutionPlan"
"""The log tag. The messages begin with ModelBuilder, but Android's runtime/ExecutionPlan.cpp writes them."""

_log = partial(vlog.message, vlog.COMPILATION, PLAN)

SourceOperand = tuple[int, int]
"""An operand of a source model: (index of the model in the plan, index of the operand in the model)."""


def operation_cost(device: Device, model: Model, operation: ModelOperation, preference: Preference) -> float:
    """The cost of an operation, from the device's figures for the type of its first input; smaller is better."""
    capabilities = device.capabilities
    if not operation.inputs:  # only possible for OEM_OPERATION
        return NEVER.of(preference)
    if not operation.code.is_control_flow:
        first = model.operands[operation.inputs[0]].kind.type
        return capabilities.of(first, model.relaxed).of(preference)
    is_if = operation.code is Operation.IF
    own = (capabilities.if_ if is_if else capabilities.while_).of(preference)
    sums = [
        sum(operation_cost(device, one, each, preference) for each in one.operations)
        for one in model.inner_models(operation)
    ]
    return own + (0.5 * sum(sums) if is_if else sum(sums))


_warned: WeakSet[Device] = WeakSet()


def best_devices(model: Model, devices: Sequence[Device], preference: Preference) -> list[int]:
    """For each operation in execution order, the index of the best device; `len(devices)` for control flow whose models
    are partitioned themselves. Raises BAD_DATA if no device supports an operation.
    """
    answers = [supported_by(device, model) for device in devices]
    best = [_best_device(at, model, devices, preference, answers) for at in range(len(model.operations))]
    for index, (device, answer) in enumerate(zip(devices, answers)):
        is_slow = not (device.is_reference or device.capabilities.ever_beat_cpu)
        if any(answer) and index not in best and is_slow and device not in _warned:
            _warned.add(device)
            vlog.warning(PLAN, "{} gets {}", device.name, NO_WORK)
    return best


def _best_device(
    at: int, model: Model, devices: Sequence[Device], preference: Preference, answers: list[list[bool]]
) -> int:
    operation = model.operations[at]
    name = f"{operation.code.name}:{model.client_order[at]}"
    is_runtime = needs_runtime(model, operation)
    costs: dict[int, tuple[float, bool]] = {}
    for index, device in enumerate(devices):
        if answers[index][at] and (device.is_reference or not is_runtime):
            # Of devices with the same cost, the reference is best, then the first.
            costs[index] = operation_cost(device, model, operation, preference), not device.is_reference
        else:
            _log("Device {} can't do operation {}", device.name, name)
    if not costs:
        vlog.error(PLAN, "No driver can do operation {}", operation.code.name)
        raise bad_data("no device can do the operation", operation=operation.code)
    best = min(costs, key=costs.__getitem__)
    if operation.code.is_control_flow and devices[best].is_reference and not is_runtime:
        _log("ModelBuilder::findBestDeviceForEachOperation({}) = -1 (NNAPI)", name)
        return len(devices)
    _log("ModelBuilder::findBestDeviceForEachOperation({}) = {} ({})", name, best, devices[best].name)
    return best


@dataclass(slots=True)
class ModelStep:
    """Operations of one source model that run on one device."""

    source: int
    device: Device
    operations: list[int]
    """Positions in the order of `add_operation`."""
    inputs: list[SourceOperand]
    outputs: list[SourceOperand]
    model: Model
    prepared: PreparedModel | None = None

    @classmethod
    def of(cls, source: int, device: Device, whole: Model, operations: Sequence[int]) -> ModelStep:
        """The step for operations of a model. OP_FAILED without inputs or outputs, or for an operand above the device's level."""
        _log("ExecutionStep::finishStepModel, compilation on {}", device.name)
        part = ModelPart(whole, [whole.operations[at] for at in operations])
        inputs, outputs = part.boundary()
        if not inputs or not outputs:
            raise op_failed(f"a step on {device.name} has {len(inputs)} inputs and {len(outputs)} outputs")
        for index in outputs:
            operand = whole.operands[index]
            dynamic = operand.lifetime is Lifetime.TEMPORARY and not operand.kind.is_known
            if dynamic and device.feature_level < FeatureLevel.LEVEL_3:
                raise op_failed(f"{device.name} cannot pass on an operand of unknown size", operand=index)
        reads, makes = ([(source, index) for index in some] for some in (inputs, outputs))
        positions = [whole.client_order[at] for at in operations]
        return cls(source, device, positions, reads, makes, part.model(inputs, outputs))


@dataclass(slots=True)
class IfStep:
    operation: ModelOperation
    condition: SourceOperand
    inputs: list[SourceOperand]
    outputs: list[SourceOperand]
    branches: tuple[int, int]
    """Indices of the source models of both branches."""
    then_at: int = -1
    else_at: int = -1


@dataclass(slots=True)
class WhileStep:
    operation: ModelOperation
    inputs: list[SourceOperand]
    outputs: list[SourceOperand]
    condition: int
    body: int
    condition_at: int = -1
    body_at: int = -1
    exit_at: int = -1


@dataclass(slots=True)
class GotoStep:
    to: int = -1


PartitionStep = ModelStep | IfStep | WhileStep | GotoStep


@dataclass(slots=True)
class PartitionSteps:
    """A model partitioned for devices: steps with jumps, and the source models of the steps. The main model has index 0."""

    devices: Sequence[Device]
    preference: Preference
    steps: list[PartitionStep] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)

    def operand(self, key: SourceOperand) -> ModelOperand:
        return self.models[key[0]].operands[key[1]]

    def describe(self) -> None:
        for at, step in enumerate(self.steps):
            _log("Step#{}: {}", at, described(step))


def described(step: PartitionStep) -> str:
    """The step in the format of Android's log."""
    match step:
        case ModelStep():
            return f"execute on {step.device.name}"
        case IfStep():
            return f"if {step.condition} then={step.then_at} else={step.else_at}"
        case WhileStep():
            return f"while cond={step.condition_at} body={step.body_at} exit={step.exit_at}"
        case GotoStep():
            return f"goto {step.to}"


def partition(model: Model, plan: PartitionSteps, best: Sequence[int] | None = None) -> int:
    """Append the steps of a model, and of those inside its control flow, to a plan. Return the model's index in the plan."""
    source, devices = len(plan.models), plan.devices
    plan.models.append(model)
    best = best_devices(model, devices, plan.preference) if best is None else best
    for device, operations in _groups(model, devices, best):
        if device < len(devices):
            plan.steps.append(ModelStep.of(source, devices[device], model, operations))
            continue
        for at in operations:
            _append_control_flow(source, model.operations[at], plan)
    return source


def _groups(model: Model, devices: Sequence[Device], best: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Runs of operations on one device each. Control flow comes first, then the device with the highest index that has
    ready operations, because the CPU feeds the others. A run includes operations that become ready for its device
    meanwhile.
    """
    missing, readers = dependencies(model)
    names = [*(device.name for device in devices), "NNAPI"]
    queues: list[deque[int]] = [deque() for _ in names]

    def enqueue(at: int) -> None:
        values = model.client_order[at], best[at], names[best[at]]
        _log("enqueueOnAppropriateDevice {} onto {} ({})", *values)
        queues[best[at]].append(at)

    for at, count in enumerate(missing):
        if count == 0:
            enqueue(at)
    groups = []
    while any(queues):
        device = max(index for index, queue in enumerate(queues) if queue)
        _log("findNextDeviceToProcess: {} ({})", device, names[device])
        run = []
        while queues[device]:
            at = queues[device].popleft()
            run.append(at)
            for reader in chain.from_iterable(readers.get(index, ()) for index in model.operations[at].outputs):
                missing[reader] -= 1
                if missing[reader] == 0:
                    enqueue(reader)
        groups.append((device, run))
    return groups


def _append_control_flow(source: int, operation: ModelOperation, plan: PartitionSteps) -> None:
    inner = plan.models[source].inner_models(operation)
    outputs = [(source, index) for index in operation.outputs]
    keys = [(source, index) for index in operation.inputs]
    if operation.code is Operation.IF:
        branch = IfStep(operation, keys[0], keys[3:], outputs, (-1, -1))
        plan.steps.append(branch)
        then_model, else_model = inner
        branch.then_at = len(plan.steps)
        then_source = partition(then_model, plan)
        end = GotoStep()
        plan.steps.append(end)
        branch.else_at = len(plan.steps)
        branch.branches = (then_source, partition(else_model, plan))
        end.to = len(plan.steps)
        return
    loop_at = len(plan.steps)
    loop = WhileStep(operation, keys[2:], outputs, -1, -1)
    plan.steps.append(loop)
    condition, body = inner
    loop.condition_at = len(plan.steps)
    loop.condition = partition(condition, plan)
    plan.steps.append(GotoStep(loop_at))
    loop.body_at = len(plan.steps)
    loop.body = partition(body, plan)
    plan.steps.append(GotoStep(loop_at))
    loop.exit_at = len(plan.steps)
