"""Which devices use an argument: for the memory that they prefer, and for device memories."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_models import Builder, choosing, compiled, condition, counting_to, device, tensor

from ortconv import nnapi
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.nnapi.memory import DeviceMemory
from ortconv.nnapi.simulated import SimulatedDevice

LARGE = {"alignment": 256, "padding": 128, "allocates": True}


def npu(name: str, *operations: str) -> SimulatedDevice:
    return device(name, *operations, memory=LARGE)


def names(compilation: nnapi.Compilation, is_output: bool, index: int) -> set[str]:
    return {one.name for one in compilation.plan.devices_of(is_output, index)}


def memory_for(compilation: nnapi.Compilation, is_output: bool, index: int) -> DeviceMemory:
    desc = nnapi.MemoryDesc()
    (desc.add_output_role if is_output else desc.add_input_role)(compilation, index, 1.0)
    desc.finish()
    return nnapi.Memory.from_desc(desc)


def chained() -> nnapi.Model:
    """Outputs x + y, and (x + y) * (y - z)."""
    b = Builder()
    kind = tensor(1)
    x, y, z, none = b.operand(kind), b.operand(kind), b.operand(kind), b.int32(0)
    first = b.operation(Operation.ADD, [x, y, none], kind)
    difference = b.operation(Operation.SUB, [y, z, none], kind)
    return b.finish([x, y, z], [first, b.operation(Operation.MUL, [first, difference, none], kind)])


def nested() -> nnapi.Model:
    """if c: (if c: x + x else: x * x) else: the same"""
    b = Builder()
    c, x = b.operand(condition(1)), b.operand(tensor(4))
    models = [b.operand(OperandType(Operand.MODEL)) for _ in range(2)]
    for index in models:
        b.model.set_operand_value_from_model(index, choosing(tensor(4)))
    return b.finish([c, x], [b.operation(Operation.IF, [c, *models, c, x], tensor(4))])


@pytest.mark.parametrize("model", [choosing(tensor(4)), nested()], ids=["branches", "branches in branches"])
def test_arguments_of_branches(model: nnapi.Model) -> None:
    with nnapi.registered(npu("a", "ADD"), device("m", "MUL")):
        compilation = compiled(model, nnapi.get_devices())
        assert names(compilation, False, 1) == names(compilation, True, 0) == {"a", "m"}
        assert names(compilation, False, 0) == set()  # the interpreter alone reads the condition
        assert compilation.get_preferred_memory_alignment_for_input(1) == 256
        assert compilation.get_preferred_memory_padding_for_output(0) == 128
        assert compilation.get_preferred_memory_alignment_for_input(0) == 16
        assert compilation.get_preferred_memory_padding_for_input(0) == 1


def test_one_device_for_both_branches_allocates() -> None:
    with nnapi.registered(npu("a", "ADD", "MUL")):
        compilation = compiled(choosing(tensor(4)), nnapi.get_devices())
        memory = memory_for(compilation, True, 0)
        assert memory.device is nnapi.get_device("a")
        with nnapi.Execution(compilation) as execution:
            execution.set_input(0, np.array([True]))
            execution.set_input(1, np.full(4, 3, np.float32))
            execution.set_output_from_memory(0, memory)
            execution.compute()
    assert memory.elements.tolist() == [6, 6, 6, 6]


def test_what_enters_a_loop() -> None:
    """The condition and the body read it; what leaves the loop is copied."""
    with nnapi.registered(npu("a", "ADD"), device("l", "LESS")):
        compilation = compiled(counting_to(3), nnapi.get_devices())
        assert names(compilation, False, 0) == {"a", "l"}
        assert names(compilation, True, 0) == set()


def test_an_output_that_another_device_reads() -> None:
    devices = [npu("add", "ADD"), npu("sub", "SUB"), npu("mul", "MUL")]
    with nnapi.registered(*devices):
        compilation = compiled(chained(), devices)
        assert names(compilation, True, 0) == {"add", "mul"}
        assert names(compilation, True, 1) == {"mul"}
        assert names(compilation, False, 1) == {"add", "sub"}
        with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
            memory_for(compilation, True, 0)
        assert memory_for(compilation, True, 1).device is devices[2]
