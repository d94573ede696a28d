"""Operations for LiteRT with operands of each type: at least one case for each type that a translation takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import ortconv.tflite.translate  # noqa: F401  enters the translations
from ortconv.ir.tensor import Array
from ortconv.nnapi import Operand, OperandType, Operation
from ortconv.nnapi.operations import row_of
from ortconv.tflite.table import TRANSLATIONS

F, H, I, B = Operand.TENSOR_FLOAT32, Operand.TENSOR_FLOAT16, Operand.TENSOR_INT32, Operand.TENSOR_BOOL8  # noqa: E741
Q, S = Operand.TENSOR_QUANT8_ASYMM, Operand.TENSOR_QUANT8_ASYMM_SIGNED
P = Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL


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


RANGE = {O.LOGISTIC: (256, 0), O.SOFTMAX: (256, 0), O.TANH: (128, 128), O.L2_NORMALIZATION: (128, 128)}
"""The fixed quantization of results: steps to 1, and the zero point of uint8."""


def fixed(code: Operation, kind: OperandType) -> OperandType:
    """The type of a result that has the dimensions of `kind`, and the quantization that the operation fixes."""
    steps, zero = RANGE[code]
    return (
        kind
        if kind.type not in (Q, S)
        else t(kind.type, *kind.dims, scale=1 / steps, zero_point=zero - 128 * (kind.type is S))
    )


def table(*rows: Sequence[int]) -> Const:
    return Const(OperandType(I, (len(rows), len(rows[0]))), np.array(rows, np.int32))


Made = tuple[Sequence[Given], OperandType]


def _product(k: Operand, *dims: int) -> OperandType:
    """The result of a product, with a scale that the sums of 8 bits need."""
    return t(k, *dims, scale=3.0)


def _same(k: Operand, *more: Given) -> Made:
    x = t(k, 1, 6, 6, 4)
    return [x, *more], x


def _fixed(code: Operation, *more: Given) -> Callable[[Operand], Made]:
    return lambda k: ([t(k, 2, 6), *more], fixed(code, t(k, 2, 6)))


def _compares(k: Operand) -> Made:
    return [t(k, 2, 3), t(k, 3)], OperandType(B, (2, 3))


def _reduces(k: Operand) -> Made:
    return [t(k, 2, 6, 3), ints(1), False], t(k, 2, 3)


NUMBER = {F: 0.5, H: 0.5, I: 2, Q: 123, S: -3}
MORE: dict[Operation, Callable[[Operand], Made]] = {
    **dict.fromkeys((O.EQUAL, O.NOT_EQUAL, O.GREATER, O.GREATER_EQUAL, O.LESS, O.LESS_EQUAL), _compares),
    **dict.fromkeys((O.ABS, O.NEG, O.RELU, O.RELU1, O.RELU6, O.LOGICAL_NOT), _same),
    **dict.fromkeys((O.REDUCE_ALL, O.REDUCE_ANY, O.REDUCE_SUM, O.REDUCE_PROD, O.REDUCE_MAX, O.REDUCE_MIN), _reduces),
    **{
        code: (lambda k: ([t(k, 2, 3), t(k, 3)], t(k, 2, 3)))
        for code in (O.MAXIMUM, O.MINIMUM, O.LOGICAL_AND, O.LOGICAL_OR)
    },
    O.DIV: lambda k: ([t(k, 2, 3), ints(2, -3, 4) if k is I else t(k, 3), 0], t(k, 2, 3)),
    O.POW: lambda k: ([t(k, 2, 3), t(k, 3)], t(k, 2, 3)),
    O.SELECT: lambda k: ([t(B, 2, 3), t(k, 2, 3), t(k, 2, 3)], t(k, 2, 3)),
    O.HARD_SWISH: lambda k: ([t(k, 2, 6, scale=0.05)], t(k, 2, 6, scale=0.04)),
    O.LOGISTIC: _fixed(O.LOGISTIC),
    O.TANH: _fixed(O.TANH),
    O.SOFTMAX: _fixed(O.SOFTMAX, 0.25),
    O.L2_NORMALIZATION: _fixed(O.L2_NORMALIZATION, 1),
    O.LOG_SOFTMAX: lambda k: ([t(k, 2, 6), 1.0, 1], t(k, 2, 6)),
    O.ELU: lambda k: ([t(k, 2, 6), 1.0], t(k, 2, 6)),
    O.QUANTIZE: lambda k: ([t(k, 2, 3)], t(S, 2, 3, scale=0.01)),
    O.DEQUANTIZE: lambda k: ([t(k, 2, 3)], t(F, 2, 3)),
    O.CAST: lambda k: ([t(k, 2, 3)], t(F if k is I else I, 2, 3)),
    O.GROUPED_CONV_2D: lambda k: (
        [t(k, 1, 6, 6, 4), weights(k, 6, 3, 3, 2), bias(k, 6), 1, 2, 2, 2, 1, False],
        _product(k, 1, 3, 3, 6),
    ),
    O.TRANSPOSE_CONV_2D: lambda k: (
        [t(k, 1, 3, 3, 4), weights(k, 2, 3, 3, 4), bias(k, 2), ints(1, 6, 6, 2), 1, 2, 2, 1, False],
        _product(k, 1, 6, 6, 2),
    ),
    O.BATCH_MATMUL: lambda k: ([t(k, 2, 3, 5), t(k, 2, 4, 5), False, True], t(k, 2, 3, 4, scale=90.0)),
    O.L2_POOL_2D: lambda k: ([t(k, 1, 6, 6, 4), 2, 2, 2, 2, 2, 0], t(k, 1, 3, 3, 4)),
    O.RESIZE_BILINEAR: lambda k: ([t(k, 1, 4, 4, 2), 7, 9, False, False, True], t(k, 1, 9, 7, 2)),
    O.SPACE_TO_DEPTH: lambda k: ([t(k, 1, 6, 6, 2), 2, False], t(k, 1, 3, 3, 8)),
    O.BATCH_TO_SPACE_ND: lambda k: ([t(k, 4, 3, 3, 2), ints(2, 2)], t(k, 1, 6, 6, 2)),
    O.SPACE_TO_BATCH_ND: lambda k: ([t(k, 1, 5, 6, 2), ints(2, 2), table((0, 1), (0, 0))], t(k, 4, 3, 3, 2)),
    O.RESHAPE: lambda k: ([t(k, 2, 6), ints(3, -1)], t(k, 3, 4)),
    O.SQUEEZE: lambda k: ([t(k, 2, 1, 6), ints(1)], t(k, 2, 6)),
    O.EXPAND_DIMS: lambda k: ([t(k, 2, 6), 1], t(k, 2, 1, 6)),
    O.TRANSPOSE: lambda k: ([t(k, 2, 6), ints(1, 0)], t(k, 6, 2)),
    O.CONCATENATION: lambda k: ([t(k, 2, 6), t(k, 1, 6), 0], t(k, 3, 6)),
    O.PACK: lambda k: ([1, t(k, 2, 3), t(k, 2, 3)], t(k, 2, 2, 3)),
    O.SPLIT: lambda k: ([t(k, 1, 6), 1, 1], t(k, 1, 6)),
    O.SLICE: lambda k: ([t(k, 2, 6), ints(0, 1), ints(2, -1)], t(k, 2, 5)),
    O.STRIDED_SLICE: lambda k: ([t(k, 3, 6), ints(0, 5), ints(3, 0), ints(2, -2), 0, 2, 0], t(k, 2, 3)),
    O.REVERSE: lambda k: ([t(k, 3, 6), ints(1)], t(k, 3, 6)),
    O.TILE: lambda k: ([t(k, 2, 3), ints(2, 3)], t(k, 4, 9)),
    O.GATHER: lambda k: ([t(k, 3, 4), 0, ints(2, 0)], t(k, 2, 4)),
    O.EMBEDDING_LOOKUP: lambda k: ([t(I, 2), weights(k, 9, 4)], weights(k, 9, 4).kind.with_dims((2, 4))),
    O.PAD: lambda k: ([t(k, 2, 3), table((1, 0), (0, 2))], t(k, 3, 5)),
    O.PAD_V2: lambda k: ([t(k, 2, 3), table((1, 0), (0, 2)), NUMBER[k]], t(k, 3, 5)),
    O.MIRROR_PAD: lambda k: ([t(k, 4, 4), table((1, 0), (2, 3)), 0], t(k, 5, 9)),
    O.FILL: lambda k: ([ints(2, 3), NUMBER[k]], t(k, 2, 3)),
    O.ARGMAX: lambda k: ([t(k, 2, 6), 1], t(I, 2)),
    O.ARGMIN: lambda k: ([t(k, 2, 6), 0], t(I, 6)),
    O.LOCAL_RESPONSE_NORMALIZATION: lambda k: ([t(k, 1, 3, 3, 6), 1, 2.0, 0.5, 0.75], t(k, 1, 3, 3, 6)),
}
"""The inputs and the output of operations of a main type."""


for code, make in MORE.items():
    for k in sorted(TRANSLATIONS[code].types & (row_of(code).types.keys() or TRANSLATIONS[code].types)):
        given, made = make(k)
        case(f"{code.name.lower()}-of-{k.name.removeprefix('TENSOR_').lower()}", code, given, made)
