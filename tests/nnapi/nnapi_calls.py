"""One NNAPI operation at a time, for tests."""

from __future__ import annotations

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operand, Operation
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.operand import ChannelQuant, OperandType, Tensor
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.running import run_operation

F, H, I = Operand.TENSOR_FLOAT32, Operand.TENSOR_FLOAT16, Operand.TENSOR_INT32  # noqa: E741
Q, S = Operand.TENSOR_QUANT8_ASYMM, Operand.TENSOR_QUANT8_ASYMM_SIGNED
OMITTED = OperandType(F)

Given = OperandType | Array | bool | int | float
"""A tensor, an array of one of ARRAYS, a scalar, or an OperandType without values for an omitted operand."""

ARRAYS = {"float32": F, "float16": H, "int32": I}


def numbers(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *dims]).standard_normal(dims).astype(np.float32)


def quantized(array: Array, scale: float, zero_point: int = 0, kind: Operand = Q) -> Tensor:
    """Elements of a quantized type, as they are."""
    return Tensor(OperandType(kind, array.shape, scale, zero_point), np.asarray(array, kind.dtype))


def bytes_of(*dims: int, scale: float, zero_point: int, kind: Operand = Q, seed: int = 0) -> Tensor:
    low, high = OperandType(kind).limits
    elements = np.random.default_rng([seed, *dims]).integers(low, high, dims, endpoint=True)
    return quantized(elements, scale, zero_point, kind)


def per_channel(array: Array, dim: int, scales: Array) -> Tensor:
    kind = Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL
    quant = ChannelQuant(dim, tuple(map(float, scales)))
    return Tensor(OperandType(kind, array.shape, channel_quant=quant), np.asarray(array, np.int8))


def bias(values: Array, scale: float = 0.0) -> Tensor:
    return Tensor(OperandType(I, values.shape, scale), np.asarray(values, np.int32))


def operand(given: Given) -> OperandType:
    if isinstance(given, OperandType):
        return given
    if isinstance(given, bool):
        return Tensor(OperandType(Operand.BOOL), np.array(given))
    if isinstance(given, int):
        return Tensor(OperandType(Operand.INT32), np.array(given, np.int32))
    if isinstance(given, float):
        return Tensor(OperandType(Operand.FLOAT32), np.array(given, np.float32))
    return Tensor(OperandType(ARRAYS[given.dtype.name], given.shape), given)


def level_of(code: Operation, *inputs: Given, out: OperandType | tuple[OperandType, ...]) -> FeatureLevel:
    """The feature level that a use takes. NnapiError if it is no use."""
    outputs = (out,) if isinstance(out, OperandType) else out
    return row_of(code).validate([operand(one) for one in inputs], outputs).level


def compute(code: Operation, *inputs: Given, out: OperandType | tuple[OperandType, ...]) -> list[Array]:
    """The results, validated and computed as the reference device does. Output types may leave dimensions open."""
    outputs = (out,) if isinstance(out, OperandType) else out
    given = [operand(one) for one in inputs]
    use = row_of(code).validate(given, outputs)
    one = ModelOperation(code, tuple(range(len(given))), tuple(range(len(outputs))), use.level, use)
    values = [x if isinstance(x, Tensor) else None for x in given]
    return [result.array for result in run_operation(one, values, outputs)]


def outs(count: int) -> tuple[OperandType, ...]:
    """The types of float32 outputs, `count` of them."""
    return (OperandType(F),) * count


def close(got: Array, want: Array) -> None:
    """Assert that results are equal, but for rounding."""
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
