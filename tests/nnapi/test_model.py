"""Building models: what is refused, where and with which result code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from nnapi_models import Builder, adding, chain, choosing, compiled, condition, counting_to, device, run, tensor

from ortconv import nnapi
from ortconv.nnapi import FeatureLevel, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.operand import Lifetime
from ortconv.nnapi.properties import PartitioningMode, override
from tests.batches import batched

T = Operand


@batched
@pytest.mark.parametrize(
    "kind",
    [
        OperandType(T.INT32, [1]),
        OperandType(T.MODEL, [1]),
        OperandType(T.TENSOR_FLOAT32, [2, -1]),
        OperandType(T.TENSOR_FLOAT32, [1 << 16, 1 << 15]),
        OperandType(T.TENSOR_FLOAT32, [2], 0.5, 0),
        OperandType(T.TENSOR_FLOAT32, [2], 0.0, 1),
        OperandType(T.FLOAT32, [], 1.0, 0),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2]),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2], -1.0, 0),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2], np.inf, 0),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2], np.nan, 0),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2], 1.0, 256),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2], 1.0, -1),
        OperandType(T.TENSOR_QUANT8_ASYMM_SIGNED, [2], 1.0, 128),
        OperandType(T.TENSOR_QUANT8_SYMM, [2], 1.0, 1),
        OperandType(T.TENSOR_QUANT16_SYMM, [2], 1.0, 1),
        OperandType(T.TENSOR_QUANT16_ASYMM, [2], 1.0, 65536),
        OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2], 1.0, 0),
    ],
    ids=str,
)
def test_operand_types_that_cannot_be(kind: OperandType) -> None:
    with pytest.raises(nnapi.NnapiError) as refused:
        nnapi.Model().add_operand(kind)
    assert refused.value.code is ResultCode.BAD_DATA
    assert refused.value.operand == 0


def test_operand_types_at_their_limits() -> None:
    model = nnapi.Model()
    for kind in (
        OperandType(T.TENSOR_FLOAT32, []),
        OperandType(T.TENSOR_FLOAT32, [0, 3]),
        OperandType(T.TENSOR_INT32, [2], 0.5, 0),
        OperandType(T.TENSOR_QUANT8_ASYMM, [2], 1.0, 255),
        OperandType(T.TENSOR_QUANT8_ASYMM_SIGNED, [2], 1.0, -128),
        OperandType(T.TENSOR_QUANT16_ASYMM, [2], 1.0, 65535),
        OperandType(T.TENSOR_FLOAT32, [1 << 15, 1 << 14]),
    ):
        model.add_operand(kind)
    assert len(model.operands) == 7


@pytest.mark.parametrize(
    ("kind", "channel_dim", "scales"),
    [
        (OperandType(T.TENSOR_FLOAT32, [2]), 0, [1.0, 1.0]),
        (OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2, 3]), 2, [1.0, 1.0]),
        (OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2, 3]), -1, [1.0, 1.0, 1.0]),
        (OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2, 3]), 1, [1.0, 1.0]),
        (OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [0, 3]), 0, []),
        (OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2, 3]), 0, [1.0, 0.0]),
    ],
)
def test_scales_per_channel_that_do_not_fit(kind: OperandType, channel_dim: int, scales: list[float]) -> None:
    model = nnapi.Model()
    index = model.add_operand(kind)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        model.set_operand_symm_per_channel_quant_params(index, channel_dim, scales)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (tensor(2), np.zeros(3, np.float32)),
        (tensor(2), np.zeros(1, np.float32)),
        (tensor(2), np.zeros(2, np.float64)),
        (tensor(2), np.zeros(2, np.int32)),
        (tensor(0, 2), np.zeros((1, 2), np.float32)),
        (tensor(), np.zeros(1, np.float32)),
    ],
)
def test_values_that_do_not_fit(kind: OperandType, array: np.ndarray) -> None:  # type: ignore[type-arg]
    model = nnapi.Model()
    index = model.add_operand(kind)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        model.set_operand_value(index, array)


def test_raw_bytes_are_values() -> None:
    b = Builder()
    index = b.operand(tensor(2))
    b.model.set_operand_value(index, np.array([1.5, -2.0], np.float32).view(np.uint8))
    assert b.model.operands[index].value.tolist() == [1.5, -2.0]  # type: ignore[union-attr]


def test_short_values_are_copied_at_once_and_long_ones_at_finish() -> None:
    b = Builder()
    short, long = np.ones(32, np.float32), np.ones(33, np.float32)
    x, y = b.constant(short, tensor(32)), b.operand(tensor(33))
    b.model.set_operand_value(y, long)
    short[0] = long[0] = 7
    i, j = b.operand(tensor(32)), b.operand(tensor(33))
    sums = [b.operation(Operation.ADD, [p, q, b.int32(0)], tensor(n)) for p, q, n in ((i, x, 32), (j, y, 33))]
    model = b.finish([i, j], sums)
    short[1] = long[1] = 9
    values = [model.operands[index].value for index in (x, y)]
    assert values[0] is not None
    assert values[1] is not None
    assert values[0][:2].tolist() == [1, 1]
    assert values[1][:2].tolist() == [7, 1]


def test_values_may_be_set_again() -> None:
    b = Builder()
    index = b.constant([1.0], tensor(1))
    b.model.set_operand_value(index, None)
    assert b.model.operands[index].lifetime is Lifetime.NO_VALUE
    b.model.set_operand_value(index, np.array([3], np.float32))
    assert b.model.operands[index].value == 3


@pytest.mark.parametrize(("offset", "length"), [(0, 4), (0, 12), (60, 8), (-4, 8), (0, 0)])
def test_regions_of_memory_that_do_not_fit(offset: int, length: int) -> None:
    b = Builder()
    index = b.operand(tensor(2))
    memory = nnapi.Memory.from_array(np.zeros(64, np.uint8))
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.set_operand_value_from_memory(index, memory, offset, length)


def test_referring_to_a_model_that_is_not_finished() -> None:
    b = Builder()
    index = b.operand(OperandType(T.MODEL))
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        b.model.set_operand_value_from_model(index, nnapi.Model())


def add(b: Builder) -> tuple[int, int]:
    x, y = b.operand(tensor(2)), b.operand(tensor(2))
    b.model.add_operation(Operation.ADD, [x, x, b.int32(0)], [y])
    return x, y


def no_operations(b: Builder) -> None:
    b.operand(tensor(2))


def cycle(b: Builder) -> None:
    x, y = add(b)
    b.model.add_operation(Operation.RELU, [y], [x])


def read_before_written(b: Builder) -> None:
    _, y = add(b)
    b.model.identify_inputs_and_outputs([], [y])


def input_with_a_value(b: Builder) -> None:
    x, y = add(b)
    b.model.identify_inputs_and_outputs([x], [y])
    b.model.set_operand_value(x, np.zeros(2, np.float32))


def with_fault(fault: Callable[[Builder, int, int], object]) -> Callable[[Builder], None]:
    """Builds an operation from x to y, and a fault."""

    def build(b: Builder) -> None:
        x, y = add(b)
        fault(b, x, y)
        b.model.identify_inputs_and_outputs([x], [y])

    return build


SCALES_MISSING = OperandType(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [2])
ZERO_POINT = OperandType(T.TENSOR_INT32, [2], 1.0, 3)
REFUSED: dict[str, Callable[[Builder], None]] = {
    "empty": lambda b: None,
    "no operations": no_operations,
    "cycle": cycle,
    "read before written": read_before_written,
    "written twice": with_fault(lambda b, x, y: b.model.add_operation(Operation.RELU, [x], [y])),
    "input that is written": with_fault(lambda b, x, y: b.model.add_operation(Operation.RELU, [y], [x])),
    "nobody writes": with_fault(lambda b, x, y: b.operand(tensor(1))),
    "input with a value": input_with_a_value,
    "scales missing": with_fault(lambda b, x, y: b.constant(np.zeros(2, np.int8), SCALES_MISSING)),
    "int32 with a zero point": with_fault(lambda b, x, y: b.constant(np.zeros(2, np.int32), ZERO_POINT)),
    "no model": with_fault(lambda b, x, y: b.model.set_operand_value(b.operand(OperandType(T.MODEL)), None)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_refused_at_finish(name: str) -> None:
    b = Builder()
    REFUSED[name](b)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.finish()
    for call in (b.model.finish, lambda: nnapi.Compilation(b.model), lambda: b.operand(tensor(1))):
        with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.add_operand(tensor(1)),
        lambda m: m.set_operand_value(0, None),
        lambda m: m.set_operand_value_from_memory(0, nnapi.Memory.from_array(np.zeros(8, np.uint8)), 0, 8),
        lambda m: m.set_operand_value_from_model(0, m),
        lambda m: m.set_operand_symm_per_channel_quant_params(0, 0, [1.0]),
        lambda m: m.add_operation(Operation.RELU, [0], [1]),
        lambda m: m.identify_inputs_and_outputs([0], [1]),
        lambda m: m.relax_computation_float32_to_float16(True),
        lambda m: m.finish(),
    ],
)
def test_nothing_changes_a_finished_model(call: Callable[[nnapi.Model], None]) -> None:
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        call(chain(Operation.RELU))


@pytest.mark.parametrize(
    ("inputs", "outputs"), [([0, 0], [1]), ([0], [0]), ([0], [1, 1]), ([2], [1]), ([5], [1]), ([-1], [1])]
)
def test_inputs_and_outputs_are_listed_once(inputs: list[int], outputs: list[int]) -> None:
    b = Builder()
    add(b)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.identify_inputs_and_outputs(inputs, outputs)


def test_inputs_and_outputs_are_identified_once() -> None:
    b = Builder()
    x, y = add(b)
    b.model.identify_inputs_and_outputs([x], [y])
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.identify_inputs_and_outputs([x], [y])


@pytest.mark.parametrize(
    ("code", "kinds", "outputs"),
    [
        (Operation.ADD, [tensor(2), tensor(2)], [tensor(2)]),
        (Operation.ADD, [tensor(2), tensor(2), OperandType(T.FLOAT32)], [tensor(2)]),
        (Operation.ADD, [tensor(2), tensor(2, type=T.TENSOR_INT32), OperandType(T.INT32)], [tensor(2)]),
        (Operation.ADD, [tensor(2), tensor(2), OperandType(T.INT32)], [tensor(2, type=T.TENSOR_INT32)]),
        (Operation.ADD, [tensor(2), tensor(2), OperandType(T.INT32)], []),
        (Operation.ADD, [tensor(1, 1, 1, 1, 2), tensor(2), OperandType(T.INT32)], [tensor(2)]),
        (Operation.EXP, [tensor(2, type=T.TENSOR_INT32)], [tensor(2, type=T.TENSOR_INT32)]),
        (Operation.LOGICAL_NOT, [tensor(2)], [tensor(2)]),
    ],
)  # fmt: skip
def test_operations_that_operands_do_not_fit(
    code: Operation, kinds: list[OperandType], outputs: list[OperandType]
) -> None:
    b = Builder()
    ins, outs = [b.operand(kind) for kind in kinds], [b.operand(kind) for kind in outputs]
    with pytest.raises(nnapi.NnapiError) as refused:
        b.model.add_operation(code, ins, outs)
    assert refused.value.code is ResultCode.BAD_DATA
    assert refused.value.operation is code


@pytest.mark.parametrize("index", [-1, 3])
def test_operations_on_operands_that_are_not_there(index: int) -> None:
    b = Builder()
    add(b)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.add_operation(Operation.RELU, [index], [1])


def test_operations_are_sorted_the_last_ready_one_first() -> None:
    b = Builder()
    kind = tensor(2)
    x = b.operand(kind)
    late = b.operand(kind)
    first = b.operation(Operation.RELU, [late], kind)
    b.model.add_operation(Operation.TANH, [x], [late])
    other = b.operation(Operation.FLOOR, [x], kind)
    model = b.finish([x], [first, other])
    assert [one.code for one in model.operations] == [Operation.FLOOR, Operation.TANH, Operation.RELU]
    assert model.client_order == [2, 1, 0]


@pytest.mark.parametrize(
    ("model", "level"),
    [
        (lambda: chain(Operation.RELU), 1),
        (lambda: chain(Operation.SUB), 2),
        (lambda: chain(Operation.EXP), 3),
        (lambda: chain(Operation.RELU, dims=()), 3),
        (lambda: adding(tensor(2, type=T.TENSOR_FLOAT16)), 3),
        (lambda: adding(tensor(2, type=T.TENSOR_INT32)), 4),
        (lambda: choosing(tensor(2)), 4),
    ],
)
def test_the_level_that_a_model_takes(model: Callable[[], nnapi.Model], level: int) -> None:
    assert model().level is FeatureLevel.number(level)
    with override(feature_level=FeatureLevel.number(level)):
        model()
    if level > 1:
        with override(feature_level=FeatureLevel.number(level - 1)), pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            model()


def conv(*trailing: int) -> nnapi.Model:
    b = Builder()
    x = b.operand(tensor(1, 4, 4, 1))
    filter, bias = b.constant(np.ones((1, 2, 2, 1)), tensor(1, 2, 2, 1)), b.constant([0], tensor(1))
    scalars = [b.int32(value) for value in (2, 1, 1, 0)]  # VALID, strides, no activation
    tail = [b.constant(np.bool_(trailing[0]), OperandType(T.BOOL))] if trailing else []
    tail += [b.int32(value) for value in trailing[1:]]
    code = [x, filter, bias, *scalars, *tail]
    return b.finish([x], [b.operation(Operation.CONV_2D, code, tensor(0, 0, 0, 0))])


@pytest.mark.parametrize(
    ("trailing", "kept", "level"),
    [((), 7, 1), ((0,), 7, 1), ((0, 1, 1), 7, 1), ((0, 2, 1), 10, 3), ((1,), 8, 3), ((1, 1, 1), 8, 3)],
)
def test_trailing_defaults_are_dropped(trailing: tuple[int, ...], kept: int, level: int) -> None:
    model = conv(*trailing)
    assert len(model.operations[0].inputs) == kept
    assert model.level is FeatureLevel.number(level)


def test_control_flow_operands_must_fit() -> None:
    kind = tensor(2)
    inner = chain(Operation.RELU, dims=(2,))
    for bad in (
        [tensor(1), kind, kind],  # the condition is no truth value
        [condition(2), kind, kind],  # or more than one
        [condition(1), tensor(3), kind],
        [condition(1), kind, tensor(2, 1)],
    ):
        b = Builder()
        c, x, y = (b.operand(one) for one in bad)
        models = [b.operand(OperandType(T.MODEL)) for _ in range(2)]
        for index in models:
            b.model.set_operand_value_from_model(index, inner)
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            b.model.add_operation(Operation.IF, [c, *models, x], [y])


def test_control_flow_needs_its_models() -> None:
    b = Builder()
    c, x, y = b.operand(condition(1)), b.operand(tensor(2)), b.operand(tensor(2))
    models = [b.operand(OperandType(T.MODEL)) for _ in range(2)]
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.add_operation(Operation.IF, [c, *models, x], [y])


def test_loops_whose_parts_do_not_fit() -> None:
    b = Builder()
    loop = counting_to(3)
    condition_model = loop.operands[loop.operations[0].inputs[0]].model
    assert condition_model is not None
    x, y = b.operand(tensor(1)), b.operand(tensor(1))
    models = [b.operand(OperandType(T.MODEL)) for _ in range(2)]
    for index in models:
        b.model.set_operand_value_from_model(index, condition_model)  # the body gives a truth value
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.add_operation(Operation.WHILE, [*models, x], [y])


def test_errors_name_code_operation_and_operand() -> None:
    b = Builder()
    x = b.operand(tensor(2))
    with pytest.raises(nnapi.NnapiError) as refused:
        b.model.add_operation(Operation.LOGICAL_NOT, [x], [b.operand(tensor(2))])
    assert str(refused.value) == "BAD_DATA: LOGICAL_NOT: input 0 (x) is TENSOR_FLOAT32, not TENSOR_BOOL8"


def test_codes_that_are_none() -> None:
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA: type is 99"):
        OperandType(99)  # type: ignore[arg-type]
    b = Builder()
    x, y = add(b)
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA: code is 999"):
        b.model.add_operation(999, [x], [y])  # type: ignore[arg-type]
    with pytest.raises(nnapi.NnapiError, match="UNEXPECTED_NULL"):
        b.model.add_operand(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [one for one in T if one is not T.MODEL])
def test_main_types_that_decide_on_others(kind: Operand) -> None:
    """The type of a later operand says what the first one may be."""
    scale = 0.125 if kind.is_quantized and kind is not T.TENSOR_QUANT8_SYMM_PER_CHANNEL else 0.0
    out, roi = (
        OperandType(kind, [1, 4] if kind.is_tensor else [], scale),
        tensor(1, 2, type=T.TENSOR_QUANT16_ASYMM, scale=0.125),
    )
    uses = {
        Operation.FILL: ([tensor(1, type=T.TENSOR_INT32), OperandType(T.FLOAT32)], out, (T.TENSOR_FLOAT32,)),
        Operation.AXIS_ALIGNED_BBOX_TRANSFORM: (
            [roi, out, tensor(1, type=T.TENSOR_INT32), roi], roi, (T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED)
        ),
    }  # fmt: skip
    for code, (kinds, result, allowed) in uses.items():
        b = Builder()
        given = code, [b.operand(one) for one in kinds], [b.operand(result)]
        if kind in allowed:
            b.model.add_operation(*given)
            continue
        with pytest.raises(nnapi.NnapiError) as refused:
            b.model.add_operation(*given)
        assert refused.value.code is ResultCode.BAD_DATA


def test_codes_are_as_good_as_members() -> None:
    b = Builder()
    x, y = b.operand(tensor(2)), b.operand(tensor(2))
    b.model.add_operation(19, [x], [y])  # type: ignore[arg-type]
    assert b.model.operations[0].code is Operation.RELU
    c, wrong = b.operand(condition(1)), b.operand(tensor(7, type=T.TENSOR_INT32))
    models = [b.operand(OperandType(T.MODEL)) for _ in range(2)]
    for index in models:
        b.model.set_operand_value_from_model(index, chain(Operation.RELU, dims=(2,)))
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA: IF: branch input"):
        b.model.add_operation(96, [c, *models, wrong], [b.operand(tensor(2))])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "kinds", "out"),
    [
        (Operation.FLOOR, [tensor(2, 2, 2, 2, 1)], tensor(2, 2, 2, 2, 1)),
        (Operation.PACK, [OperandType(T.INT32), tensor(4, 5, 6), tensor(4, 5)], tensor(2, 4, 5, 6)),
        (Operation.PACK, [OperandType(T.INT32), tensor(4, 5, 6), tensor(4, 5, 6)], tensor(2, 4, 5)),
        (Operation.REVERSE, [tensor(4, 5, 6), tensor(1, type=T.TENSOR_INT32)], tensor(4, 5)),
        (Operation.REVERSE, [tensor(4, 5, 6), tensor(1, 1, type=T.TENSOR_INT32)], tensor(4, 5, 6)),
        (Operation.REVERSE, [tensor(4, 5, 6), tensor(2, type=T.TENSOR_INT32)], tensor(4, 5, 6)),
        (Operation.MIRROR_PAD, [tensor(4, 5), tensor(4, type=T.TENSOR_INT32), OperandType(T.INT32)], tensor(4, 5)),
        (Operation.MIRROR_PAD, [tensor(4, 5), tensor(2, 3, type=T.TENSOR_INT32), OperandType(T.INT32)], tensor(4, 5)),
        (Operation.MIRROR_PAD, [tensor(4, 5), tensor(3, 2, type=T.TENSOR_INT32), OperandType(T.INT32)], tensor(4, 5)),
        (Operation.MIRROR_PAD, [tensor(4, 5), tensor(2, 2, type=T.TENSOR_INT32), OperandType(T.INT32)], tensor(4)),
    ],
)
def test_ranks_that_do_not_go_together(code: Operation, kinds: list[OperandType], out: OperandType) -> None:
    b = Builder()
    ins = [b.operand(kind) for kind in kinds]
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        b.model.add_operation(code, ins, [b.operand(out)])
    open_kinds = [kind.with_dims(()) if kind.type.is_tensor else kind for kind in kinds]
    b.model.add_operation(code, [b.operand(kind) for kind in open_kinds], [b.operand(tensor())])


def test_operations_of_a_maker() -> None:
    """They can be described, and compile where a driver knows them."""
    b = Builder()
    x, y, scalar = b.operand(tensor(2)), b.operand(tensor(2)), b.operand(OperandType(T.OEM_SCALAR))
    b.model.set_operand_value(scalar, np.arange(10, dtype=np.uint8))
    b.model.add_operation(Operation.OEM_OPERATION, [x, scalar], [y])
    model = b.finish([x], [y])
    with nnapi.registered(device("npu")), pytest.raises(nnapi.NnapiError, match="BAD_DATA: OEM_OPERATION: no device"):
        compiled(model)
    with override(partition=PartitioningMode.OFF), pytest.raises(nnapi.NnapiError, match="OP_FAILED: OEM_OPERATION"):
        run(compiled(model), np.zeros(2, np.float32))
