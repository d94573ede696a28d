"""Sizes of results are decided from inferred dimensions, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from nnapi_models import Builder, bound, choosing, compiled, tensor

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.errors import OutputTooSmallError
from ortconv.nnapi.operations import rows
from ortconv.nnapi.operations.table import OperationCall
from tests.arrays import i32

INT32 = Operand.TENSOR_INT32


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """The operations whose arithmetic was reached."""
    found: list[Operation] = []
    for code, row in list(rows().items()):
        if row.compute is None:
            continue

        def compute(c: OperationCall, row=row) -> Array | Sequence[Array]:  # type: ignore[no-untyped-def]
            found.append(row.operation)
            return row.compute(c)

        monkeypatch.setitem(rows(), code, replace(row, compute=compute))
    return found


def product(units: int) -> tuple[nnapi.Model, list[Array]]:
    """[units, 1] by [units, 1], of dimensions that are open in the model."""
    b = Builder()
    x, weights, bias = b.operand(tensor(0, 1)), b.operand(tensor(0, 1)), b.operand(tensor(0))
    y = b.operation(Operation.FULLY_CONNECTED, [x, weights, bias, b.int32(0)], tensor(0, 0))
    column = np.zeros((units, 1), np.float32)
    return b.finish([x, weights, bias], [y]), [column, column, column[:, 0]]


def filled() -> nnapi.Model:
    """FILL by dimensions that are only known when it runs."""
    b = Builder()
    dims = b.operand(tensor(0, type=INT32))
    value = b.constant(np.float32(1), OperandType(Operand.FLOAT32))
    return b.finish([dims], [b.operation(Operation.FILL, [dims, value], tensor())])


def tiled() -> nnapi.Model:
    """TILE in the middle: its result is a temporary, which is reduced to one number."""
    b = Builder()
    x, times = b.operand(tensor(1)), b.operand(tensor(1, type=INT32))
    wide = b.operation(Operation.TILE, [x, times], tensor(0))
    axes = b.constant([0], tensor(1, type=INT32))
    return b.finish([x, times], [b.operation(Operation.MEAN, [wide, axes, b.int32(0)], tensor(1))])


def execute(compilation: nnapi.Compilation, inputs: Sequence[Array], room: int) -> nnapi.Execution:
    execution = bound(compilation, inputs, [np.zeros(room, np.float32)])
    execution.compute()
    return execution


@pytest.mark.parametrize("units", [100, 30000])
def test_an_output_without_room_is_not_computed(units: int, computed: list[Operation]) -> None:
    model, inputs = product(units)
    compilation = compiled(model)
    with pytest.raises(OutputTooSmallError) as refused:
        execute(compilation, inputs, 4)
    assert refused.value.shapes == [((units, units), False)]
    assert computed == []


def test_with_room_it_is(computed: list[Operation]) -> None:
    model, inputs = product(100)
    assert execute(compiled(model), inputs, 100 * 100).get_output_operand_dimensions(0) == (100, 100)
    assert computed == [Operation.FULLY_CONNECTED]


@pytest.mark.parametrize("dims", [(1 << 16, 1 << 14), (1 << 30, 1 << 30, 1 << 30), (1 << 30,)], ids=str)
def test_nothing_has_more_than_32_bits_of_bytes(dims: tuple[int, ...], computed: list[Operation]) -> None:
    with pytest.raises(nnapi.NnapiError, match=r"FILL: .*4294967295 bytes") as failed:
        execute(compiled(filled()), [i32(*dims)], 4)
    assert failed.value.code is ResultCode.OP_FAILED
    assert computed == []


def test_nor_does_a_temporary(computed: list[Operation]) -> None:
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED: TILE"):
        execute(compiled(tiled()), [np.zeros(1, np.float32), i32(1 << 30)], 1)
    assert computed == []


def test_the_largest_there_is_lacks_only_room(computed: list[Operation]) -> None:
    with pytest.raises(OutputTooSmallError):
        execute(compiled(filled()), [i32((1 << 30) - 1)], 4)
    assert computed == []


def test_room_reaches_into_branches(computed: list[Operation]) -> None:
    with nnapi.Execution(compiled(choosing(tensor(0)))) as execution:
        execution.set_input(0, np.array([True]))
        execution.set_input(1, np.ones(4, np.float32))
        execution.set_output(0, np.zeros(2, np.float32))
        with pytest.raises(OutputTooSmallError) as refused:
            execution.compute()
        with pytest.raises(nnapi.NnapiError) as said:
            execution.get_output_operand_dimensions(0)
    assert refused.value.shapes == [((4,), False)]
    assert said.value.dimensions == (4,)
    assert computed == []
