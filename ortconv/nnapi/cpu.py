"""The reference executor, in numpy. It runs a model's operations in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi import vlog
from ortconv.nnapi.codes import Operand, Operation, ResultCode
from ortconv.nnapi.errors import NnapiError, OutputTooSmallError, op_failed
from ortconv.nnapi.extension import Attributes
from ortconv.nnapi.model import Model, ModelOperation
from ortconv.nnapi.operand import Lifetime, OperandType, Tensor
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.operations.table import Advice, Dims, OperationCall, OperationRow
from ortconv.nnapi.validation import LARGEST

OperandValue = Tensor | None
"""The value of an operand; None if it is omitted."""
KnownTypes = Mapping[int, OperandType | None]
"""Operands of a model by index: their values, or their types with final dimensions."""
Admit = Callable[[Sequence[Dims]], None]
"""Called with the dimensions of all results of an operation; before they are computed, if they can be inferred."""

NHWC = (0, 2, 3, 1)
NCHW = (0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The deadline of a run. Times are those of time.monotonic, in seconds."""

    deadline: float | None = None
    loop_timeout: float = 2.0
    attributes: Attributes = field(default_factory=dict)
    """Attributes of extensions that the client passes to drivers."""

    def check(self, code: ResultCode) -> None:
        """Raise an error with `code` once the deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise NnapiError(code, "the deadline is past")

    def within(self, seconds: float) -> RunLimits:
        """These limits, with a deadline at most `seconds` from now."""
        deadline = time.monotonic() + seconds
        return replace(self, deadline=deadline if self.deadline is None else min(self.deadline, deadline))


NO_LIMITS = RunLimits()
OperationObserver = Callable[[Model, ModelOperation, float], None]
"""Called after each operation with its duration in seconds."""


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
                self.constants[index] = self._rounded(Tensor(operand.kind, operand.value))
            elif operand.model is not None:
                self.constants[index] = Tensor(operand.kind, np.zeros(0, np.uint8))
                self.programs[index] = CpuProgram(operand.model, half)
        last = {index: at for at, operation in enumerate(model.operations) for index in operation.inputs}
        kept = {*model.inputs, *model.outputs, *self.constants}
        self.freed: list[list[int]] = [[] for _ in model.operations]
        for index, at in last.items():
            if index not in kept:
                self.freed[at].append(index)

    def run(
        self,
        inputs: Sequence[OperandValue],
        room: Sequence[int | None] | None = None,
        limits: RunLimits = NO_LIMITS,
        observer: OperationObserver | None = None,
    ) -> list[Tensor]:
        """The model's outputs.

        `room` is the size in bytes of each output's buffer; None means any size. Raises OUTPUT_INSUFFICIENT_SIZE at the
        first output that is larger.
        """
        limits.check(ResultCode.MISSED_DEADLINE_PERSISTENT)
        return self._run(inputs, room, limits, observer)

    def _run(
        self,
        inputs: Sequence[OperandValue],
        room: Sequence[int | None] | None,
        limits: RunLimits,
        observer: OperationObserver | None,
    ) -> list[Tensor]:
        model = self.model
        for kind, value in zip(model.input_types, inputs):
            if value is not None:
                agreed(kind, value.dims)
        values: dict[int, OperandValue] = {**self.constants, **dict(zip(model.inputs, map(self._rounded, inputs)))}
        places = {} if room is None else dict(zip(model.outputs, room))
        for operation, freed in zip(model.operations, self.freed):
            limits.check(ResultCode.MISSED_DEADLINE_TRANSIENT)
            vlog.message(vlog.CPUEXE, "CpuExecutor", "CpuExecutor::executeOperation({})", operation.code.name)
            start = time.perf_counter()
            admit = partial(self._admit, operation, values, places)
            given = [values[index] for index in operation.inputs]
            room_here = [places.get(index) for index in operation.outputs]
            results = self._results(operation, given, admit, room_here, limits, observer)
            if observer is not None:
                observer(model, operation, time.perf_counter() - start)
            values.update(zip(operation.outputs, map(self._rounded, results)))
            for index in freed:
                del values[index]
        return [_known(values[index]) for index in model.outputs]

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
                raise op_failed(
                    f"a result of {list(kind.dims)} is larger than {LARGEST} bytes", operation=operation.code
                )
        for index, kind in zip(operation.outputs, kinds):
            capacity = places.get(index)
            if capacity is not None and kind.nbytes > capacity:
                raise OutputTooSmallError(self._shapes({**values, **dict(zip(operation.outputs, kinds))}, places))

    def _shapes(self, values: KnownTypes, places: dict[int, int | None]) -> list[tuple[Dims, bool]]:
        """For every output, the dimensions as far as they are known, and whether its buffer is large enough."""
        shapes = []
        for index in self.model.outputs:
            value, capacity = values.get(index), places.get(index)
            dims = self.model.operands[index].kind.dims if value is None else value.dims
            shapes.append((dims, value is None or capacity is None or value.nbytes <= capacity))
        return shapes

    def _results(
        self,
        operation: ModelOperation,
        inputs: list[OperandValue],
        admit: Admit,
        room: Sequence[int | None],
        limits: RunLimits,
        observer: OperationObserver | None,
    ) -> Sequence[Tensor]:
        declared = [self.model.operands[index].kind for index in operation.outputs]
        if not operation.is_control_flow:
            return run_operation(operation, inputs, declared, admit)
        if operation.code is Operation.IF:
            results = self._run_if(operation, inputs, admit, room, limits, observer)
        else:
            results = self._run_while(operation, inputs, limits, observer)
        for kind, result in zip(declared, results):
            agreed(kind, result.dims)
        admit([result.dims for result in results])
        return results

    def _run_if(
        self,
        operation: ModelOperation,
        inputs: list[OperandValue],
        admit: Admit,
        room: Sequence[int | None],
        limits: RunLimits,
        observer: OperationObserver | None,
    ) -> Sequence[Tensor]:
        branch = operation.inputs[1 if truth(inputs[0], operation.code) else 2]
        try:
            return self.programs[branch]._run(inputs[3:], room, limits, observer)
        except OutputTooSmallError as error:
            admit([dims for dims, _ in error.shapes])
            raise

    def _run_while(
        self,
        operation: ModelOperation,
        inputs: list[OperandValue],
        limits: RunLimits,
        observer: OperationObserver | None,
    ) -> Sequence[Tensor]:
        condition, body = (self.programs[index] for index in operation.inputs[:2])
        state = inputs[2:]
        end = time.monotonic() + limits.loop_timeout
        while truth(condition._run(state, None, limits, observer)[0], operation.code):
            check_loop(end)
            results = body._run(state, None, limits, observer)
            state = [*results, *state[len(results) :]]
        return [_known(value) for value in state[: len(operation.outputs)]]

    def _rounded(self, value: OperandValue) -> OperandValue:
        if not self.half or value is None or value.array.dtype != np.float32:
            return value
        with np.errstate(over="ignore"):
            return Tensor(value, value.array.astype(np.float16).astype(np.float32))


def _known(value: OperandValue) -> Tensor:
    if value is None:
        raise op_failed("an operand without a value is asked for as a result")
    return value


def truth(value: OperandValue, code: Operation) -> bool:
    """The value of a condition. Raises OP_FAILED unless it has exactly one element."""
    if value is None or value.size != 1:
        raise op_failed("the condition is not one element", operation=code)
    return bool(value.array.reshape(-1)[0])


def check_loop(end: float) -> None:
    """Raise MISSED_DEADLINE_TRANSIENT if a WHILE runs beyond `end`."""
    if time.monotonic() >= end:
        raise NnapiError(ResultCode.MISSED_DEADLINE_TRANSIENT, "the loop timeout is past", operation=Operation.WHILE)


def run_operation(
    operation: ModelOperation,
    inputs: Sequence[OperandValue],
    declared: Sequence[OperandType],
    admit: Admit | None = None,
) -> list[Tensor]:
    """The results of one operation. `declared` are the types of its outputs in the model."""
    try:
        with np.errstate(all="ignore"):
            return _run_row(row_of(operation.code), operation, inputs, declared, admit)
    except NnapiError as error:
        error.operation = error.operation or operation.code
        raise
    except (ArithmeticError, IndexError, ValueError) as error:  # numpy cannot combine the operands
        raise op_failed(f"operands do not fit: {error}", operation=operation.code) from error


def _size_outputs(
    found: Dims | list[Dims],
    call: OperationCall,
    declared: Sequence[OperandType],
    images: Sequence[bool],
    admit: Admit | None,
) -> None:
    """Give the call's outputs the inferred dimensions. Raises NnapiError if they contradict the declared ones."""
    shapes = found if isinstance(found, list) else [found]
    stored = [_permuted(dims, NCHW) if image else dims for dims, image in zip(shapes, images)]
    for out, dims in zip(declared, stored):
        agreed(out, dims)
    if admit is not None:
        admit(stored)
    call.set_outputs([out.with_dims(dims) for out, dims in zip(declared, shapes)])


