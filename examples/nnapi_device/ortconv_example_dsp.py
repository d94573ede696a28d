"""An example of a driver: ADD, MUL and RELU of float32 tensors, and an extension that computes Fibonacci numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ortconv.nnapi.driver import (
    Capabilities,
    Device,
    DeviceType,
    Extension,
    ExtensionOperand,
    FeatureLevel,
    Model,
    ModelOperation,
    NnapiError,
    Operand,
    OperandValue,
    Operation,
    OutputTooSmallError,
    Performance,
    PreparedModel,
    PrepareOptions,
    ResultCode,
    RunLimits,
    Tensor,
    Timing,
    code_of,
)

FIBONACCI = "com.example.fibonacci"
NUMBERS = 0
"""The code of the extension's operation: FIBONACCI(n) -> the first n numbers, n a float32 tensor of one element."""
UINT64 = 0
"""The code of the extension's type: a tensor of unsigned 64-bit integers."""

Array = np.ndarray
ACTIVATIONS: Sequence[Callable[[Array], Array]] = (
    lambda x: x,
    lambda x: np.maximum(x, np.float32(0)),
    lambda x: np.clip(x, np.float32(-1), np.float32(1)),
    lambda x: np.clip(x, np.float32(0), np.float32(6)),
)
"""Fused activations by their codes."""

OPERATIONS: dict[Operation, Callable[..., Array]] = {
    Operation.ADD: lambda a, b, code: ACTIVATIONS[int(code)](a + b),
    Operation.MUL: lambda a, b, code: ACTIVATIONS[int(code)](a * b),
    Operation.RELU: ACTIVATIONS[1],
}


class Dsp(Device):
    """The device. It measures the time of its operations."""

    name, version, type = "example-dsp", "1.0", DeviceType.ACCELERATOR
    level = FeatureLevel.LEVEL_4
    capabilities = Capabilities({Operand.TENSOR_FLOAT32: Performance(exec_time=0.5, power_usage=0.3)})
    extensions = (Extension(FIBONACCI, (ExtensionOperand(UINT64, np.dtype("<u8"), is_tensor=True),)),)

    def supported_operations(self, model: Model) -> list[bool]:
        return [self._supports(model, operation) for operation in model.operations]

    def _supports(self, model: Model, operation: ModelOperation) -> bool:
        kinds = [model.operands[index].kind for index in (*operation.inputs, *operation.outputs)]
        if operation.code == code_of(FIBONACCI, NUMBERS):
            return [kind.type for kind in kinds] == [Operand.TENSOR_FLOAT32, code_of(FIBONACCI, UINT64)]
        return self.takes(operation.code, kinds[0].type)

    def takes(self, code: Operation, kind: Operand) -> bool:
        return code in OPERATIONS and kind is Operand.TENSOR_FLOAT32

    def prepare(self, model: Model, options: PrepareOptions) -> PreparedModel:
        return PreparedDspModel(model)


class PreparedDspModel(PreparedModel):
    """Runs the operations of a model in order."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.constants = {
            index: operand.value if operand.kind.type.is_tensor else operand.value.item()
            for index, operand in enumerate(model.operands)
            if operand.value is not None
        }

    def execute(
        self, inputs: Sequence[OperandValue], room: Sequence[int | None], limits: RunLimits, measure: bool = False
    ) -> tuple[list[Tensor], Timing]:
        start = time.perf_counter_ns()
        values = dict(self.constants)
        for index, tensor in zip(self.model.inputs, inputs, strict=True):
            if tensor is None:
                raise NnapiError(ResultCode.OP_FAILED, "no operation of this device has an input that may be omitted")
            values[index] = tensor.array if tensor.type.is_tensor else tensor.array.item()
        for operation in self.model.operations:
            limits.check(ResultCode.MISSED_DEADLINE_TRANSIENT)
            compute = OPERATIONS.get(operation.code, fibonacci)
            values[operation.outputs[0]] = compute(*(values[index] for index in operation.inputs))
        results = [Tensor(self.model.operands[index].kind, values[index]) for index in self.model.outputs]
        fits = [size is None or result.nbytes <= size for result, size in zip(results, room, strict=True)]
        if not all(fits):
            raise OutputTooSmallError([(result.dims, fit) for result, fit in zip(results, fits, strict=True)])
        duration = time.perf_counter_ns() - start
        return results, Timing(duration, duration) if measure else Timing()


def fibonacci(count: Array) -> Array:
    """The first numbers of the sequence."""
    length = int(count.reshape(-1)[0])
    if length < 1:
        raise NnapiError(ResultCode.OP_FAILED, f"there are no {length} numbers")
    numbers = [1, 1]
    while len(numbers) < length:
        numbers.append(numbers[-1] + numbers[-2])
    return np.array(numbers[:length], np.uint64)
