"""Each operation in LiteRT, held against the NNAPI runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ortconv import nnapi
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.tflite.translate import refused, translate
from ortconv.tflite.writer import serialize

F, H, I, B = Operand.TENSOR_FLOAT32, Operand.TENSOR_FLOAT16, Operand.TENSOR_INT32, Operand.TENSOR_BOOL8  # noqa: E741
Q, S = Operand.TENSOR_QUANT8_ASYMM, Operand.TENSOR_QUANT8_ASYMM_SIGNED
P = Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL
ROUNDS_DIFFERENTLY = {(Operation.MEAN, Q), (Operation.MEAN, S), (Operation.AVERAGE_POOL_2D, S)}
"""Operations whose quantized results may be one step off: LiteRT rounds means in another way."""


@dataclass(frozen=True)
class Const:
    """A constant tensor; `scales` for one of each channel of a dimension."""

    kind: OperandType
    array: Array
    scales: tuple[int, tuple[float, ...]] | None = None


Given = OperandType | Const | int | float | bool


def t(kind: Operand, *dims: int, scale: float = 0.5, zero_point: int | None = None) -> OperandType:
    if kind not in (Q, S):
        return OperandType(kind, dims)
    return OperandType(kind, dims, scale, (120 if kind is Q else -8) if zero_point is None else zero_point)


def ints(*values: int) -> Const:
    return Const(OperandType(I, (len(values),)), np.array(values, np.int32))


def drawn(kind: OperandType, rng: np.random.Generator) -> Array:
    dtype = kind.type.dtype
    if kind.type is B:
        return rng.integers(0, 2, kind.dims).astype(dtype)
    if kind.type in (Q, S):
        return rng.integers(*kind.limits, kind.dims, endpoint=True).astype(dtype)
    if kind.type is I:
        return rng.integers(1, 9, kind.dims).astype(dtype)
    return (rng.random(kind.dims) + 0.25).astype(dtype)


def weights(kind: Operand, *dims: int) -> Const:
    rng = np.random.default_rng(3)
    if kind is P:
        scales = tuple(0.01 * (i + 1) for i in range(dims[0]))
        return Const(OperandType(P, dims), rng.integers(-127, 128, dims).astype(np.int8), (0, scales))
    described = t(kind, *dims, scale=0.02, zero_point=130 if kind is Q else 0)
    return Const(described, drawn(described, rng) if kind in (Q, S) else (rng.random(dims) - 0.5).astype(kind.dtype))


def bias(kind: Operand, size: int, scale: float = 0.01) -> Const:
    if kind in (Q, S):
        return Const(OperandType(I, (size,), scale), np.arange(size, dtype=np.int32) * 50)
    return Const(OperandType(kind, (size,)), np.arange(size).astype(kind.dtype))


Case = tuple[str, Operation, Sequence[Given], Sequence[OperandType]]
CASES: list[Case] = []


def case(name: str, code: Operation, inputs: Sequence[Given], *outputs: OperandType) -> None:
    CASES.append((name, code, inputs, outputs))


for k in (F, H, Q, S):
    n, O = k.name.removeprefix("TENSOR_").lower(), Operation  # noqa: E741
    x = t(k, 1, 6, 6, 4)
    coarse = t(k, 1, 6, 6, 4, scale=90.0)
    case(f"add-{n}", O.ADD, [x, t(k, 4), 0], t(k, 1, 6, 6, 4, scale=0.9))
    case(f"sub-relu-{n}", O.SUB, [x, x, 1], t(k, 1, 6, 6, 4, scale=0.9))
    case(f"mul-{n}", O.MUL, [x, t(k, 1, 1, 1, 4), 0], coarse)
    case(f"maximum-{n}", O.MAXIMUM, [x, x], x)
    case(f"relu6-{n}", O.RELU6, [x], x)
    case(f"prelu-{n}", O.PRELU, [x, t(k, 4)], coarse)
    case(f"max-pool-{n}", O.MAX_POOL_2D, [x, 1, 2, 2, 3, 3, 0], t(k, 1, 3, 3, 4))
    case(f"max-pool-explicit-{n}", O.MAX_POOL_2D, [x, 1, 0, 1, 0, 2, 2, 2, 2, 0], t(k, 1, 3, 3, 4))
    case(f"average-pool-{n}", O.AVERAGE_POOL_2D, [x, 2, 2, 2, 2, 2, 0], t(k, 1, 3, 3, 4))
    case(f"concat-{n}", O.CONCATENATION, [x, x, 3], t(k, 1, 6, 6, 8))
    case(f"reshape-{n}", O.RESHAPE, [x, ints(-1, 4)], t(k, 36, 4))
    case(f"transpose-{n}", O.TRANSPOSE, [x, ints(0, 3, 1, 2)], t(k, 1, 4, 6, 6))
    case(f"squeeze-{n}", O.SQUEEZE, [x, ints(0)], t(k, 6, 6, 4))
    case(
        f"pad-{n}", O.PAD, [t(k, 3, 4), Const(OperandType(I, (2, 2)), np.array([[1, 0], [0, 2]], np.int32))], t(k, 4, 6)
    )
    case(f"slice-{n}", O.SLICE, [x, ints(0, 1, 0, 0), ints(1, 2, 3, 4)], t(k, 1, 2, 3, 4))
    case(f"split-{n}", O.SPLIT, [x, 3, 2], t(k, 1, 6, 6, 2), t(k, 1, 6, 6, 2))
    case(f"gather-{n}", O.GATHER, [x, 1, ints(5, 0)], t(k, 1, 2, 6, 4))
    case(f"mean-{n}", O.MEAN, [x, ints(1, 2), 1], t(k, 1, 1, 1, 4))
    case(f"argmax-{n}", O.ARGMAX, [x, -1], OperandType(I, (1, 6, 6)))
    case(f"less-{n}", O.LESS, [x, x], OperandType(B, (1, 6, 6, 4)))
    case(f"nearest-{n}", O.RESIZE_NEAREST_NEIGHBOR, [x, 9, 12, False], t(k, 1, 12, 9, 4))
    case(f"depth-to-space-{n}", O.DEPTH_TO_SPACE, [x, 2], t(k, 1, 12, 12, 1))
    case(f"shuffle-{n}", O.CHANNEL_SHUFFLE, [x, 2, 3], x)
    case(f"conv-{n}", O.CONV_2D, [x, weights(k, 3, 3, 3, 4), bias(k, 3), 1, 2, 2, 1], t(k, 1, 3, 3, 3, scale=3.0))
    case(
        f"conv-explicit-{n}", O.CONV_2D, [x, weights(k, 3, 3, 3, 4), bias(k, 3), 0, 1, 1, 0, 1, 1, 0],
        t(k, 1, 5, 5, 3, scale=3.0),
    )  # fmt: skip
    case(
        f"depthwise-{n}",
        O.DEPTHWISE_CONV_2D,
        [x, weights(k, 1, 3, 3, 4), bias(k, 4), 2, 1, 1, 1, 0],
        t(k, 1, 4, 4, 4, scale=2.0),
    )
    case(f"dense-{n}", O.FULLY_CONNECTED, [t(k, 2, 8), weights(k, 5, 8), bias(k, 5), 0], t(k, 2, 5, scale=2.0))
for k in (Q, S):
    x = t(k, 1, 6, 6, 4)
    case(
        f"conv-channels-{k.name}",
        O.CONV_2D,
        [x, weights(P, 3, 3, 3, 4), bias(k, 3, 0.0), 1, 1, 1, 0],
        t(k, 1, 6, 6, 3, scale=3.0),
    )
for k in (F, H):
    x, n = t(k, 1, 6, 6, 4), k.name.lower()
    for op in (O.EXP, O.LOG, O.SIN, O.SQRT, O.ABS, O.NEG, O.FLOOR, O.RSQRT, O.LOGISTIC, O.TANH, O.HARD_SWISH):
        case(f"{op.name.lower()}-{n}", op, [x], x)
    case(f"average-pool-explicit-{n}", O.AVERAGE_POOL_2D, [x, 1, 0, 1, 0, 2, 2, 2, 2, 0], t(k, 1, 3, 3, 4))
for code in (O.ADD, O.SUB, O.MUL):
    case(f"{code.name.lower()}-int32", code, [t(I, 2, 3), t(I, 3), 0], t(I, 2, 3))
case("softmax-axis", O.SOFTMAX, [t(F, 2, 5, 3), 0.7, 1], t(F, 2, 5, 3))
case("pow", O.POW, [t(F, 2, 3), t(F, 3)], t(F, 2, 3))
case("div", O.DIV, [t(F, 2, 3), t(F, 3), 3], t(F, 2, 3))
case("reduce-to-number", O.REDUCE_SUM, [t(F, 2, 3), ints(0, 1), False], t(F, 1))
case("quantize", O.QUANTIZE, [t(F, 2, 3)], t(Q, 2, 3, scale=0.01, zero_point=7))
case("dequantize", O.DEQUANTIZE, [t(S, 2, 3)], t(F, 2, 3))
case("cast", O.CAST, [t(F, 2, 3)], t(I, 2, 3))
case("select", O.SELECT, [t(B, 2, 3), t(F, 2, 3), t(F, 2, 3)], t(F, 2, 3))
case("bilinear", O.RESIZE_BILINEAR, [t(F, 1, 4, 4, 2), 7, 9, False, False, True], t(F, 1, 9, 7, 2))
case("dynamic", O.ADD, [t(F, 0, 3), t(F, 3), 0], t(F, 0, 3))


def built(code: Operation, inputs: Sequence[Given], outputs: Sequence[OperandType]) -> nnapi.Model:
    model, fed = nnapi.Model(), []
    indexes = []
    half = any(isinstance(one, OperandType) and one.type is H for one in inputs)
    for one in inputs:
        if isinstance(one, OperandType):
            indexes.append(model.add_operand(one))
            fed.append(indexes[-1])
            continue
        if isinstance(one, Const):
            kind, value = one.kind, one.array
        else:
            scalar = (
                Operand.BOOL if isinstance(one, bool) else Operand.INT32 if isinstance(one, int) else Operand.FLOAT32
            )
            kind = OperandType(Operand.FLOAT16 if half and scalar is Operand.FLOAT32 else scalar)
            value = np.array(one, kind.type.dtype)
        indexes.append(model.add_operand(kind))
        if isinstance(one, Const) and one.scales is not None:
            model.set_operand_symm_per_channel_quant_params(indexes[-1], *one.scales)
        model.set_operand_value(indexes[-1], value)
    made = [model.add_operand(kind) for kind in outputs]
    model.add_operation(code, indexes, made)
    model.identify_inputs_and_outputs(fed, made)
    model.finish()
    return model


def on_nnapi(model: nnapi.Model, feeds: Sequence[Array], rooms: Sequence[Array]) -> None:
    compilation = nnapi.Compilation(model, [nnapi.get_device("nnapi-reference")])
    compilation.finish()
    with nnapi.Execution(compilation) as execution:
        for i, feed in enumerate(feeds):
            execution.set_input(i, feed)
        for i, room in enumerate(rooms):
            execution.set_output(i, room)
        execution.compute()


@pytest.mark.parametrize(("name", "code", "inputs", "outputs"), CASES, ids=[c[0] for c in CASES])
def test_litert_computes_what_nnapi_computes(
    name: str, code: Operation, inputs: Sequence[Given], outputs: Sequence[OperandType]
) -> None:
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    from ortconv.backends.litert.runtime import LiteRtModel

    model = built(code, inputs, outputs)
    made = translate(model, {}, [f"x{i}" for i in model.inputs], [f"y{i}" for i in model.outputs])
    content = b"".join(serialize(made))
    settings = "" if code is Operation.DEPTH_TO_SPACE else "reference"  # its plain kernels lack version 2 of that one
    loaded = LiteRtModel(made, content, settings)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        feeds = [drawn(kind.with_dims([d or 5 for d in kind.dims]), rng) for kind in model.input_types]
        results = loaded.run([a.astype(bool) if k.type is B else a for a, k in zip(feeds, model.input_types)])
        rooms = [np.empty(one.shape, kind.type.dtype) for one, kind in zip(results, outputs)]
        on_nnapi(model, feeds, rooms)
        for got, want, kind in zip(results, rooms, outputs):
            if kind.type in (F, H):
                np.testing.assert_allclose(got, want, *((2e-3, 2e-3) if kind.type is H else (2e-5, 2e-5)))
            else:
                steps = np.abs(got.astype(int) - want.astype(int)).max()
                assert steps <= ((code, kind.type) in ROUNDS_DIFFERENTLY)


def test_the_kinds_of_cases() -> None:
    assert len(CASES) >= 80
    assert len({name for name, *_ in CASES}) == len(CASES)


REFUSALS: list[tuple[str, Callable[[], nnapi.Model]]] = [
    ("the last", lambda: built(Operation.TOPK_V2, [t(F, 2, 5), 2], [t(F, 2, 2), t(I, 2, 2)])),
    ("alpha 1", lambda: built(Operation.ELU, [t(F, 2, 5), 2.0], [t(F, 2, 5)])),
    ("NHWC", lambda: built(Operation.DEPTH_TO_SPACE, [t(F, 1, 4, 2, 2), 2, True], [t(F, 1, 1, 4, 4)])),
    ("one quantization", lambda: built(Operation.MAXIMUM, [t(Q, 2, scale=0.1), t(Q, 2)], [t(Q, 2)])),
    ("counts the padding", lambda: built(Operation.AVERAGE_POOL_2D, [t(Q, 1, 6, 6, 4), 1, 0, 1, 0, 2, 2, 2, 2, 0],
                                         [t(Q, 1, 3, 3, 4)])),
    ("must be constant", lambda: built(Operation.DIV, [t(I, 2), t(I, 2), 0], [t(I, 2)])),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "make"), REFUSALS, ids=[r for r, _ in REFUSALS])
def test_refusals(reason: str, make: Callable[[], nnapi.Model]) -> None:
    found = refused(make())
    assert [reason in text for _, text in found] == [True]
