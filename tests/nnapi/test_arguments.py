"""Values of wrong Python types, at every function of the API: NnapiError, and nothing else."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnapi_models import Builder, adding, chain, compiled, device, tensor

from ortconv import nnapi
from ortconv.errors import UsageError
from ortconv.nnapi import Operand, OperandType, Operation, extension
from ortconv.nnapi.memory import PROT_READ
from tests.batches import slow_except

VECTOR = tensor(2)
ONES = np.ones(2, np.float32)


class Hostile:
    """Raises whatever is asked of it."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no items")

    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("no array")

    def __fspath__(self) -> str:
        raise RuntimeError("no path")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def wrong_values() -> list[Any]:
    return [
        None, "x", "", b"x", 1.5, float("nan"), float("inf"), -1, 1 << 40, 10**30, 10**400, True, 1j, [], [1, "a"], [[1], [2, 3]],
        {}, {1}, {"a": 1}, (), range(3), object(), len, int, Ellipsis, Hostile(), np.array(["a"]), np.array([object()]),
        np.array(3), np.float32("nan"), np.zeros(0), np.zeros((2, 2), np.complex64), np.zeros(2, "M8[s]"), np.ma.ones(2),
        nnapi.Model(), chain(Operation.RELU), nnapi.MemoryDesc(), nnapi.Memory(np.zeros(4, np.uint8)), VECTOR,
        OperandType(Operand.TENSOR_INT32, [2], float("nan")), iter([0]), Operand.INT32, [None], [VECTOR], Path("a\0b"),
    ]  # fmt: skip


EXTENSION = nnapi.Extension("com.example.test", (nnapi.ExtensionOperand(0, np.dtype("<i8"), is_tensor=False),))
extension.declare(EXTENSION)


class Scene:
    """Objects in every state, made anew for each call."""

    def __init__(self) -> None:
        b = Builder()
        self.open, self.x, self.y = b.model, b.operand(VECTOR), b.operand(VECTOR)
        self.channels = b.operand(OperandType(Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2]))
        self.inner = b.operand(OperandType(Operand.MODEL))
        self.foreign = b.operand(OperandType(extension.code_of(EXTENSION.name, 0)))
        self.finished = adding(VECTOR)
        self.compilation = nnapi.Compilation(self.finished, [nnapi.get_device("nnapi-reference")])
        self.compiled = compiled(self.finished, [nnapi.get_device("nnapi-reference")])
        self.execution = nnapi.Execution(self.compiled)
        self.memory = nnapi.Memory(np.zeros(16, np.uint8))
        self.desc = nnapi.MemoryDesc()
        self.described = nnapi.MemoryDesc()
        self.described.add_input_role(self.compiled, 0, 1.0)
        self.described.finish()

    def ready(self, measured: bool = False) -> nnapi.Execution:
        execution = nnapi.Execution(self.compiled)
        execution.set_measure_timing(measured)
        for index in range(2):
            execution.set_input(index, ONES)
        execution.set_output(0, np.zeros(2, np.float32))
        return execution

    def completed(self, measured: bool = False) -> nnapi.Execution:
        execution = self.ready(measured)
        execution.compute()
        return execution


Case = Callable[[Scene], tuple[Callable[..., object], list[Any]]]

