"""Recorded runs give the same bits as plain ones, and the API behaves in them as in others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
import pytest
from nnapi_calls import F, H, I, Q, S, bias, bytes_of, numbers, operand
from nnapi_graphs import random_model
from nnapi_models import Builder, compiled, counting_to, run, tensor

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.cpu import CpuProgram, RunLimits
from ortconv.nnapi.model import Model, ModelOperation
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations import row_of, rows
from ortconv.nnapi.running import is_recordable
from ortconv.nnapi.tracing import vlog
from tests.arrays import i32
from tests.batches import batched, slow_except

Op = Operation
Given = OperandType | Array | bool | int | float
SAME = 1
B8 = Operand.TENSOR_BOOL8


def truths(*dims: int) -> Tensor:
    return Tensor(OperandType(B8, dims), numbers(*dims) > 0)


X, Y = numbers(1, 4, 6, 4), numbers(1, 4, 6, 4, seed=1)
QX, QY = bytes_of(1, 4, 6, 4, scale=0.05, zero_point=120), bytes_of(1, 4, 6, 4, scale=0.03, zero_point=130, seed=1)
SX = bytes_of(1, 4, 6, 4, scale=0.05, zero_point=-3, kind=S)
QW = bytes_of(4, 3, 3, 4, scale=0.02, zero_point=125)
POOL = (SAME, 1, 1, 3, 3, 1)

CASES: list[tuple[Operation, list[Given], list[OperandType]]] = [
    *((code, [X, Y, 1], [OperandType(F)]) for code in (Op.ADD, Op.SUB, Op.MUL, Op.DIV)),
    *((code, [QX, QY, 1], [OperandType(Q, (), 0.1, 100)]) for code in (Op.ADD, Op.SUB, Op.MUL)),
    *((code, [X, Y], [OperandType(F)]) for code in (Op.MAXIMUM, Op.MINIMUM, Op.POW)),
    *((code, [QX, QY], [OperandType(Q, (), 0.1, 100)]) for code in (Op.MAXIMUM, Op.MINIMUM)),
    (Op.ADD, [X.astype(np.float16), Y.astype(np.float16), 1], [OperandType(H)]),
    (Op.PRELU, [X, numbers(4)], [OperandType(F)]),
    (Op.PRELU, [QX, bytes_of(4, scale=0.02, zero_point=9)], [OperandType(Q, (), 0.1, 100)]),
    (Op.SELECT, [truths(1, 4, 6, 4), X, Y], [OperandType(F)]),
    (Op.SELECT, [truths(1, 4, 6, 4), QX, QY], [OperandType(Q, (), 0.1, 100)]),
    *(
        (code, [x, y], [OperandType(B8)])
        for code in (Op.EQUAL, Op.GREATER, Op.GREATER_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.NOT_EQUAL)
        for x, y in ((X, Y), (QX, QY))
    ),
    *((code, [truths(1, 4, 6, 4), truths(6, 1)], [OperandType(B8)]) for code in (Op.LOGICAL_AND, Op.LOGICAL_OR)),
    (Op.LOGICAL_NOT, [truths(1, 4, 6, 4)], [OperandType(B8)]),
    (Op.CONV_2D, [X, numbers(3, 3, 3, 4), numbers(3), SAME, 1, 1, 1], [OperandType(F)]),
    (Op.CONV_2D, [X, numbers(3, 1, 1, 4), numbers(3), 0, 0, 0, 0, 1, 1, 3, True], [OperandType(F)]),
    (Op.CONV_2D, [QX, QW, bias(i32(1, -9, 80, 3), 0.001), SAME, 1, 1, 1], [OperandType(Q, (), 0.2, 100)]),
    (Op.DEPTHWISE_CONV_2D, [X, numbers(1, 3, 3, 4), numbers(4), SAME, 1, 1, 1, 3], [OperandType(F)]),
    (
        Op.DEPTHWISE_CONV_2D,
        [QX, bytes_of(1, 3, 3, 4, scale=0.02, zero_point=99), bias(i32(1, -9, 80, 3), 0.001), SAME, 1, 1, 1, 0],
        [OperandType(Q, (), 0.2, 100)],
    ),
    (Op.GROUPED_CONV_2D, [X, numbers(4, 3, 3, 2), numbers(4), SAME, 1, 1, 2, 1, False], [OperandType(F)]),
    *((code, [X, *POOL, nchw], [OperandType(F)]) for code in (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D) for nchw in (False, True)),
    *((code, [QX, *POOL], [OperandType(Q, (), 0.05, 120)]) for code in (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D)),
    (Op.FULLY_CONNECTED, [X, numbers(3, 8), numbers(3), 1], [OperandType(F)]),
    (
        Op.FULLY_CONNECTED,
        [QX, bytes_of(3, 8, scale=0.02, zero_point=99), bias(i32(1, -9, 80), 0.001), 1],
        [OperandType(Q, (), 0.2, 100)],
    ),
    (Op.BATCH_MATMUL, [X, Y, False, True], [OperandType(F)]),
    (Op.BATCH_MATMUL, [SX, SX, True, False], [OperandType(S, (), 0.3, 2)]),
    (Op.SOFTMAX, [X, 0.5], [OperandType(F)]),
    (Op.SOFTMAX, [QX, 0.5], [OperandType(Q, (), 1 / 256, 0)]),
    *(
        (code, [X], [OperandType(F)])
        for code in (
            Op.ABS, Op.EXP, Op.FLOOR, Op.LOG, Op.NEG, Op.SIN, Op.SQRT, Op.RELU, Op.RELU1, Op.RELU6, Op.LOGISTIC,
            Op.TANH, Op.HARD_SWISH,
        )
    ),
    *((code, [QX], [OperandType(Q, (), 0.05, 120)]) for code in (Op.RELU, Op.RELU1, Op.RELU6, Op.HARD_SWISH)),
    (Op.LOGISTIC, [QX], [OperandType(Q, (), 1 / 256, 0)]),
    (Op.TANH, [QX], [OperandType(Q, (), 1 / 128, 128)]),
    (Op.ELU, [X, 1.5], [OperandType(F)]),
    (Op.RESHAPE, [X, i32(8, -1)], [OperandType(F)]),
    (Op.SQUEEZE, [X, i32(0)], [OperandType(F)]),
    (Op.EXPAND_DIMS, [X[0], 1], [OperandType(F)]),
    (Op.TRANSPOSE, [X, i32(0, 3, 1, 2)], [OperandType(F)]),
    (Op.TRANSPOSE, [QX, i32(0, 2, 3, 1)], [OperandType(Q, (), 0.05, 120)]),
    (Op.CONCATENATION, [X, Y, 2], [OperandType(F)]),
    (Op.CONCATENATION, [QX, QY, 2], [OperandType(Q, (), 0.1, 100)]),
    (Op.SPLIT, [X, 2, 3], [OperandType(F)] * 3),
    (Op.SLICE, [X, i32(0, 1, 2, 0), i32(1, 2, -1, 3)], [OperandType(F)]),
    (Op.PAD, [QX, np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)], [OperandType(Q, (), 0.05, 120)]),
    (Op.PAD_V2, [X, np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32), 1.5], [OperandType(F)]),
    *((code, [X, 2, nchw], [OperandType(F)]) for code in (Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH) for nchw in (False, True)),
    (Op.CHANNEL_SHUFFLE, [X, 2, 3], [OperandType(F)]),
    (Op.MEAN, [X, i32(1, 2), 1], [OperandType(F)]),
    (Op.MEAN, [QX, i32(1), 0], [OperandType(Q, (), 0.05, 120)]),
    *((code, [X, i32(1), False], [OperandType(F)]) for code in (Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_PROD, Op.REDUCE_SUM)),
    *((code, [truths(3, 4), i32(1), True], [OperandType(B8)]) for code in (Op.REDUCE_ALL, Op.REDUCE_ANY)),
    (Op.RESIZE_BILINEAR, [X, 9, 7, False], [OperandType(F)]),
    (Op.RESIZE_BILINEAR, [QX, 9, 7, False], [OperandType(Q, (), 0.05, 120)]),
    (Op.RESIZE_NEAREST_NEIGHBOR, [X, 9, 7, True], [OperandType(F)]),
    (Op.QUANTIZE, [X], [OperandType(Q, (), 0.05, 120)]),
    (Op.DEQUANTIZE, [QX], [OperandType(F)]),
]  # fmt: skip


def model_of(code: Operation, given: Sequence[OperandType], outputs: Sequence[OperandType]) -> tuple[Model, list[int]]:
    """A model of one operation, and the places of its inputs: the operands that a recording allows to change."""
    slots = row_of(code).validate(given, outputs).slots
    changing = [at for at, slot in enumerate(slots) if slot.name in row_of(code).recorded]
    b = Builder()
    inputs = [
        b.operand(one.with_dims(one.dims)) if at in changing else b.constant(one.array, one)
        for at, one in enumerate(given)
        if isinstance(one, Tensor)
    ]
    made = [b.operand(kind) for kind in outputs]
    b.model.add_operation(code, inputs, made)
    return b.finish([inputs[at] for at in changing], made), changing


def rolled(x: Tensor) -> Tensor:
    return Tensor(x, np.roll(x.array.reshape(-1), 1).reshape(x.dims))


def results(program: CpuProgram, inputs: Sequence[Tensor]) -> list[tuple[tuple[int, ...], bytes]]:
    return [(one.dims, one.array.tobytes()) for one in program.run(inputs)]


@batched
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("code", "given", "outputs"), CASES, ids=[f"{at}-{case[0].name}" for at, case in enumerate(CASES)]
)
def test_the_same_bits(code: Operation, given: list[Given], outputs: list[OperandType], half: bool) -> None:
    operands = [operand(one) for one in given]
    model, changing = model_of(code, operands, outputs)
    assert is_recordable(model.operations[0], changing)
    inputs = [one for at in changing if isinstance(one := operands[at], Tensor)]
    program, others = CpuProgram(model, half), [rolled(one) for one in inputs]
    expected = [results(CpuProgram(model, half), each) for each in (others, others, inputs, others)]
    assert [results(program, each) for each in (others, others, inputs, others)] == expected


def test_there_is_a_case_for_each_recorded_operation() -> None:
    assert {code for code, row in rows().items() if row.recorded} == {code for code, *_ in CASES}


SEEDS = [range(at, at + 10) for at in range(0, 60, 10)]


@pytest.mark.parametrize("seeds", slow_except(SEEDS[:2], SEEDS), ids=str)
def test_random_models(seeds: range) -> None:
    for seed in seeds:
        model, feeds, _ = random_model(seed)
        inputs = [Tensor(kind, x) for kind, x in zip(model.input_types, feeds, strict=True)]
        program, others = CpuProgram(model), [rolled(one) for one in inputs]
        expected = [results(CpuProgram(model), each) for each in (others, inputs)]
        assert [results(program, each) for each in (others, others, inputs)] == [expected[0], *expected], seed


def product() -> tuple[Model, list[Array]]:
    """CONV_2D of a filter that is an input, so that it may be another one in each run."""
    b = Builder()
    x, filter = b.operand(tensor(1, 4, 6, 4)), b.operand(tensor(3, 3, 3, 4))
    zero = b.constant(np.zeros(3), tensor(3))
    y = b.operation(Op.CONV_2D, [x, filter, zero, *(b.int32(1) for _ in range(3)), b.int32(0)], tensor(1, 4, 6, 3))
    return b.finish([x, filter], [y]), [X, numbers(3, 3, 3, 4)]


def test_a_filter_that_changes() -> None:
    model, (x, filter) = product()
    compilation = compiled(model)
    for weights in (filter, filter, filter * 2, filter * 3):
        fresh = run(compiled(model), x, weights, dims=(1, 4, 6, 3))
        assert run(compilation, x, weights, dims=(1, 4, 6, 3)).tobytes() == fresh.tobytes()


def test_results_stay_as_they_were() -> None:
    b = Builder()
    x = b.operand(tensor(4))
    same = b.operation(Op.RESHAPE, [x, b.constant([4], tensor(1, type=I))], tensor(4))
    program = CpuProgram(b.finish([x], [same, b.operation(Op.NEG, [x], tensor(4))]))
    kept = [program.run([Tensor(tensor(4), np.full(4, value, np.float32))]) for value in range(5)]
    assert [[float(one.array[0]) for one in each] for each in kept] == [[value, -value] for value in range(5)]


def test_shapes_that_depend_on_values() -> None:
    b = Builder()
    x, shape = b.operand(tensor(6)), b.operand(tensor(2, type=I))
    program = CpuProgram(b.finish([x, shape], [b.operation(Op.RESHAPE, [x, shape], tensor(0, 0))]))
    values = Tensor(tensor(6), numbers(6))
    for dims in ((2, 3), (2, 3), (2, 3), (3, 2), (1, 6), (2, 3)):
        (result,) = program.run([values, Tensor(tensor(2, type=I), i32(*dims))])
        assert result.dims == dims
        assert result.array.tobytes() == values.array.tobytes()


def picking() -> CpuProgram:
    """GATHER of four elements by two indices."""
    b = Builder()
    x, indices = b.operand(tensor(4)), b.operand(tensor(2, type=I))
    return CpuProgram(b.finish([x, indices], [b.operation(Op.GATHER, [x, b.int32(0), indices], tensor(2))]))


def test_an_operation_that_fails_says_why_in_each_run() -> None:
    program, x = picking(), Tensor(tensor(4), numbers(4))
    good, bad = (Tensor(tensor(2, type=I), i32(*each)) for each in ((1, 3), (1, 4)))
    for indices in (good, good, good, bad, good, bad):
        if indices is good:
            assert program.run([x, indices])[0].array.tolist() == x.array[[1, 3]].tolist()
            continue
        with pytest.raises(nnapi.NnapiError, match="not within a dimension of 4") as caught:
            program.run([x, indices])
        assert caught.value.operation is Op.GATHER


def twice() -> CpuProgram:
    b = Builder()
    x = b.operand(tensor(8))
    return CpuProgram(b.finish([x], [b.operation(Op.NEG, [b.operation(Op.ABS, [x], tensor(8))], tensor(8))]))


def test_room_is_checked_before_a_recorded_run() -> None:
    program, x = twice(), Tensor(tensor(8), numbers(8))
    for _ in range(3):
        program.run([x], [32])
    seen: list[ModelOperation] = []
    with pytest.raises(nnapi.NnapiError) as caught:
        program.run([x], [28], observer=lambda model, operation, seconds: seen.append(operation))
    assert caught.value.code is ResultCode.OUTPUT_INSUFFICIENT_SIZE
    assert [one.code for one in seen] == [Op.ABS]


def test_observers_and_messages_of_recorded_runs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, x = twice(), Tensor(tensor(8), numbers(8))
    for _ in range(3):
        program.run([x])
    seen: list[Operation] = []
    monkeypatch.setattr(vlog, "shows", lambda flag: flag == vlog.CPUEXE)
    with caplog.at_level("INFO"):
        program.run([x], observer=lambda model, operation, seconds: seen.append(operation.code))
    assert seen == [Op.ABS, Op.NEG]
    assert [one.getMessage().split("(")[-1] for one in caplog.records] == ["ABS)", "NEG)"]


def test_a_deadline_within_a_recorded_run(monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = twice(), Tensor(tensor(8), numbers(8))
    for _ in range(3):
        program.run([x])
    now = chain([0.0, 0.0], repeat(2.0))
    monkeypatch.setattr("ortconv.nnapi.cpu.time.perf_counter", lambda: next(now))
    with pytest.raises(nnapi.NnapiError) as caught:
        program.run([x], limits=RunLimits(deadline=1.0))
    assert caught.value.code is ResultCode.MISSED_DEADLINE_TRANSIENT


def test_several_threads() -> None:
    program = twice()
    inputs = [Tensor(tensor(8), np.full(8, value, np.float32)) for value in range(4)]
    wrong: list[float] = []

    def work(x: Tensor) -> None:
        for _ in range(200):
            (y,) = program.run([x])
            wrong.extend(y.array[y.array != -x.array[0]])

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_loops_whose_models_are_recorded() -> None:
    compilation = compiled(counting_to(9.0))
    assert [float(run(compilation, np.full(1, start, np.float32))[0]) for start in (0, 0, 0, 4, 8.5)] == [
        9,
        9,
        9,
        9,
        9.5,
    ]
