"""Extensions: a driver that computes Fibonacci numbers, of types and with an operation of its own."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from nnapi_models import bound

from ortconv import nnapi
from ortconv.nnapi import Operand, OperandType, ResultCode, registry
from ortconv.nnapi.extension import code_of, declare

NAME = "com.example.fibonacci"
INT64, QUANT64, FIBONACCI = 0, 1, 0


class Fibonacci(nnapi.Device):
    """FIBONACCI(n) -> the first n numbers, as float32 or as unsigned 64-bit integers with a scale and zero point."""

    name, version = "fibonacci", "1.0"
    type, level = nnapi.DeviceType.OTHER, nnapi.FeatureLevel.LEVEL_4
    capabilities = nnapi.Capabilities.uniform(nnapi.Performance(1.0, 1.0))
    extensions = (
        nnapi.Extension(
            NAME,
            (
                nnapi.ExtensionOperand(INT64, np.dtype("<i8"), is_tensor=False),
                nnapi.ExtensionOperand(QUANT64, np.dtype("<u8"), is_tensor=True),
            ),
        ),
    )
    seen: dict[tuple[str, int], bytes] = {}  # noqa: RUF012

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        kinds = (Operand.TENSOR_FLOAT32, code_of(NAME, INT64)), (Operand.TENSOR_FLOAT32, code_of(NAME, QUANT64))
        return [
            one.code == code_of(NAME, FIBONACCI)
            and (len(one.inputs), len(one.outputs)) == (1, 1)
            and model.operands[one.inputs[0]].kind.type in kinds[0]
            and model.operands[one.outputs[0]].kind.type in kinds[1]
            for one in model.operations
        ]

    def prepare(self, model: nnapi.Model, options: nnapi.PrepareOptions) -> nnapi.PreparedModel:
        self.seen.update(options.attributes)
        return Prepared(model)


class Prepared(nnapi.PreparedModel):
    def __init__(self, model: nnapi.Model) -> None:
        self.operand = model.operands[model.outputs[0]]

    def execute(self, inputs: Sequence[Any], room: Any, limits: Any, measure: bool = False) -> Any:
        count = int(inputs[0].array.reshape(-1)[0])
        if count < 1:
            raise nnapi.NnapiError(ResultCode.OP_FAILED, f"there are no {count} numbers")
        numbers = [1, 1]
        while len(numbers) < count:
            numbers.append(numbers[-1] + numbers[-2])
        scale, zero_point = struct.unpack("<dq", self.operand.extension_data or struct.pack("<dq", 1.0, 0))
        values = np.array([n / scale + zero_point for n in numbers[:count]]).astype(self.operand.kind.type.dtype)
        Fibonacci.seen.update(limits.attributes)
        return [nnapi.Tensor(self.operand.kind, values)], nnapi.Timing()


@pytest.fixture
def driver() -> Iterator[Fibonacci]:
    device = Fibonacci()
    device.seen.clear()
    with nnapi.registered(device):
        yield device


FLOATS = OperandType(Operand.TENSOR_FLOAT32, [10])


def fibonacci(
    source: OperandType, result: OperandType, data: bytes | None = None, operation: int = FIBONACCI
) -> nnapi.Model:
    model = nnapi.Model()
    x, y = model.add_operand(source), model.add_operand(result)
    if data is not None:
        model.set_operand_extension_data(y, data)
    model.add_operation(model.get_extension_operation_type(NAME, operation), [x], [y])  # type: ignore[arg-type]
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    return model


def test_types_of_its_own(driver: Fibonacci) -> None:
    number = OperandType(code_of(NAME, INT64))  # type: ignore[arg-type]
    quantized = OperandType(code_of(NAME, QUANT64), [10])  # type: ignore[arg-type]
    model = fibonacci(number, quantized, struct.pack("<dq", 0.5, 10))
    assert nnapi.get_supported_operations_for_devices(model, [driver]) == [True]
    assert nnapi.get_supported_operations_for_devices(model, [nnapi.get_device("nnapi-reference")]) == [False]
    compilation = nnapi.Compilation(model, [driver])
    compilation.add_extension_attribute(NAME, 3, b"fast")
    compilation.finish()
    result = np.zeros(10, np.uint64)
    execution = bound(compilation, [np.array(10, np.int64)], [result])
    execution.add_extension_attribute(NAME, 4, None)
    execution.compute()
    assert result.tolist() == [12, 12, 14, 16, 20, 26, 36, 52, 78, 120]
    assert driver.seen == {(NAME, 3): b"fast", (NAME, 4): b""}


def test_between_operations_of_the_cpu(driver: Fibonacci) -> None:
    """Two steps on the CPU around the driver's."""
    one = OperandType(Operand.TENSOR_FLOAT32, [1])
    model = nnapi.Model()
    x, n, y, z = (model.add_operand(kind) for kind in (one, one, FLOATS, FLOATS))
    model.add_operation(nnapi.Operation.FLOOR, [x], [n])
    model.add_operation(model.get_extension_operation_type(NAME, FIBONACCI), [n], [y])  # type: ignore[arg-type]
    model.add_operation(nnapi.Operation.FLOOR, [y], [z])
    model.identify_inputs_and_outputs([x], [z])
    model.finish()
    compilation = nnapi.Compilation(model)
    compilation.finish()
    result = np.zeros(10, np.float32)
    bound(compilation, [np.array([10.5], np.float32)], [result]).compute()
    assert result.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    assert {device.name for device in compilation.plan.devices} == {"fibonacci", "nnapi-reference"}


