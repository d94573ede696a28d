"""Memories: mapped files, device memories and their roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from nnapi_models import Builder, adding, chain, compiled, run, tensor

from ortconv import nnapi
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.nnapi.memory import PROT_READ, PROT_WRITE, DeviceMemory
from ortconv.nnapi.simulated import SimulatedDevice

X = np.array([1, -2, 3, -4], np.float32)


@pytest.fixture(autouse=True)
def device() -> Iterator[SimulatedDevice]:
    one = SimulatedDevice({"name": "npu", "memory": {"allocates": True}})
    with nnapi.registered(one):
        yield one


def described(*roles: tuple[nnapi.Compilation, str], dims: tuple[int, ...] = ()) -> DeviceMemory:
    desc = nnapi.MemoryDesc()
    for compilation, side in roles:
        (desc.add_input_role if side == "in" else desc.add_output_role)(compilation, 0, 1.0)
    if dims:
        desc.set_dimensions(dims)
    desc.finish()
    return nnapi.Memory.from_desc(desc)


def test_weights_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"\0" * 20 + X.tobytes())
    with path.open("rb") as file:
        memory = nnapi.Memory.from_fd(16, PROT_READ, file.fileno(), 20)
    b = Builder()
    kind = tensor(4)
    x, w = b.operand(kind), b.operand(kind)
    b.model.set_operand_value_from_memory(w, memory, 0, 16)
    model = b.finish([x], [b.operation(Operation.ADD, [x, w, b.int32(0)], kind)])
    memory.close()
    assert run(compiled(model), X).tolist() == (2 * X).tolist()


@pytest.mark.parametrize(
    ("size", "offset", "code"), [(0, 0, "BAD_DATA"), (-1, 0, "BAD_DATA"), (4, -4, "BAD_DATA"), (8, 12, "UNMAPPABLE")]
)
def test_files_that_cannot_be_mapped(tmp_path: Path, size: int, offset: int, code: str) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(16))
    with path.open("rb") as file, pytest.raises(nnapi.NnapiError, match=code):
        nnapi.Memory.from_fd(size, PROT_READ, file.fileno(), offset)


def test_a_file_that_is_not_open() -> None:
    with pytest.raises(nnapi.NnapiError, match="UNMAPPABLE"):
        nnapi.Memory.from_fd(4, PROT_READ, 9999)


def test_results_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_bytes(bytes(16))
    with path.open("r+b") as file:
        memory = nnapi.Memory.from_fd(16, PROT_READ | PROT_WRITE, file.fileno())
    execution = nnapi.Execution(compiled(chain(Operation.RELU)))
    execution.set_input(0, X)
    execution.set_output_from_memory(0, memory, 0, 16)
    execution.compute()
    memory.close()
    assert np.frombuffer(path.read_bytes(), np.float32).tolist() == [1, 0, 3, 0]


def npu(model: nnapi.Model) -> nnapi.Compilation:
    return compiled(model, [nnapi.get_device("npu")])


def test_from_one_execution_to_the_next() -> None:
    first, second = npu(chain(Operation.RELU)), npu(chain(Operation.ADD))
    memory = described((first, "out"), (second, "in"))
    assert memory.device is nnapi.get_device("npu")
    execution = nnapi.Execution(first)
    execution.set_input(0, X)
    execution.set_output_from_memory(0, memory)
    execution.compute()
    execution = nnapi.Execution(second)
    out = np.zeros(4, np.float32)
    execution.set_input_from_memory(0, memory)
    execution.set_output(0, out)
    execution.compute()
    assert out.tolist() == [2, 0, 6, 0]


def test_a_memory_that_holds_nothing() -> None:
    compilation = npu(chain(Operation.RELU))
    execution = nnapi.Execution(compilation)
    execution.set_input_from_memory(0, described((compilation, "in")))
    execution.set_output(0, X.copy())
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        execution.compute()


def test_a_failed_execution_leaves_nothing_in_it() -> None:
    compilation = npu(chain(Operation.RELU, dims=(0,)))
    memory = described((compilation, "out"), dims=(4,))
    nnapi.Memory.copy(nnapi.Memory.from_array(X), memory)
    execution = nnapi.Execution(compilation)
    execution.set_input(0, np.ones(5, np.float32))
    execution.set_output_from_memory(0, memory, kind=tensor(4))
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        execution.compute()
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Memory.copy(memory, nnapi.Memory.from_array(np.zeros(4, np.float32)))


def test_memories_are_used_in_their_roles() -> None:
    compilation, other = npu(chain(Operation.RELU)), npu(chain(Operation.RELU))
    memory = described((compilation, "in"))
    for wrong in (
        lambda: nnapi.Execution(other).set_input_from_memory(0, memory),
        lambda: nnapi.Execution(compilation).set_output_from_memory(0, memory),
        lambda: nnapi.Execution(compilation).set_input_from_memory(0, memory, 0, 16),
    ):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            wrong()


def test_constants_in_a_described_memory() -> None:
    memory = described((npu(chain(Operation.RELU)), "in"))
    b = Builder()
    index = b.operand(tensor(4))
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.set_operand_value_from_memory(index, memory, 0, 16)


def test_copies() -> None:
    compilation = npu(chain(Operation.RELU))
    memory, other = described((compilation, "in")), described((compilation, "in"))
    host = nnapi.Memory.from_array(np.zeros(4, np.float32))
    nnapi.Memory.copy(nnapi.Memory.from_array(X), memory)
    nnapi.Memory.copy(memory, other)
    nnapi.Memory.copy(other, host)
    nnapi.Memory.copy(host, host)
    assert host.data.view(np.float32).tolist() == X.tolist()


@pytest.mark.parametrize("size", [12, 20])
def test_copies_that_do_not_fit(size: int) -> None:
    memory = described((npu(chain(Operation.RELU)), "in"))
    host = nnapi.Memory.from_array(np.zeros(size, np.uint8))
    for source, target in ((host, memory), (nnapi.Memory.from_array(X), host), (memory, host)):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            nnapi.Memory.copy(source, target)


def test_a_failed_copy_leaves_nothing() -> None:
    memory = described((npu(chain(Operation.RELU)), "in"))
    nnapi.Memory.copy(nnapi.Memory.from_array(X), memory)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Memory.copy(nnapi.Memory.from_array(X[:2]), memory)
    assert memory.array is None


REFUSED: list[Callable[[nnapi.MemoryDesc, nnapi.Compilation], None]] = [
    lambda d, c: d.add_input_role(c, 1, 1.0),
    lambda d, c: d.add_output_role(c, -1, 1.0),
    lambda d, c: d.add_input_role(c, 0, 0.0),
    lambda d, c: d.add_input_role(c, 0, 1.5),
    lambda d, c: d.add_input_role(nnapi.Compilation(c.model), 0, 1.0),
    lambda d, c: [d.add_input_role(c, 0, 1.0), d.add_input_role(c, 0, 1.0)],
    lambda d, c: [d.add_input_role(c, 0, 1.0), d.add_input_role(npu(chain(Operation.RELU, dims=(5,))), 0, 1.0)],
    lambda d, c: [d.add_input_role(c, 0, 1.0), d.set_dimensions([5])],
    lambda d, c: [d.set_dimensions([5]), d.add_input_role(c, 0, 1.0)],
    lambda d, c: [d.set_dimensions([2]), d.set_dimensions([3])],
    lambda d, c: [d.set_dimensions([2]), d.set_dimensions([2, 1])],
    lambda d, c: [d.set_dimensions([2]), d.add_input_role(npu(adding(tensor(2), scalar=True)), 2, 1.0)],
    lambda d, c: [d.add_input_role(npu(adding(tensor(2), scalar=True)), 2, 1.0), d.set_dimensions([1])],
    lambda d, c: d.finish(),
]  # type: ignore[list-item]


@pytest.mark.parametrize("call", REFUSED)
def test_descriptors_that_cannot_be(call: Callable[[nnapi.MemoryDesc, nnapi.Compilation], None]) -> None:
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        call(nnapi.MemoryDesc(), npu(chain(Operation.RELU)))


def test_nothing_changes_a_finished_descriptor() -> None:
    compilation = npu(chain(Operation.RELU))
    desc = nnapi.MemoryDesc()
    desc.add_input_role(compilation, 0, 0.5)
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        nnapi.Memory.from_desc(desc)
    desc.finish()
    for call in (desc.finish, lambda: desc.add_output_role(compilation, 0, 1.0), lambda: desc.set_dimensions([4])):
        with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
            call()


def test_dimensions_are_narrowed() -> None:
    compilation = npu(chain(Operation.RELU, dims=(0, 3)))
    assert described((compilation, "in")).kind.dims == (0, 3)
    assert described((compilation, "in"), dims=(2, 3)).kind.dims == (2, 3)


def test_dimensions_are_narrowed_step_by_step() -> None:
    desc = nnapi.MemoryDesc()
    for dims in ([0, 3], [], [2, 0], [2, 3]):
        desc.set_dimensions(dims)
    desc.add_input_role(npu(chain(Operation.RELU, dims=(0, 0))), 0, 1.0)
    desc.finish()
    assert nnapi.Memory.from_desc(desc).kind.dims == (2, 3)


@pytest.mark.parametrize("kind", [tensor(2), tensor(1, 1), tensor(1, type=Operand.TENSOR_INT32)], ids=str)
def test_a_type_that_says_something_else_than_the_memory(kind: OperandType) -> None:
    compilation = npu(chain(Operation.RELU, dims=(0,)))
    for side in ("in", "out"):
        memory, execution = described((compilation, side), dims=(1,)), nnapi.Execution(compilation)
        setter = execution.set_input_from_memory if side == "in" else execution.set_output_from_memory
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            setter(0, memory, 0, 0, kind)
        setter(0, memory, 0, 0, tensor(1))


def test_a_copy_may_change_dimensions_that_were_left_open() -> None:
    compilation = npu(chain(Operation.RELU, dims=(0,)))
    memories = [described((compilation, "in")) for _ in range(2)]
    for size in (2, 3):
        memories[0].write(X[:size])
        nnapi.Memory.copy(*memories)
        assert memories[1].elements.tolist() == X[:size].tolist()


def test_memory_that_cannot_be_written_to() -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Memory.copy(nnapi.Memory.from_array(X), nnapi.Memory.from_array(fixed))


def test_no_device_for_the_roles() -> None:
    cpu = [nnapi.get_device("nnapi-reference")]
    explicit = npu(chain(Operation.RELU)), compiled(chain(Operation.ADD), cpu)
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        described((explicit[0], "out"), (explicit[1], "in"))
    shared = described((compiled(chain(Operation.RELU)), "in"))
    assert shared.device is nnapi.get_device("nnapi-reference")
    unknown = compiled(chain(Operation.RELU, dims=(0,)), cpu)
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        described((unknown, "in"))
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED"):
        described((compiled(chain(Operation.RELU, dims=(0,))), "in"))


def test_arrays_that_are_no_memory() -> None:
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.Memory.from_array(np.zeros((4, 4), np.float32)[:, 1])


def test_a_closed_memory() -> None:
    memory = nnapi.Memory.from_array(X)
    with memory:
        assert memory.size == 16
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        memory.region(0, 4)


def test_types_of_roles_agree() -> None:
    desc = nnapi.MemoryDesc()
    desc.add_output_role(npu(chain(Operation.RELU)), 0, 1.0)
    b = Builder()
    x = b.operand(tensor(4, type=Operand.TENSOR_INT32))
    model = b.finish([x], [b.operation(Operation.NEG, [x], tensor(4, type=Operand.TENSOR_INT32))])
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        desc.add_input_role(npu(model), 0, 1.0)