def _run_row(
    row: OperationRow,
    operation: ModelOperation,
    inputs: Sequence[OperandValue],
    declared: Sequence[OperandType],
    admit: Admit | None,
) -> list[Tensor]:
    if row.compute is None:
        raise op_failed(f"{row.operation.name} is not an operation of the CPU")
    if not row.zero_sized and any(one is not None and one.type.is_tensor and one.size == 0 for one in inputs):
        raise op_failed("takes no tensor without elements")
    call = row.bind(operation.use, [one if row.native_half else _widen(one) for one in inputs], declared)
    _check_quantization(row, call)
    turned = row.nchw if row.nchw and call.get("nchw") else ()
    for name in turned:
        if isinstance(call.args[name], Tensor):
            call.args[name] = _to_nhwc(call.args[name])
    images = [slot.name in turned for slot in call.output_slots]
    if row.infer is not None:
        _size_outputs(row.infer(call), call, declared, images, admit)
    results = row.compute(call)
    arrays: Sequence[Array] = [results] if isinstance(results, np.ndarray) else results
    finished = [_finished(out, array, image) for out, array, image in zip(declared, arrays, images)]
    if row.infer is None and admit is not None:
        admit([result.dims for result in finished])
    return finished


def _check_quantization(row: OperationRow, call: OperationCall) -> None:
    """Raise OP_FAILED for scales and zero points that the operation cannot compute with."""
    for check in row.quantization:
        for found in check(call):
            if isinstance(found, str) and not isinstance(found, Advice):
                raise op_failed(found)


def _widen(value: OperandValue) -> OperandValue:
    """The value, with a float16 tensor's elements as float32."""
    if value is not None and value.type is Operand.TENSOR_FLOAT16:
        return Tensor(value, value.array.astype(np.float32))
    return value


def _to_nhwc(x: Tensor) -> Tensor:
    if x.rank != 4:
        raise op_failed(f"an NCHW image has rank 4, not {x.rank}")
    return Tensor(x, x.array.transpose(NHWC))


def _permuted(dims: Dims, order: tuple[int, ...]) -> Dims:
    return tuple(dims[axis] for axis in order)


def agreed(declared: OperandType, dims: Dims) -> None:
    """Raise OP_FAILED if dimensions contradict the declared ones."""
    known = declared.dims
    if known and known != dims and (len(known) != len(dims) or any(k not in (0, d) for k, d in zip(known, dims))):
        raise op_failed(f"dimensions {list(dims)} do not agree with the declared {list(known)}")


def _finished(declared: OperandType, array: Array, image: bool) -> Tensor:
    array = array.transpose(NCHW) if image else array
    agreed(declared, array.shape)
    return Tensor(declared, np.asarray(array, declared.type.dtype, order="C"))
