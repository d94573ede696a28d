"""Hardware buffers: BLOBs are memory, images are arguments that no device here can read."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_models import adding, compiled, tensor

from ortconv import nnapi
from ortconv.nnapi import BufferDesc, BufferFormat, BufferUsage, HardwareBuffer, Memory, ResultCode

VECTOR = tensor(2)
IMAGE = BufferDesc(4, 2, format=BufferFormat.R8G8B8A8_UNORM)


def test_a_blob_is_memory() -> None:
    buffer = HardwareBuffer(BufferDesc(24))
    values = buffer.lock(BufferUsage.CPU_WRITE_OFTEN).view(np.float32)
    values[:4] = [1, 2, 3, 4]
    memory = Memory.from_hardware_buffer(buffer)
    execution = nnapi.Execution(compiled(adding(VECTOR)))
    execution.set_input_from_memory(0, memory, 0, 8)
    execution.set_input_from_memory(1, memory, 8, 8)
    execution.set_output_from_memory(0, memory, 16, 8)
    buffer.close()
    execution.compute()
    assert values.tolist() == [1, 2, 3, 4, 4, 6]


@pytest.mark.parametrize(
    "desc",
    [
        BufferDesc(0),
        BufferDesc(8, 2),
        BufferDesc(8, layers=2),
        BufferDesc(8, format=0x99),
        BufferDesc(1 << 31, 1 << 31, format=1),
    ],
)
def test_descriptions_that_cannot_be(desc: BufferDesc) -> None:
    with pytest.raises(nnapi.NnapiError) as caught:
        HardwareBuffer(desc)
    assert caught.value.code is ResultCode.BAD_DATA


def test_usage() -> None:
    buffer = HardwareBuffer(BufferDesc(8, usage=BufferUsage.CPU_READ_RARELY))
    assert buffer.lock(BufferUsage.CPU_READ_RARELY).nbytes == 8
    for usage in (BufferUsage.CPU_WRITE_OFTEN, BufferUsage.GPU_DATA_BUFFER, 0):
        with pytest.raises(nnapi.NnapiError):
            buffer.lock(usage)
    with pytest.raises(nnapi.NnapiError) as caught:
        Memory.from_hardware_buffer(HardwareBuffer(BufferDesc(8, usage=BufferUsage.GPU_DATA_BUFFER)))
    assert caught.value.code is ResultCode.UNMAPPABLE


def test_owners() -> None:
    buffer = HardwareBuffer(BufferDesc(8))
    buffer.acquire()
    buffer.close()
    assert buffer.data.nbytes == 8
    buffer.close()
    with pytest.raises(nnapi.NnapiError) as caught:
        _ = buffer.data
    assert caught.value.code is ResultCode.BAD_STATE


def test_an_image_is_no_constant() -> None:
    memory = Memory.from_hardware_buffer(HardwareBuffer(IMAGE))
    model = nnapi.Model()
    operand = model.add_operand(VECTOR)
    with pytest.raises(nnapi.NnapiError) as caught:
        model.set_operand_value_from_memory(operand, memory, 0, 8)
    assert caught.value.code is ResultCode.BAD_DATA


def test_an_image_is_an_argument_as_a_whole() -> None:
    memory = Memory.from_hardware_buffer(HardwareBuffer(IMAGE))
    execution = nnapi.Execution(compiled(adding(VECTOR)))
    with pytest.raises(nnapi.NnapiError) as caught:
        execution.set_input_from_memory(0, memory, 0, 8)
    assert caught.value.code is ResultCode.BAD_DATA
    execution.set_input_from_memory(0, memory)
    execution.set_input(1, [1, 2])
    execution.set_output(0, np.zeros(2, np.float32))
    with pytest.raises(nnapi.NnapiError) as caught:
        execution.compute()
    assert caught.value.code is ResultCode.UNMAPPABLE
