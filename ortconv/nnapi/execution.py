"""Executions: one run of a compilation, with its inputs and outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.arguments import Nanoseconds, Values, elements
from ortconv.nnapi.codes import DurationCode, ResultCode
from ortconv.nnapi.compilation import Compilation
from ortconv.nnapi.cpu import RunLimits
from ortconv.nnapi.device import Executed, Timing
from ortconv.nnapi.errors import NnapiError, OutputTooSmallError, bad_data, bad_state, op_failed
from ortconv.nnapi.event import Event, Fence
from ortconv.nnapi.extension import add_attribute
from ortconv.nnapi.handle import Handle, api
from ortconv.nnapi.memory import DeviceMemory, ImageMemory, Memory
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.plan import FullFallbackError, Request
from ortconv.nnapi.running import OperandValue
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.tracing.timing import mark
from ortconv.nnapi.validation import compatible, refined

DEFAULT_LOOP_TIMEOUT = 2_000_000_000  # ns
MAXIMUM_LOOP_TIMEOUT = 15_000_000_000
NO_DURATION = 2**64 - 1
SOURCE = "ExecutionBuilder"
_log = partial(vlog.message, vlog.EXECUTION, SOURCE)


def get_default_loop_timeout() -> int:
    """The default time limit of a WHILE, in nanoseconds."""
    return DEFAULT_LOOP_TIMEOUT


def get_maximum_loop_timeout() -> int:
    """The maximum time limit of a WHILE, in nanoseconds."""
    return MAXIMUM_LOOP_TIMEOUT


class State(Enum):
    PREPARATION = auto()
    COMPUTING = auto()
    COMPLETED = auto()
    CLOSED = auto()


@dataclass(slots=True)
class Argument:
    """An input or output that has been set. Without data and memory, it is omitted."""

    kind: OperandType
    data: Array | None = None
    memory: DeviceMemory | ImageMemory | None = None


class Execution(Handle):
    """One run of a compilation: set every input and output, then compute, once unless the execution is reusable."""

    @api("PE")
    def __init__(self, compilation: Compilation) -> None:
        self.plan = compilation.plan
        self.compilation = compilation
        self.model = compilation.model
        self.state = State.PREPARATION
        self.reusable = False
        self.attributes: dict[tuple[str, int], bytes] = {}
        """Attributes of extensions, by the extension's name and the attribute's code."""
        self._inputs: list[Argument | None] = [None] * len(self.model.inputs)
        self._outputs: list[Argument | None] = [None] * len(self.model.outputs)
        self._padding = False
        self._measure = False
        self._timeout: int | None = None
        self._loop_timeout = DEFAULT_LOOP_TIMEOUT
        self._failure: ResultCode | None = None
        self._shapes: list[tuple[tuple[int, ...], bool]] = []
        self._timing = Timing()
        self._lock = threading.Lock()
        _log("ExecutionBuilder::ExecutionBuilder with {} inputs and {} outputs", len(self._inputs), len(self._outputs))

    @api("PE")
    def set_reusable(self, reusable: bool) -> None:
        self._must_be_open()
        self.reusable = reusable

    @api("PE")
    def enable_input_and_output_padding(self, enable: bool) -> None:
        """Set whether arrays and regions may be longer than the operand. Raises BAD_STATE once an argument is set."""
        self._must_be_open()
        if any(argument is not None for argument in (*self._inputs, *self._outputs)):
            raise bad_state("padding must be enabled before any argument is set")
        self._padding = enable

    @api("PE")
    def set_measure_timing(self, measure: bool) -> None:
        self._must_be_open()
        self.compilation.require_single("measuring")
        self._measure = measure

    @api("PE")
    def set_timeout(self, nanoseconds: Nanoseconds) -> None:
        """Set the time limit of one computation; 0 means none."""
        self._must_be_open()
        self.compilation.require_single("a timeout")
        self._timeout = nanoseconds or None

    @api("PE")
    def set_loop_timeout(self, nanoseconds: Nanoseconds) -> None:
        """Set the time limit of each WHILE; at most 15 s."""
        self._must_be_open()
        if nanoseconds > MAXIMUM_LOOP_TIMEOUT:
            vlog.warning(SOURCE, "the loop timeout of {} ns is cut to {} ns", nanoseconds, MAXIMUM_LOOP_TIMEOUT)
        self._loop_timeout = min(nanoseconds, MAXIMUM_LOOP_TIMEOUT)

    @api("PE")
    def add_extension_attribute(self, name: str, code: int, data: bytes | None) -> None:
        """Pass an attribute, defined by the extension `name`, to the driver. Raises BAD_DATA unless one device was named."""
        self._must_be_open()
        self.compilation.require_single("an attribute")
        add_attribute(self.attributes, name, code, data)

    @api("PIO")
    def set_input(self, index: int, array: Values | None, kind: OperandType | None = None) -> None:
        """Set an input to an array of the operand's elements, or to numbers; None omits it. Dimensions that the model
        does not specify come from `kind`, or else from the array.
        """
        declared = self._declared(index, is_output=False)
        if array is None:
            self._inputs[index] = Argument(declared if kind is None else refined(declared, kind))
            return
        array = elements("array", array, declared.type.dtype)
        known = _shaped(declared, array) if kind is None else refined(declared, kind)
        if known.type.is_tensor and not known.is_known:
            raise bad_data(f"{known} is not fully specified", operand=self.model.inputs[index])
        self._check_fit(array, known, index)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)[: known.nbytes]
        self._inputs[index] = Argument(known, flat.view(known.type.dtype).reshape(known.dims))

    @api("PIO")
    def set_output(self, index: int, array: Array | None, kind: OperandType | None = None) -> None:
        """Set a C-contiguous array that receives an output. Its size must fit; its dimensions are ignored."""
        declared = self._declared(index, is_output=True)
        known = declared if kind is None else refined(declared, kind)
        if array is not None and (not array.flags.c_contiguous or not array.flags.writeable):
            raise bad_data("an output array is C-contiguous and writeable")
        if array is not None:
            self._check_fit(array, known, index)
        self._outputs[index] = Argument(known, array)

    @api("PIO")
    def set_input_from_memory(
        self, index: int, memory: Memory, offset: int = 0, length: int = 0, kind: OperandType | None = None
    ) -> None:
        """Set an input to a region of a memory. A device memory is used as a whole: offset and length are 0."""
        if not self._set_device_memory(index, memory, offset, length, kind, is_output=False):
            self.set_input_bytes(index, memory.region(offset, length), kind)

    @api("PIO")
    def set_input_bytes(self, index: int, data: Array | None, kind: OperandType | None = None) -> None:
        """Set an input to bytes without dimensions. Dimensions that the model does not specify come from `kind` alone."""
        self.set_input(index, data, self._declared(index, is_output=False) if kind is None else kind)

    @api("PIO")
    def set_output_from_memory(
        self, index: int, memory: Memory, offset: int = 0, length: int = 0, kind: OperandType | None = None
    ) -> None:
        if not self._set_device_memory(index, memory, offset, length, kind, is_output=True):
            self.set_output(index, memory.region(offset, length), kind)

    @api("PE")
    def compute(self) -> None:
        """Run, and return when the outputs have been written."""
        _log("ExecutionBuilder::compute (synchronous API)")
        self._run(self._begin())

    @api("PE")
    def start_compute(self) -> Event:
        """Run in the background."""
        _log("ExecutionBuilder::compute (asynchronous API)")
        request = self._begin()
        return self._in_background(lambda: self._run(request))

    @api("PE")
    def start_compute_with_dependencies(self, events: Sequence[Event], duration: Nanoseconds = 0) -> Event:
        """Run after the events are signaled.

        `duration` is the time limit after that, in nanoseconds; 0 means none. If a device returns a fence before it has
        finished, the outputs must have known dimensions. If the CPU computes everything, the outputs are ready on
        return, and their dimensions may be unknown.
        """
        _log("ExecutionBuilder::computeFenced")
        if duration:
            self.compilation.require_single("a duration")
        has_fences = any(device.has_fences for device in self.plan.devices)
        if has_fences:
            self._check_output_dims()
        request = self._begin()

        def work() -> None:
            self._wait_for(events)
            if duration:
                request.limits = request.limits.within(duration * 1e-9)
            self._run(request)

        if self.plan.has_dynamic_temporaries:
            return self._in_background(work)
        if has_fences:
            return self._in_background(work, Fence())
        work()
        return Event()

    def _in_background(self, work: Callable[[], None], fence: Fence | None = None) -> Event:
        try:
            return Event(work, fence=fence)
        except NnapiError as error:
            self._complete(error.code)
            raise

    def _check_output_dims(self) -> None:
        """Raise BAD_DATA if the dimensions of an output are not known before the run."""
        for argument, index in zip(self._outputs, self.model.outputs):
            if argument is not None and argument.kind.type.is_tensor and not argument.kind.is_known:
                raise bad_data(f"the output {argument.kind} is not fully specified", operand=index)

    def _wait_for(self, events: Sequence[Event]) -> None:
        try:
            for event in events:
                event.wait()
        except NnapiError as error:
            self._complete(ResultCode.OP_FAILED)
            raise op_failed(f"a dependency failed: {error}") from error

    @api("PE")
    def get_output_operand_dimensions(self, index: int) -> tuple[int, ...]:
        """The dimensions of an output. If it did not fit, OUTPUT_INSUFFICIENT_SIZE is raised, with the required `dimensions`."""
        return self._reported(index)

    @api("PE")
    def get_output_operand_rank(self, index: int) -> int:
        return len(self._reported(index))

    @api("PE")
    def get_duration(self, code: int) -> int:
        """A duration of a successful, measured run, in nanoseconds; 2**64 - 1 if the device did not measure it."""
        if code not in tuple(DurationCode):
            raise bad_data(f"{code} is not a duration")
        if self.state is not State.COMPLETED or self._failure is not None or not self._measure:
            raise bad_state("there is a duration only of a successful run that was measured")
        hardware = code in (DurationCode.ON_HARDWARE, DurationCode.FENCED_ON_HARDWARE)
        duration = self._timing.on_hardware if hardware else self._timing.in_driver
        return NO_DURATION if duration is None else duration

    @property
    def is_in_use(self) -> bool:
        return self.state is State.COMPUTING

    def _free(self) -> None:
        """Free the object. A running execution continues to its end."""
        with self._lock:
            if self.state is State.COMPUTING:
                vlog.error("NeuralNetworks", "ANeuralNetworksExecution_free called on a running execution")
                return
            self.state = State.CLOSED
        self._inputs, self._outputs = [], []

    def _arguments(self, is_output: bool) -> list[Argument | None]:
        return self._outputs if is_output else self._inputs

    def _declared(self, index: int, *, is_output: bool) -> OperandType:
        """The declared type of an argument that is about to be set."""
        self._must_be_open()
        declared = self.model.argument_type(index, is_output)
        if self._arguments(is_output)[index] is not None:
            raise bad_state(f"argument {index} is set already")
        return declared

    def _check_fit(self, array: Array, kind: OperandType, index: int) -> None:
        """Raise BAD_DATA if an array has another type, or another size than a known size of the operand."""
        dtype, size = kind.type.dtype, kind.nbytes
        if array.dtype != dtype and array.dtype != np.uint8:
            raise bad_data(f"argument {index}: {kind.type.name} holds {dtype}, not {array.dtype}")
        fits = array.nbytes == size or (self._padding and array.nbytes > size)
        if not fits and kind.is_known:
            raise bad_data(f"argument {index}: {kind} has {size} bytes, not {array.nbytes}")

    def _set_device_memory(
        self, index: int, memory: Memory, offset: int, length: int, kind: OperandType | None, *, is_output: bool
    ) -> bool:
        """Set an argument if the memory is a device memory or an image. Return True if it is one."""
        if not isinstance(memory, DeviceMemory | ImageMemory):
            return False
        declared = self._declared(index, is_output=is_output)
        if offset or length:
            raise bad_data("a memory of a device and an image are used as a whole: offset and length 0")
        known = declared if kind is None else refined(declared, kind)
        if isinstance(memory, DeviceMemory):
            memory.check_role(self.compilation, is_output, index, known)
        if kind is not None and not is_output and known.type.is_tensor and not known.is_known:
            raise bad_data(f"{known} is not fully specified", operand=self.model.inputs[index])
        self._arguments(is_output)[index] = Argument(known, None, memory)
        return True

    def _begin(self) -> Request:
        """Change the state from preparation to computation. Raises BAD_STATE if the execution is running or has been used."""
        with self._lock:
            if self.state is State.COMPUTING:
                raise bad_state("the execution is running")
            if self.state is State.CLOSED:
                raise bad_state("the execution is closed")
            if self.state is State.COMPLETED and not self.reusable:
                raise bad_state("the execution was computed already, and is not reusable")
            self.state = State.COMPUTING
        try:
            return self._request()
        except NnapiError as error:
            self._complete(error.code)
            raise

    def _request(self) -> Request:
        for side, arguments in (("input", self._inputs), ("output", self._outputs)):
            if None in arguments:
                raise bad_data(f"{side} {arguments.index(None)} is not set")
        deadline = None if self._timeout is None else time.perf_counter() + self._timeout * 1e-9
        limits = RunLimits(deadline, self._loop_timeout * 1e-9, self.attributes)
        inputs = [_value(argument) for argument in self._inputs if argument is not None]
        outputs = [argument.data for argument in self._outputs if argument is not None]
        room = [None if data is None else data.nbytes for data in outputs]
        return Request(inputs, room, limits, self._measure, self.compilation.allows_fallback)

    def _run(self, request: Request) -> None:
        try:
            results, self._timing = self._computed(request)
            with mark("LR", "PR", "copy results"):
                self._write(results)
        except NnapiError as error:
            self._complete(error.code, error.shapes if isinstance(error, OutputTooSmallError) else ())
            raise
        except MemoryError:
            self._complete(ResultCode.OUT_OF_MEMORY)
            raise NnapiError(ResultCode.OUT_OF_MEMORY, "out of memory") from None
        except BaseException:
            self._complete(ResultCode.OP_FAILED)
            raise
        self._complete(None)

    def _computed(self, request: Request) -> Executed:
        try:
            return self.plan.run(request)
        except FullFallbackError as fallback:
            vlog.warning(SOURCE, "{}", fallback.cause)
            _log("cpuFallbackFull")
            _log("Re-compile the model on CPU")
            request.limits = RunLimits(None, request.limits.loop_timeout)
            return self.compilation.plan_for_cpu().run(request)

    def _write(self, results: Sequence[Tensor]) -> None:
        self._shapes = [(result.dims, True) for result in results]
        for argument, result, index in zip(self._outputs, results, self.model.outputs):
            assert argument is not None
            if not compatible(argument.kind, result) and result.size:
                message = f"the output has dimensions {list(result.dims)}, declared is {argument.kind}"
                raise op_failed(message, operand=index)
            if argument.memory is not None:
                argument.memory.write(result.array)
            elif argument.data is None:
                raise op_failed("the output is omitted, but there is a result", operand=index)
            else:
                target = argument.data.reshape(-1).view(np.uint8)
                target[: result.nbytes] = np.ascontiguousarray(result.array).reshape(-1).view(np.uint8)

    def _complete(self, failure: ResultCode | None, shapes: Sequence[tuple[tuple[int, ...], bool]] = ()) -> None:
        """Record the end of the run. The error itself is not kept, because its traceback would keep objects alive."""
        self._failure = failure
        if failure is not None:
            self._shapes = list(shapes)
            for argument in self._outputs:
                if argument is not None and argument.memory is not None:
                    argument.memory.array = None
        self.state = State.COMPLETED

    def _reported(self, index: int) -> tuple[int, ...]:
        if self.state is not State.COMPLETED:
            raise bad_state("the execution is not completed")
        if self._failure not in (None, ResultCode.OUTPUT_INSUFFICIENT_SIZE):
            raise bad_state("the execution failed")
        if not 0 <= index < len(self._outputs):
            raise bad_data(f"there are {len(self._outputs)} outputs, not one {index}")
        dims, fits = self._shapes[index]
        if fits:
            return dims
        message, operand = f"the output needs room for {list(dims)}", self.model.outputs[index]
        raise NnapiError(ResultCode.OUTPUT_INSUFFICIENT_SIZE, message, operand=operand, dimensions=dims)

    def _must_be_open(self) -> None:
        if self.state is not State.PREPARATION:
            raise bad_state("the execution is closed" if self.state is State.CLOSED else "the execution was started")


def _shaped(declared: OperandType, array: Array) -> OperandType:
    """The declared type. Unknown dimensions come from an array of its elements, if its shape agrees."""
    if declared.is_known or array.dtype != declared.type.dtype:
        return declared
    found = declared.with_dims(array.shape)
    return found if compatible(declared, found) else declared


def _value(argument: Argument) -> OperandValue:
    if argument.memory is not None:
        elements = argument.memory.elements
        if not compatible(argument.kind, argument.kind.with_dims(elements.shape)):
            raise op_failed(f"the memory holds dimensions {list(elements.shape)}, the input is {argument.kind}")
        return Tensor(argument.kind, elements)
    return None if argument.data is None else Tensor(argument.kind, argument.data)