CASES: dict[str, Case] = {
    "OperandType": lambda s: (OperandType, [Operand.TENSOR_QUANT8_ASYMM, [2], 0.5, 3, None]),
    "Model": lambda s: (nnapi.Model, []),
    "Model.add_operand": lambda s: (s.open.add_operand, [VECTOR]),
    "Model.set_operand_symm_per_channel_quant_params": lambda s: (
        s.open.set_operand_symm_per_channel_quant_params, [s.channels, 0, [0.5, 0.25]],
    ),
    "Model.set_operand_value": lambda s: (s.open.set_operand_value, [s.x, ONES]),
    "Model.set_operand_value_from_memory": lambda s: (s.open.set_operand_value_from_memory, [s.x, s.memory, 0, 8]),
    "Model.set_operand_value_from_model": lambda s: (s.open.set_operand_value_from_model, [s.inner, s.finished]),
    "Model.add_operation": lambda s: (s.open.add_operation, [Operation.RELU, [s.x], [s.y]]),
    "Model.identify_inputs_and_outputs": lambda s: (s.open.identify_inputs_and_outputs, [[s.x], [s.y]]),
    "Model.relax_computation_float32_to_float16": lambda s: (s.open.relax_computation_float32_to_float16, [True]),
    "Model.finish": lambda s: (s.open.finish, []),
    "Model.get_extension_operand_type": lambda s: (s.open.get_extension_operand_type, ["com.example.test", 0]),
    "Model.get_extension_operation_type": lambda s: (s.open.get_extension_operation_type, ["com.example.test", 0]),
    "Model.set_operand_extension_data": lambda s: (s.open.set_operand_extension_data, [s.foreign, b"data"]),
    "Compilation.add_extension_attribute": lambda s: (
        s.compilation.add_extension_attribute, ["com.example.test", 0, b"data"],
    ),
    "Execution.add_extension_attribute": lambda s: (s.execution.add_extension_attribute, ["com.example.test", 0, b"data"]),
    "Execution.set_input_bytes": lambda s: (s.execution.set_input_bytes, [0, ONES.view(np.uint8), VECTOR]),
    "Memory.from_hardware_buffer": lambda s: (
        nnapi.Memory.from_hardware_buffer, [nnapi.HardwareBuffer(nnapi.BufferDesc(8))],
    ),
    "HardwareBuffer": lambda s: (nnapi.HardwareBuffer, [nnapi.BufferDesc(8)]),
    "Compilation": lambda s: (nnapi.Compilation, [s.finished, None]),
    "Compilation.set_preference": lambda s: (s.compilation.set_preference, [1]),
    "Compilation.set_priority": lambda s: (s.compilation.set_priority, [100]),
    "Compilation.set_timeout": lambda s: (s.compilation.set_timeout, [10**9]),
    "Compilation.set_caching": lambda s: (s.compilation.set_caching, ["somewhere", bytes(32)]),
    "Compilation.finish": lambda s: (s.compilation.finish, []),
    **{
        f"Compilation.get_preferred_memory_{what}_for_{side}": lambda s, name=f"get_preferred_memory_{what}_for_{side}": (
            getattr(s.compiled, name), [0],
        )
        for what in ("alignment", "padding")
        for side in ("input", "output")
    },
    "Execution": lambda s: (nnapi.Execution, [s.compiled]),
    "Execution.set_reusable": lambda s: (s.execution.set_reusable, [True]),
    "Execution.enable_input_and_output_padding": lambda s: (s.execution.enable_input_and_output_padding, [True]),
    "Execution.set_measure_timing": lambda s: (s.execution.set_measure_timing, [True]),
    "Execution.set_timeout": lambda s: (s.execution.set_timeout, [10**9]),
    "Execution.set_loop_timeout": lambda s: (s.execution.set_loop_timeout, [10**9]),
    "Execution.set_input": lambda s: (s.execution.set_input, [0, ONES, VECTOR]),
    "Execution.set_output": lambda s: (s.execution.set_output, [0, np.zeros(2, np.float32), VECTOR]),
    "Execution.set_input_from_memory": lambda s: (s.execution.set_input_from_memory, [0, s.memory, 0, 8, VECTOR]),
    "Execution.set_output_from_memory": lambda s: (s.execution.set_output_from_memory, [0, s.memory, 0, 8, VECTOR]),
    "Execution.compute": lambda s: (s.ready().compute, []),
    "Execution.start_compute": lambda s: (s.ready().start_compute, []),
    "Execution.start_compute_with_dependencies": lambda s: (
        s.ready().start_compute_with_dependencies, [[s.ready().start_compute()], 10**9],
    ),
    "Execution.get_output_operand_dimensions": lambda s: (s.completed().get_output_operand_dimensions, [0]),
    "Execution.get_output_operand_rank": lambda s: (s.completed().get_output_operand_rank, [0]),
    "Execution.get_duration": lambda s: (s.completed(measured=True).get_duration, [0]),
    "Burst": lambda s: (nnapi.Burst, [s.compiled]),
    "Burst.compute": lambda s: (nnapi.Burst(s.compiled).compute, [s.ready()]),
    "Event.from_sync_fence_fd": lambda s: (nnapi.Event.from_sync_fence_fd, [1]),
    "Event.wait": lambda s: (s.ready().start_compute().wait, []),
    "Memory": lambda s: (nnapi.Memory, [ONES]),
    "Memory.from_array": lambda s: (nnapi.Memory.from_array, [ONES]),
    "Memory.from_fd": lambda s: (nnapi.Memory.from_fd, [4, PROT_READ, os.open(__file__, os.O_RDONLY), 0]),
    "Memory.from_desc": lambda s: (nnapi.Memory.from_desc, [s.described]),
    "Memory.copy": lambda s: (nnapi.Memory.copy, [s.memory, nnapi.Memory(np.zeros(16, np.uint8))]),
    "Memory.region": lambda s: (s.memory.region, [0, 4]),
    "MemoryDesc": lambda s: (nnapi.MemoryDesc, []),
    "MemoryDesc.add_input_role": lambda s: (s.desc.add_input_role, [s.compiled, 0, 0.5]),
    "MemoryDesc.add_output_role": lambda s: (s.desc.add_output_role, [s.compiled, 0, 0.5]),
    "MemoryDesc.set_dimensions": lambda s: (s.desc.set_dimensions, [[2]]),
    "MemoryDesc.finish": lambda s: (s.desc.finish, []),
    "get_device": lambda s: (nnapi.get_device, [0]),
    "register_device": lambda s: (nnapi.register_device, [device("wrong")]),
    "unregister_device": lambda s: (nnapi.unregister_device, [device("unknown")]),
    "get_supported_operations_for_devices": lambda s: (
        nnapi.get_supported_operations_for_devices, [s.finished, [nnapi.get_device("nnapi-reference")]],
    ),
    "load_device": lambda s: (nnapi.load_device, ["gpu-fp16"]),
}  # fmt: skip