@pytest.mark.parametrize(
    ("source", "result", "operation"),
    [
        (OperandType(Operand.TENSOR_INT32, [1]), FLOATS, FIBONACCI),
        (OperandType(Operand.TENSOR_FLOAT32, [1]), OperandType(Operand.TENSOR_INT32, [1]), FIBONACCI),
        (OperandType(Operand.TENSOR_FLOAT32, [1]), FLOATS, FIBONACCI + 1),
    ],
)
def test_what_the_driver_refuses(driver: Fibonacci, source: OperandType, result: OperandType, operation: int) -> None:
    compilation = nnapi.Compilation(fibonacci(source, result, operation=operation), nnapi.get_devices())
    with pytest.raises(nnapi.NnapiError) as caught:
        compilation.finish()
    assert caught.value.code is ResultCode.BAD_DATA


def test_the_cpu_does_not_step_in(driver: Fibonacci) -> None:
    compilation = nnapi.Compilation(fibonacci(OperandType(Operand.TENSOR_FLOAT32, [1]), FLOATS))
    compilation.finish()
    with pytest.raises(nnapi.NnapiError) as caught:
        bound(compilation, [np.array([-1], np.float32)], [np.zeros(10, np.float32)]).compute()
    assert caught.value.code is not ResultCode.NO_ERROR


def test_refusals(driver: Fibonacci) -> None:
    model = nnapi.Model()
    known = model.get_extension_operand_type(NAME, INT64)
    refused = [
        lambda: OperandType(model.get_extension_operand_type(NAME, 7)),  # type: ignore[arg-type]
        lambda: OperandType(model.get_extension_operand_type("com.example.unknown", 0)),  # type: ignore[arg-type]
        lambda: OperandType(0x7FFF0000),  # type: ignore[arg-type]
        lambda: model.add_operand(OperandType(known, [2])),  # type: ignore[arg-type]
        lambda: model.add_operand(OperandType(known, (), 0.5)),  # type: ignore[arg-type]
        lambda: model.set_operand_extension_data(model.add_operand(FLOATS), b"data"),
        lambda: model.set_operand_extension_data(model.add_operand(OperandType(known)), b""),  # type: ignore[arg-type]
        lambda: model.get_extension_operand_type(NAME, 1 << 16),
        lambda: declare(nnapi.Extension(NAME)),
    ]
    for at, call in enumerate(refused):
        with pytest.raises(nnapi.NnapiError) as caught:
            call()
        assert caught.value.code is ResultCode.BAD_DATA, at


def test_attributes_need_one_device(driver: Fibonacci) -> None:
    model = fibonacci(OperandType(Operand.TENSOR_FLOAT32, [1]), FLOATS)
    with pytest.raises(nnapi.NnapiError, match="exactly one named device"):
        nnapi.Compilation(model).add_extension_attribute(NAME, 0, b"x")
    compilation = nnapi.Compilation(model, [driver])
    compilation.add_extension_attribute(NAME, 0, b"x")
    with pytest.raises(nnapi.NnapiError, match="there already"):
        compilation.add_extension_attribute(NAME, 0, b"x")


def test_support(driver: Fibonacci) -> None:
    assert driver.get_extension_support(NAME)
    assert not nnapi.get_device("nnapi-reference").get_extension_support(NAME)


def test_threads_name_extensions_at_the_same_time(monkeypatch):
    class Slow(list):
        def append(self, item):
            time.sleep(0.01)
            super().append(item)

    monkeypatch.setattr(registry, "_names", Slow(registry._names))
    monkeypatch.setattr(registry, "_prefixes", dict(registry._prefixes))
    names = [f"com.example.thread{i}" for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda name: code_of(name, 5), names))
    assert [registry.split(code) for code in codes] == [(name, 5) for name in names]
