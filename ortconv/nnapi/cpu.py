"""The reference executor, in numpy. It runs a model's operations in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ortconv.executor.replay.work import ChangedError
from ortconv.nnapi.codes import Operation, ResultCode
from ortconv.nnapi.errors import NnapiError, OutputTooSmallError, op_failed
from ortconv.nnapi.extension import Attributes
from ortconv.nnapi.model import Model, ModelOperation
from ortconv.nnapi.operand import Lifetime, OperandType, Tensor
from ortconv.nnapi.operations.table import Dims
from ortconv.nnapi.recording import PlainRun, ProgramRecording, Watch
from ortconv.nnapi.running import Admit, OperandValue, Room, agreed, rounded_to_half
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.validation import LARGEST

KnownTypes = Mapping[int, OperandType | None]
"""Operands of a model by index: their values, or their types with final dimensions."""

MOST_RECORDINGS = 2
"""For how many combinations of input types a program is recorded."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The deadline of a run. Times are those of time.perf_counter, in seconds."""

    deadline: float | None = None
    loop_timeout: float = 2.0
    attributes: Attributes = field(default_factory=dict)
    """Attributes of extensions that the client passes to drivers."""

    def check(self, code: ResultCode) -> None:
        """Raise an error with `code` once the deadline has passed."""
        if self.deadline is not None and time.perf_counter() >= self.deadline:
            raise NnapiError(code, "the deadline is past")

    def within(self, seconds: float) -> RunLimits:
        """These limits, with a deadline at most `seconds` from now."""
        deadline = time.perf_counter() + seconds
        return replace(self, deadline=deadline if self.deadline is None else min(self.deadline, deadline))


NO_LIMITS = RunLimits()
OperationObserver = Callable[[Model, ModelOperation, float], None]
"""Called after each operation with its duration in seconds."""


class RunContext(NamedTuple):
    """The limits of a run and its observer, which the models inside it share."""

    limits: RunLimits
    observer: OperationObserver | None


class CpuProgram:
    """A finished model, ready to run. With `half`, all float32 numbers are rounded to float16."""

    def __init__(self, model: Model, half: bool = False) -> None:
        self.model = model
        self.half = half
        self.constants: dict[int, OperandValue] = {}
        self.programs: dict[int, CpuProgram] = {}
        for index, operand in enumerate(model.operands):
            if operand.lifetime is Lifetime.NO_VALUE:
                self.constants[index] = None
            elif operand.value is not None:
                value = Tensor(operand.kind, operand.value)
                self.constants[index] = rounded_to_half(value) if half else value
            elif operand.model is not None:
                self.constants[index] = Tensor(operand.kind, np.zeros(0, np.uint8))
                self.programs[index] = CpuProgram(operand.model, half)
        # IF and WHILE choose their work in each run. The models inside are recorded.
        self._records = not any(operation.code.is_control_flow for operation in model.operations)
        self._recordings: dict[tuple[object, ...], ProgramRecording | None] = {}
        self._freed = _last_read(model, {*model.inputs, *model.outputs, *self.constants})

    def run(
        self,
        inputs: Sequence[OperandValue],
        room: Room | None = None,
        limits: RunLimits = NO_LIMITS,
        observer: OperationObserver | None = None,
    ) -> list[Tensor]:
        """The model's outputs.

        Raises OUTPUT_INSUFFICIENT_SIZE at the first output without room. The second run with inputs of the same types is recorded;
        later ones repeat it.
        """
        limits.check(ResultCode.MISSED_DEADLINE_PERSISTENT)
        return self._run(inputs, room, RunContext(limits, observer))

    def _run(self, inputs: Sequence[OperandValue], room: Room | None, context: RunContext) -> list[Tensor]:
        key = tuple([None if one is None else one.key for one in inputs])
        recording = self._recordings.get(key)
        if recording is not None and recording.lock.acquire(blocking=False):
            try:
                if recording.is_complete and recording.fits(room):
                    return recording.run(inputs, self._watch(context))
                # A recording is dropped if its run fails.
                if not recording.is_complete and self._recordings.pop(key, None) is recording:
                    results = self._run_each(inputs, room, context, recording)
                    self._recordings[key] = recording
                    return results
            except ChangedError:  # a plain run reports errors
                self._recordings[key] = None
            finally:
                recording.lock.release()
        results = self._run_each(inputs, room, context, PlainRun(self.half))
        if self._records and key not in self._recordings and len(self._recordings) < MOST_RECORDINGS:
            self._recordings[key] = ProgramRecording(self.half)
        return results

    def _watch(self, context: RunContext) -> Watch | None:
        """A function that runs around each operation of a recorded run; None if nobody observes or limits it."""
        observer, limits = context.observer, context.limits
        if observer is None and limits.deadline is None and not vlog.shows(vlog.CPUEXE):
            return None

        def watch(operation: ModelOperation, work: Callable[[], None]) -> None:
            start = _begin(operation, limits)
            work()
            if observer is not None:
                observer(self.model, operation, time.perf_counter() - start)

        return watch

    def _run_each(
        self, inputs: Sequence[OperandValue], room: Room | None, context: RunContext, run: ProgramRecording | PlainRun
    ) -> list[Tensor]:
        """Run one operation after the other, with all checks."""
        model = self.model
        for kind, value in zip(model.input_types, inputs):
            if value is not None:
                agreed(kind, value.dims)
        values = {**self.constants, **dict(zip(model.inputs, run.begin(model.inputs, inputs)))}
        places = {} if room is None else dict(zip(model.outputs, room))
        for operation, freed in zip(model.operations, self._freed):
            start = _begin(operation, context.limits)
            admit = partial(self._admit, operation, values, places)
            operands = [values[index] for index in operation.inputs]
            results: Sequence[OperandValue]
            if operation.code.is_control_flow:
                room_here = [places.get(index) for index in operation.outputs]
                results = self._branch(operation, operands, admit, room_here, context)
            else:
                declared = model.kinds(operation.outputs)
                results = run.operation(operation, operands, declared, admit)
            if context.observer is not None:
                context.observer(model, operation, time.perf_counter() - start)
            values.update(zip(operation.outputs, results))
            for index in freed:
                del values[index]
            run.forget(freed)
        return run.end([_known(values[index]) for index in model.outputs])

    def _admit(
        self, operation: ModelOperation, values: KnownTypes, places: dict[int, int | None], shapes: Sequence[Dims]
    ) -> None:
        """Check the sizes of an operation's results before they are computed, as Android does
        (setInfoAndAllocateIfNeeded in common/CpuExecutor.cpp). Raises OP_FAILED if a result is larger than an operand
        can be, OUTPUT_INSUFFICIENT_SIZE if it is an output of the model and larger than the buffer.
        """
        kinds = [self.model.operands[index].kind.with_dims(dims) for index, dims in zip(operation.outputs, shapes)]
        for kind in kinds:
            if kind.nbytes > LARGEST:
                message = f"a result of {list(kind.dims)} is larger than {LARGEST} bytes"
                raise op_failed(message, operation=operation.code)
        for index, kind in zip(operation.outputs, kinds):
            capacity = places.get(index)
            if capacity is not None and kind.nbytes > capacity:
                made = {**values, **dict(zip(operation.outputs, kinds))}
                raise OutputTooSmallError(output_shapes(self.model, made, places))

    def _branch(
        self, operation: ModelOperation, inputs: list[OperandValue], admit: Admit, room: Room, context: RunContext
    ) -> Sequence[Tensor]:
        """The results of IF or WHILE."""
        try:
            if operation.code is Operation.IF:
                branch = operation.inputs[1 if truth(inputs[0], operation.code) else 2]
                results = self.programs[branch]._run(inputs[3:], room, context)
            else:
                results = self._run_while(operation, inputs, context)
        except OutputTooSmallError as error:
            admit([dims for dims, _ in error.shapes])
            raise
        for index, result in zip(operation.outputs, results):
            agreed(self.model.operands[index].kind, result.dims)
        admit([result.dims for result in results])
        return results

    def _run_while(self, operation: ModelOperation, inputs: list[OperandValue], context: RunContext) -> list[Tensor]:
        condition, body = (self.programs[index] for index in operation.inputs[:2])
        state = inputs[2:]
        end = time.perf_counter() + context.limits.loop_timeout
        while truth(condition._run(state, None, context)[0], operation.code):
            check_loop(end)
            results = body._run(state, None, context)
            state = [*results, *state[len(results) :]]
        return [_known(value) for value in state[: len(operation.outputs)]]