def guarded() -> set[str]:
    """The functions of the API that take arguments and are called by clients."""
    found = set()
    for name in nnapi.__all__:
        member = getattr(nnapi, name)
        if inspect.isfunction(member) and name != "registered" and inspect.signature(member).parameters:
            found.add(name)
        if inspect.isclass(member) and (issubclass(member, nnapi.model.Handle) or member is OperandType):
            found |= {
                f"{name}.{method}"
                for method, function in vars(member).items()
                if hasattr(getattr(function, "__func__", function), "__wrapped__") and not method.startswith("_")
            }
    return found


def test_every_function_is_here() -> None:
    assert guarded() <= set(CASES)
    assert len(CASES) > 50


def attempt(call: Callable[..., object], given: Sequence[Any]) -> None:
    allowed = (nnapi.NnapiError, UsageError) if call is nnapi.load_device else nnapi.NnapiError
    with suppress(allowed):  # any other error fails the test
        result = call(*given)
        if isinstance(result, nnapi.Event):
            result.close()


@pytest.mark.parametrize("name", slow_except([*CASES][::8], CASES))
def test_wrong_values_are_refused(name: str) -> None:
    with nnapi.registered():
        call, given = CASES[name](Scene())
        call(*given) if name not in ("Model.finish", "MemoryDesc.finish", "unregister_device") else None
        for at in range(len(given)):
            for wrong in wrong_values():
                call, right = CASES[name](Scene())
                attempt(call, [*right[:at], wrong, *right[at + 1 :]])
