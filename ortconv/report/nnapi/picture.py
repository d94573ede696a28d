"""Pictures of NNAPI models: operations and operands, the steps of a partitioned model, the models within control flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ortconv.nnapi.codes import Operation
from ortconv.nnapi.device import Device
from ortconv.nnapi.model import Model, ModelOperation
from ortconv.nnapi.operand import OperandType
from ortconv.nnapi.partitioning import IfStep, ModelStep, PartitionSteps, WhileStep
from ortconv.nnapi.plan import CompoundPlan, SimplePlan
from ortconv.report.blocks import Frame, Line, in_order
from ortconv.report.labels import short
from ortconv.report.layout import between
from ortconv.report.nnapi.dump import Compiled, title
from ortconv.report.outline import ACCELERATOR, CPU, INPUT, MIXED, OUTPUT, PLAIN, Box

Names = Mapping[int, str]

PARTS = {Operation.IF: ("then", "else"), Operation.WHILE: ("condition", "body")}
"""The models that control flow refers to, in the order of the inputs."""


class Unit(NamedTuple):
    """An item of a model's frame, with its input and output operands."""

    item: Box | Frame
    reads: Sequence[int]
    makes: Sequence[int]


def partitions_frame(name: str, partitions: Compiled) -> Frame:
    """The NNAPI models of a file's partitions, one below the other."""
    frames = tuple(
        plan_frame(program.compilation.plan, title(index, region, program), program.lowered.names)
        for index, (region, program) in enumerate(partitions)
    )
    return Frame(name, PLAIN, frames, in_order(frames))


def plan_frame(plan: SimplePlan | CompoundPlan, label: str, names: Names) -> Frame:
    """A model with the steps of its plan; `names` are those of operands."""
    if isinstance(plan, SimplePlan):
        return model_frame(plan.model, label, names, plan.device)
    return _steps_frame(plan.steps, 0, label, names)


def model_frame(model: Model, label: str, names: Names, device: Device | None = None) -> Frame:
    """A model that runs on one device: its inputs, operations and outputs."""
    units = [Unit(_operation(model, one, names, device), one.inputs, one.outputs) for one in model.operations]
    return _frame(model, label, _kind(device), names, units)


def _steps_frame(plan: PartitionSteps, source: int, label: str, names: Names) -> Frame:
    """The steps of a source model: the models that devices run, and control flow."""
    units = []
    for at, step in enumerate(plan.steps):
        if isinstance(step, ModelStep) and step.source == source:
            units.append(_step(at, step, names))
        elif isinstance(step, IfStep | WhileStep) and step.outputs[0][0] == source:
            operation = step.operation
            sources = step.branches if isinstance(step, IfStep) else (step.condition, step.body)
            parts = [_steps_frame(plan, s, part, {}) for s, part in zip(sources, PARTS[operation.code])]
            frame = _control_flow(f"step {at}: {operation.code.name}", MIXED, parts)
            units.append(Unit(frame, operation.inputs, operation.outputs))
    return _frame(plan.models[source], label, MIXED, names, units)


def _step(at: int, step: ModelStep, names: Names) -> Unit:
    reads, makes = [index for _, index in step.inputs], [index for _, index in step.outputs]
    outside = zip((*step.model.inputs, *step.model.outputs), (*reads, *makes))
    inner = {index: names.get(other, f"%{other}") for index, other in outside}
    return Unit(model_frame(step.model, f"step {at} on {step.device.name}", inner, step.device), reads, makes)


def _operation(model: Model, operation: ModelOperation, names: Names, device: Device | None) -> Box | Frame:
    kind = _kind(device)
    if operation.code.is_control_flow:
        inner = zip(model.inner_models(operation), PARTS[operation.code])
        return _control_flow(operation.code.name, kind, [model_frame(one, part, {}, device) for one, part in inner])
    made = model.operands[operation.outputs[0]].kind if operation.outputs else None
    about = [f"in: {_operand(model, index, names)}" for index in operation.inputs]
    about += [f"out: {_operand(model, index, names)}" for index in operation.outputs]
    lines = (operation.code.name, "" if made is None else _dims(made))
    return Box(kind, lines, "\n".join([operation.code.name, *about]))


def _control_flow(label: str, kind: str, parts: Sequence[Frame]) -> Frame:
    """Models of control flow: those of IF side by side, those of WHILE in order."""
    return Frame(label, kind, tuple(parts), () if parts[0].label == "then" else in_order(parts))


def _frame(model: Model, label: str, kind: str, names: Names, units: Sequence[Unit]) -> Frame:
    """A model: its inputs, the units in the order of their execution, its outputs, and the operands between them."""
    ins = [Unit(_end(model, index, names, INPUT), (), (index,)) for index in model.inputs]
    outs = [Unit(_end(model, index, names, OUTPUT), (index,), ()) for index in model.outputs]
    every = [*ins, *units, *outs]
    makers = {index: at for at, unit in enumerate(every) for index in unit.makes}
    nets = zip(*between(makers, ((at, index) for at, unit in enumerate(every) for index in unit.reads)))
    lines = [Line(net.source, net.targets, _operand(model, index, names)) for net, index in nets]
    return Frame(label, kind, tuple(unit.item for unit in every), tuple(lines))


def _end(model: Model, index: int, names: Names, kind: str) -> Box:
    lines = (short(names.get(index, f"%{index}")), _dims(model.operands[index].kind))
    return Box(kind, lines, _operand(model, index, names))


def _operand(model: Model, index: int, names: Names) -> str:
    name = f"  # {names[index]}" if index in names else ""
    return f"%{index} {model.operands[index].kind}{name}"


def _dims(kind: OperandType) -> str:
    return "×".join(str(size or "?") for size in kind.dims) or "scalar"


def _kind(device: Device | None) -> str:
    return PLAIN if device is None else CPU if device.is_reference else ACCELERATOR
