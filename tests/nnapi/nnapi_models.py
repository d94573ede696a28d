"""Small NNAPI models for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.nnapi.simulated import SimulatedDevice

FLOAT = Operand.TENSOR_FLOAT32


def tensor(*dims: int, type: Operand = FLOAT, scale: float = 0.0, zero_point: int = 0) -> OperandType:
    return OperandType(type, dims, scale, zero_point)


class Builder:
    """Operands and operations with less ceremony; `finish` names inputs and outputs."""

    def __init__(self) -> None:
        self.model = nnapi.Model()

    def operand(self, kind: OperandType) -> int:
        return self.model.add_operand(kind)

    def constant(self, array: Array | Sequence[float], kind: OperandType) -> int:
        index = self.model.add_operand(kind)
        self.model.set_operand_value(index, np.asarray(array, kind.type.dtype))
        return index

    def int32(self, value: int) -> int:
        return self.constant(np.array(value, np.int32), OperandType(Operand.INT32))

    def operation(self, code: Operation, inputs: Sequence[int], kind: OperandType) -> int:
        output = self.operand(kind)
        self.model.add_operation(code, inputs, [output])
        return output

    def finish(self, inputs: Sequence[int], outputs: Sequence[int], relaxed: bool = False) -> nnapi.Model:
        self.model.identify_inputs_and_outputs(inputs, outputs)
        self.model.relax_computation_float32_to_float16(relaxed)
        self.model.finish()
        return self.model


def chain(*codes: Operation, dims: tuple[int, ...] = (4,), relaxed: bool = False) -> nnapi.Model:
    """Operations of one tensor behind one another; ADD and MUL take their input twice."""
    b = Builder()
    kind = tensor(*dims)
    x = at = b.operand(kind)
    for code in codes:
        both = [at, at, b.int32(0)] if code in (Operation.ADD, Operation.SUB, Operation.MUL) else [at]
        at = b.operation(code, both, kind)
    return b.finish([x], [at], relaxed)


def adding(kind: OperandType, out: OperandType | None = None, scalar: bool = False) -> nnapi.Model:
    """x + y; the activation is a third input if there is to be a scalar."""
    b = Builder()
    x, y = b.operand(kind), b.operand(kind)
    none = b.operand(OperandType(Operand.INT32)) if scalar else b.int32(0)
    return b.finish([x, y, none] if scalar else [x, y], [b.operation(Operation.ADD, [x, y, none], out or kind)])


def condition(*dims: int) -> OperandType:
    return tensor(*dims, type=Operand.TENSOR_BOOL8)


def choosing(kind: OperandType) -> nnapi.Model:
    """if c: x + x else: x * x"""
    b = Builder()
    c, x = b.operand(condition(1)), b.operand(kind)
    branches = []
    for code in (Operation.ADD, Operation.MUL):
        inner = Builder()
        y = inner.operand(kind)
        branches.append(inner.finish([y], [inner.operation(code, [y, y, inner.int32(0)], kind)]))
    models = [b.operand(OperandType(Operand.MODEL)) for _ in branches]
    for index, branch in zip(models, branches):
        b.model.set_operand_value_from_model(index, branch)
    return b.finish([c, x], [b.operation(Operation.IF, [c, *models, x], kind)])


def counting_to(limit: float, step: float = 1.0) -> nnapi.Model:
    """while x < limit: x += step, from the input on"""
    kind = tensor(1)
    test, body, b = Builder(), Builder(), Builder()
    x = test.operand(kind)
    condition_model = test.finish(
        [x], [test.operation(Operation.LESS, [x, test.constant([limit], kind)], condition(1))]
    )
    x = body.operand(kind)
    body_model = body.finish(
        [x], [body.operation(Operation.ADD, [x, body.constant([step], kind), body.int32(0)], kind)]
    )
    x = b.operand(kind)
    models = [b.operand(OperandType(Operand.MODEL)) for _ in range(2)]
    b.model.set_operand_value_from_model(models[0], condition_model)
    b.model.set_operand_value_from_model(models[1], body_model)
    return b.finish([x], [b.operation(Operation.WHILE, [*models, x], kind)])


def device(name: str, *operations: str, time: float = 0.5, power: float = 0.5, **settings: Any) -> SimulatedDevice:
    """One that takes some operations, or all."""
    accept = {"operations": list(operations)} if operations else {}
    figures = {"default": {"exec_time": time, "power_usage": power}}
    return SimulatedDevice({"name": name, "accept": accept, "performance": figures, **settings})


def compiled(model: nnapi.Model, devices: Sequence[nnapi.Device] | None = None) -> nnapi.Compilation:
    compilation = nnapi.Compilation(model, devices)
    compilation.finish()
    return compilation


def bound(compilation: nnapi.Compilation, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> nnapi.Execution:
    """An execution whose arguments are set."""
    execution = nnapi.Execution(compilation)
    for index, array in enumerate(inputs):
        execution.set_input(index, array)
    for index, out in enumerate(outputs):
        execution.set_output(index, out)
    return execution


def run(compilation: nnapi.Compilation, *inputs: Array, dims: tuple[int, ...] | None = None) -> Array:
    """The one output, of the dimensions of the first input unless others are given."""
    out = np.zeros(inputs[0].shape if dims is None else dims, compilation.model.output_types[0].type.dtype)
    with bound(compilation, inputs, [out]) as execution:
        execution.compute()
    return out
