"""Execution plans: a model on one device, or steps on several devices; and their execution."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ortconv.nnapi import answers
from ortconv.nnapi.codes import MISSED_DEADLINE
from ortconv.nnapi.cpu import CpuProgram, RunLimits, check_loop, output_shapes, truth
from ortconv.nnapi.device import Device, Executed, PreparedModel, Timing
from ortconv.nnapi.driver_guard import driver
from ortconv.nnapi.errors import NnapiError, OutputTooSmallError, op_failed
from ortconv.nnapi.model import Model
from ortconv.nnapi.operand import CONSTANT, Lifetime, Tensor
from ortconv.nnapi.partitioning import IfStep, ModelStep, PartitionSteps, SourceOperand, WhileStep, described
from ortconv.nnapi.running import OperandValue, Room
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.tracing.timing import mark

_log = functools.partial(vlog.message, vlog.EXECUTION)


class FullFallbackError(Exception):
    """A step failed in a way that only a run of the whole model on the CPU can repair."""

    def __init__(self, cause: NnapiError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class Request:
    inputs: Sequence[OperandValue]
    room: Room
    limits: RunLimits
    measure: bool = False
    fallback: bool = True
    """True if the CPU may replace a device that fails."""


def layer_of(device: Device) -> str:
    return "LC" if device.is_reference else "LD"


def run_on(device: Device, model: Model, prepared: PreparedModel, request: Request) -> Executed:
    try:
        with mark(layer_of(device), "PE", device.name), driver(device, "execute"):
            if device.is_ours:
                results, timing = prepared.execute(request.inputs, request.room, request.limits, request.measure)
            else:
                results, timing = answers.execute(prepared, model.output_types, request)
    except NnapiError as error:
        _log("Manager", "**Execution failed** (ResultCode = {})", error.code.name)
        raise
    _log("Manager", "{}::execute completed", "CpuPreparedModel" if device.is_reference else "DriverPreparedModel")
    return results, timing


@dataclass(slots=True)
class SimplePlan:
    """A plan with one device for the whole model."""

    model: Model
    device: Device
    prepared: PreparedModel

    @property
    def devices(self) -> list[Device]:
        return [self.device]

    def devices_of(self, is_output: bool, index: int) -> set[Device]:
        return {self.device}

    @property
    def places(self) -> list[Device | None]:
        """The device of each operation of the model."""
        return [self.device] * len(self.model.operations)

    @property
    def has_dynamic_temporaries(self) -> bool:
        return False

    def run(self, request: Request) -> Executed:
        _log("ExecutionBuilder", "SimpleExecutionBuilder::computeInternal: execute on {}", self.device.name)
        try:
            return run_on(self.device, self.model, self.prepared, request)
        except NnapiError as error:
            if isinstance(error, OutputTooSmallError) or not request.fallback or self.device.is_reference:
                raise
            raise FullFallbackError(error) from error


@dataclass
class CompoundPlan:
    """A plan with steps on several devices, or with control flow."""

    model: Model
    steps: PartitionSteps

    @property
    def model_steps(self) -> list[ModelStep]:
        return [step for step in self.steps.steps if isinstance(step, ModelStep)]

    @property
    def devices(self) -> list[Device]:
        """The devices in the order of their first steps."""
        return list(dict.fromkeys(step.device for step in self.model_steps))

    @property
    def places(self) -> list[Device | None]:
        """The device of each operation of the model; None if the operation has steps on several devices."""
        found = {index: step.device for step in self.model_steps if step.source == 0 for index in step.operations}
        return [found.get(index) for index in self.model.client_order]

    def devices_of(self, is_output: bool, index: int) -> set[Device]:
        """The devices of the steps that read or write an argument of the model, steps inside control flow included."""
        key = (0, (self.model.outputs if is_output else self.model.inputs)[index])
        reached, left = {key}, [key]
        while left:
            found = self._used_by.get(left.pop(), set()) - reached
            reached |= found
            left += found
        return {step.device for step in self.model_steps if not reached.isdisjoint((*step.inputs, *step.outputs))}

    @functools.cached_property
    def _used_by(self) -> dict[SourceOperand, set[SourceOperand]]:
        """For each operand, the operands of models inside control flow that may use its memory. See findMemoryStepRoles
        in Android's runtime/ExecutionPlan.cpp.
        """
        users: dict[SourceOperand, set[SourceOperand]] = defaultdict(set)

        def link(outer: Sequence[SourceOperand], source: int, inner: Sequence[int]) -> None:
            for key, index in zip(outer, inner):
                users[key].add((source, index))

        models = self.steps.models
        for step in self.steps.steps:
            if isinstance(step, IfStep):
                for source in step.branches:
                    link(step.inputs, source, models[source].inputs)
                    link(step.outputs, source, models[source].outputs)
            elif isinstance(step, WhileStep):
                condition, body = models[step.condition], models[step.body]
                link(step.inputs, step.condition, condition.inputs)
                link([(step.body, index) for index in body.outputs], step.condition, condition.inputs)
                link([(step.condition, index) for index in condition.inputs], step.body, body.inputs)
        return users

    @property
    def has_dynamic_temporaries(self) -> bool:
        main = set(self.model.outputs)
        temporaries = (key for step in self.model_steps for key in step.outputs if key[0] or key[1] not in main)
        return any(not self.steps.operand(key).kind.is_known for key in temporaries)

    def run(self, request: Request) -> Executed:
        return _PlanWalk(self, request).run()


ExecutionPlan = SimplePlan | CompoundPlan


@dataclass(slots=True)
class _Loop:
    """The state of a running WHILE."""

    state: list[OperandValue]
    end: float
    body_next: bool = False
    """True if the condition has been computed, so that the body comes next if the condition is true."""


@dataclass(slots=True)
class _PlanWalk:
    """One run through a plan's steps."""

    plan: CompoundPlan
    request: Request
    values: dict[SourceOperand, OperandValue] = field(default_factory=dict)
    aliases: dict[SourceOperand, SourceOperand] = field(default_factory=dict)
    loops: dict[int, _Loop] = field(default_factory=dict)
    timing: Timing = field(default_factory=lambda: Timing(0, 0))

    def run(self) -> Executed:
        _log("ExecutionBuilder", "CompoundExecutionBuilder::computeInternal (from plan, iteratively)")
        model, steps = self.plan.model, self.plan.steps.steps
        self.values.update(zip(((0, index) for index in model.inputs), self.request.inputs))
        at = 0
        while at < len(steps):
            at = self._step(at)
        self._check_room()
        results = [self.fetch((0, index)) for index in model.outputs]
        return [one for one in results if one is not None], self.timing

    def _step(self, at: int) -> int:
        """Run the step at an index, and return the index of the next one."""
        step = self.plan.steps.steps[at]
        _log("ExecutionPlan", "next: Step#{}: {}", at, described(step))
        try:
            match step:
                case ModelStep():
                    self._run_model(step)
                    return at + 1
                case IfStep():
                    return self._branch(step)
                case WhileStep():
                    return self._loop(at, step)
                case _:
                    return step.to
        except OutputTooSmallError:
            self._check_room()
            raise
        except NnapiError as error:
            if not self.request.fallback or error.code in MISSED_DEADLINE:
                raise
            raise FullFallbackError(error) from error

    def _outermost(self, key: SourceOperand) -> SourceOperand:
        """The operand of the outermost model to which an operand of a branch is bound; the operand itself if it is not bound."""
        while key in self.aliases:
            key = self.aliases[key]
        return key

    def fetch(self, key: SourceOperand) -> OperandValue:
        """The value of an operand: a result, an argument of an outer model, or a constant."""
        key = self._outermost(key)
        if key in self.values:
            return self.values[key]
        operand = self.plan.steps.operand(key)
        if operand.lifetime is Lifetime.NO_VALUE:
            return None
        if operand.lifetime not in CONSTANT or operand.value is None:
            raise op_failed("is read before it is written", operand=key[1])
        return Tensor(operand.kind, operand.value)

    def store(self, key: SourceOperand, value: OperandValue) -> None:
        self.values[self._outermost(key)] = value

    def _run_model(self, step: ModelStep) -> None:
        for key, result in zip(step.outputs, self._results_of(step)):
            if result.type.is_tensor and result.size == 0 and not self._is_main_output(key):
                raise op_failed(f"a step on {step.device.name} passes on a tensor without elements", operand=key[1])
            self.store(key, result)

    def _results_of(self, step: ModelStep) -> Sequence[Tensor]:
        """The results of a step. If one does not fit, the dimensions of all are kept for the client."""
        inputs, room = list(map(self.fetch, step.inputs)), list(map(self._room, step.outputs))
        try:
            return self._computed(step, replace(self.request, inputs=inputs, room=room))
        except OutputTooSmallError as error:
            for key, (dims, _) in zip(step.outputs, error.shapes):
                kind = self.plan.steps.operand(key).kind
                self.store(key, Tensor(kind, np.broadcast_to(np.zeros((), kind.type.dtype), dims)))  # without memory
            raise

    def _computed(self, step: ModelStep, request: Request) -> Sequence[Tensor]:
        """The results of a step on its device, or on the CPU if the device fails and the request permits that."""
        assert step.prepared is not None
        try:
            results, timing = run_on(step.device, step.model, step.prepared, request)
            self.timing = self.timing + timing
            return results
        except OutputTooSmallError:
            raise
        except NnapiError as error:
            if not request.fallback or step.device.is_reference or error.code in MISSED_DEADLINE:
                raise
            _log("ExecutionBuilder", "cpuFallbackPartial")
            limits = RunLimits(None, request.limits.loop_timeout)
            return CpuProgram(step.model).run(request.inputs, request.room, limits)

    def _is_main_output(self, key: SourceOperand) -> bool:
        key = self._outermost(key)
        return key[0] == 0 and key[1] in self.plan.model.outputs

    def _room(self, key: SourceOperand) -> int | None:
        key = self._outermost(key)
        if not self._is_main_output(key):
            return None
        return self.request.room[self.plan.model.outputs.index(key[1])]

    def _branch(self, step: IfStep) -> int:
        taken = truth(self.fetch(step.condition), step.operation.code)
        source = step.branches[0 if taken else 1]
        inner = self.plan.steps.models[source]
        for index, key in zip((*inner.inputs, *inner.outputs), (*step.inputs, *step.outputs)):
            self.aliases[(source, index)] = key
        return step.then_at if taken else step.else_at

    def _loop(self, at: int, step: WhileStep) -> int:
        condition, body = (self.plan.steps.models[source] for source in (step.condition, step.body))
        loop = self.loops.get(at)
        if loop is None:
            end = time.perf_counter() + self.request.limits.loop_timeout
            loop = self.loops[at] = _Loop([self.fetch(key) for key in step.inputs], end)
        elif loop.body_next:
            loop.body_next = False
            if not truth(self.fetch((step.condition, condition.outputs[0])), step.operation.code):
                for key, value in zip(step.outputs, loop.state):
                    self.store(key, value)
                del self.loops[at]
                return step.exit_at
            check_loop(loop.end)
            self._enter(step.body, body, loop.state)
            return step.body_at
        else:
            results = [self.fetch((step.body, index)) for index in body.outputs]
            loop.state = [*results, *loop.state[len(results) :]]
        loop.body_next = True
        self._enter(step.condition, condition, loop.state)
        return step.condition_at

    def _enter(self, source: int, model: Model, state: Sequence[OperandValue]) -> None:
        self.values.update(zip(((source, index) for index in model.inputs), state))

    def _check_room(self) -> None:
        """Raise OUTPUT_INSUFFICIENT_SIZE if an output known so far is larger than its buffer."""
        model = self.plan.model
        values = {index: self.values.get((0, index)) for index in model.outputs}
        shapes = output_shapes(model, values, dict(zip(model.outputs, self.request.room)))
        if not all(fits for _, fits in shapes):
            raise OutputTooSmallError(shapes)