def output_shapes(model: Model, values: KnownTypes, room: Mapping[int, int | None]) -> list[tuple[Dims, bool]]:
    """For each output, its dimensions as far as they are known, and whether its buffer, of `room` bytes, is large enough."""
    shapes = []
    for index in model.outputs:
        value, capacity = values.get(index), room.get(index)
        dims = model.operands[index].kind.dims if value is None else value.dims
        shapes.append((dims, value is None or capacity is None or value.nbytes <= capacity))
    return shapes


def _last_read(model: Model, kept: Collection[int]) -> list[list[int]]:
    """The operands that each operation is the last to read, without those in `kept`."""
    last = {index: at for at, operation in enumerate(model.operations) for index in operation.inputs}
    found: list[list[int]] = [[] for _ in model.operations]
    for index, at in last.items():
        if index not in kept:
            found[at].append(index)
    return found


def _begin(operation: ModelOperation, limits: RunLimits) -> float:
    """Before an operation: its deadline and its message. When it starts, by the clock of time.perf_counter."""
    limits.check(ResultCode.MISSED_DEADLINE_TRANSIENT)
    vlog.message(vlog.CPUEXE, "CpuExecutor", "CpuExecutor::executeOperation({})", operation.code.name)
    return time.perf_counter()


def _known(value: OperandValue) -> Tensor:
    if value is None:
        raise op_failed("an operand without a value is a result")
    return value


def truth(value: OperandValue, code: Operation) -> bool:
    """The value of a condition. Raises OP_FAILED unless it has exactly one element."""
    if value is None or value.size != 1:
        raise op_failed("the condition is not one element", operation=code)
    return bool(value.array.reshape(-1)[0])


def check_loop(end: float) -> None:
    """Raise MISSED_DEADLINE_TRANSIENT if a WHILE runs beyond `end`."""
    if time.perf_counter() >= end:
        raise NnapiError(ResultCode.MISSED_DEADLINE_TRANSIENT, "the loop timeout is past", operation=Operation.WHILE)
