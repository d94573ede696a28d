"""Scales and zero points: what the API's documentation does not allow passes the model, and fails on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from nnapi_calls import F, Given, I, Q, S, bias, compute, level_of, numbers, per_channel, quantized
from nnapi_models import Builder, compiled, device, run, tensor

from ortconv import nnapi
from ortconv.nnapi import FeatureLevel, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.operand import Tensor
from ortconv.nnapi.operations import row_of
from tests.batches import batched

BOXES = OperandType(Operand.TENSOR_QUANT16_ASYMM, (1, 4), 0.25, 0)
ZERO = np.zeros(1, np.int32)


def codes(*dims: int, scale: float = 0.5, zero_point: int = 3, kind: Operand = Q) -> Tensor:
    return quantized(np.zeros(dims), scale, zero_point, kind)


def like(x: OperandType, scale: float | None = None, zero_point: int | None = None) -> OperandType:
    """The type of an output with other parameters than x, and open dimensions."""
    scale = x.scale if scale is None else scale
    return OperandType(x.type, (), scale, x.zero_point if zero_point is None else zero_point)


def boxes() -> Tensor:
    return Tensor(BOXES, np.array([[0, 0, 8, 8]], np.uint16))


def convolution(code: Operation, groups: tuple[int, ...] = ()) -> tuple[Operation, list[Given], OperandType]:
    """With a bias whose scale is not the product of the others'."""
    x, out = codes(1, 2, 2, 1), like(codes(), 1.0)
    tail: list[Given] = [1, 1, 1, *groups, 0]
    tail += [False] if code in (Operation.GROUPED_CONV_2D, Operation.TRANSPOSE_CONV_2D) else []
    head: list[Given] = [x, codes(1, 1, 1, 1), bias(ZERO, 0.3)]
    head += [np.array([1, 2, 2, 1], np.int32)] if code is Operation.TRANSPOSE_CONV_2D else []
    return code, [*head, *tail], out


X, SIGNED = codes(1, 2, 2, 4), codes(1, 2, 2, 4, kind=S)
LATE: dict[str, tuple[Operation, list[Given], OperandType | tuple[OperandType, ...]]] = {
    "CONV_2D": convolution(Operation.CONV_2D),
    "DEPTHWISE_CONV_2D": convolution(Operation.DEPTHWISE_CONV_2D, (1,)),
    "GROUPED_CONV_2D": convolution(Operation.GROUPED_CONV_2D, (1,)),
    "TRANSPOSE_CONV_2D": convolution(Operation.TRANSPOSE_CONV_2D),
    "FULLY_CONNECTED": (Operation.FULLY_CONNECTED, [codes(1, 2), codes(1, 2), bias(ZERO, 0.3), 0], like(X, 1.0)),
    "TANH": (Operation.TANH, [X], like(X, 1 / 256, 0)),
    "TANH, signed": (Operation.TANH, [SIGNED], like(SIGNED, 1 / 128, 1)),
    "LOGISTIC": (Operation.LOGISTIC, [X], like(X, 1 / 128, 0)),
    "SOFTMAX": (Operation.SOFTMAX, [X, 1.0], like(X, 1 / 256, 1)),
    "SOFTMAX, signed": (Operation.SOFTMAX, [SIGNED, 1.0], like(SIGNED, 1 / 256, 0)),
    "L2_NORMALIZATION": (Operation.L2_NORMALIZATION, [X], like(X, 1 / 128, 127)),
    "ROI_ALIGN": (Operation.ROI_ALIGN, [X, boxes(), ZERO, 1, 1, 1.0, 1.0, 1, 1, False], like(X)),
    "ROI_POOLING": (Operation.ROI_POOLING, [X, boxes(), ZERO, 1, 1, 1.0, 1.0, False], like(X)),
    "HEATMAP_MAX_KEYPOINT": (Operation.HEATMAP_MAX_KEYPOINT, [X, boxes(), False], (like(X), like(BOXES))),
    "AXIS_ALIGNED_BBOX_TRANSFORM": (
        Operation.AXIS_ALIGNED_BBOX_TRANSFORM,
        [boxes(), codes(1, 4), ZERO, Tensor(BOXES, np.full((1, 2), 64, np.uint16))], like(BOXES),
    ),
    "BOX_WITH_NMS_LIMIT": (
        Operation.BOX_WITH_NMS_LIMIT, [codes(1, 1), boxes(), ZERO, 0.1, -1, 0, 0.5, 0.5, 0.1],
        (like(X), like(BOXES), OperandType(I), OperandType(I)),
    ),
    "GENERATE_PROPOSALS": (
        Operation.GENERATE_PROPOSALS,
        [
            codes(1, 1, 1, 1), codes(1, 1, 1, 4), quantized(np.zeros((1, 4)), 0.125, 0, Operand.TENSOR_QUANT16_SYMM),
            Tensor(BOXES, np.full((1, 2), 64, np.uint16)), 1.0, 1.0, 1, 1, 0.5, 0.0, False,
        ],
        (like(X), like(BOXES), OperandType(I)),
    ),
    "RELU": (Operation.RELU, [X], like(X, 0.25)),
    "MAX_POOL_2D": (Operation.MAX_POOL_2D, [X, 2, 1, 1, 1, 1, 0], like(X, zero_point=4)),
    "RESHAPE": (Operation.RESHAPE, [X, np.array([16], np.int32)], like(X, 0.25)),
    "TOPK_V2": (Operation.TOPK_V2, [X, 1], (like(X, 0.25), OperandType(I))),
    "HASHTABLE_LOOKUP": (
        Operation.HASHTABLE_LOOKUP, [ZERO, ZERO, numbers(1, 2)], (OperandType(F), OperandType(Q, (), 0.5, 0)),
    ),
}  # fmt: skip


@batched
@pytest.mark.parametrize("name", LATE)
def test_the_cpu_fails(name: str) -> None:
    code, inputs, out = LATE[name]
    level_of(code, *inputs, out=out)
    with pytest.raises(nnapi.NnapiError, match=r"scale|quantization") as failed:
        compute(code, *inputs, out=out)
    assert failed.value.code is ResultCode.OP_FAILED
    assert failed.value.operation is code


EARLY: dict[str, tuple[Operation, list[Given], OperandType]] = {
    "MUL": (Operation.MUL, [X, X, 0], like(X, 0.25)),
    "PACK": (Operation.PACK, [0, X, codes(1, 2, 2, 4, scale=0.25)], like(X)),
    "REVERSE": (Operation.REVERSE, [X, ZERO], like(X, 0.25)),
    "MIRROR_PAD": (Operation.MIRROR_PAD, [X, np.zeros((4, 2), np.int32), 0], like(X, zero_point=4)),
}


@batched
@pytest.mark.parametrize("name", EARLY)
def test_what_android_refuses_while_building(name: str) -> None:
    code, inputs, out = EARLY[name]
    with pytest.raises(nnapi.NnapiError) as refused:
        level_of(code, *inputs, out=out)
    assert refused.value.code is ResultCode.BAD_DATA


def tanh(scale: float) -> nnapi.Model:
    b = Builder()
    x = b.operand(tensor(4, type=Q, scale=0.5, zero_point=3))
    return b.finish([x], [b.operation(Operation.TANH, [x], tensor(4, type=Q, scale=scale, zero_point=128))])


def test_the_model_notes_it() -> None:
    assert tanh(1 / 128).warnings == []
    (warning,) = tanh(1 / 256).warnings
    assert "operation 0 (TANH): out must have scale 0.0078125" in warning


def test_the_cpu_does_not_run_it() -> None:
    with pytest.raises(nnapi.NnapiError, match="OP_FAILED: TANH"):
        run(compiled(tanh(1 / 256)), np.zeros(4, np.uint8))


class Anyhow(nnapi.PreparedModel):
    def execute(self, *_: object) -> tuple[list[nnapi.Tensor], nnapi.Timing]:
        kind = OperandType(Q, (4,), 1 / 256, 128)
        return [nnapi.Tensor(kind, np.full(4, 7, np.uint8))], nnapi.Timing()


class Tolerant(nnapi.Device):
    """A driver that computes in any scale."""

    name, version, type, level = "tolerant", "1", nnapi.DeviceType.GPU, FeatureLevel.LEVEL_8
    capabilities = nnapi.Capabilities.uniform(nnapi.Performance(0.5, 0.5))

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        return [True] * len(model.operations)

    def prepare(self, model: nnapi.Model, options: nnapi.PrepareOptions) -> nnapi.PreparedModel:
        return Anyhow()


@pytest.fixture
def tolerant() -> Iterator[nnapi.Device]:
    with nnapi.registered(Tolerant()):
        yield nnapi.get_device("tolerant")


def test_a_driver_may(tolerant: nnapi.Device) -> None:
    assert run(compiled(tanh(1 / 256), [tolerant]), np.zeros(4, np.uint8)).tolist() == [7, 7, 7, 7]


def test_a_simulated_device_fails_as_the_cpu_does() -> None:
    with nnapi.registered(device("npu")), pytest.raises(nnapi.NnapiError, match="OP_FAILED: TANH"):
        run(compiled(tanh(1 / 256)), np.zeros(4, np.uint8))


@pytest.mark.parametrize(
    ("code", "inputs"),
    [
        (Operation.GATHER, [0, np.array([1], np.int32)]),
        (Operation.SLICE, [np.array([1], np.int32), np.array([1], np.int32)]),
    ],
)
def test_what_the_cpu_copies_as_it_is(code: Operation, inputs: list[Given]) -> None:
    """Android's CPU takes the parameters that the output declares, and the bytes of the input."""
    x = quantized(np.array([3, 5]), 0.5, 3)
    assert compute(code, x, *inputs, out=like(x, 0.25))[0].tolist() == [5]


def test_a_bias_for_channels_is_only_advised_to_have_no_scale() -> None:
    """Android's CPU does not look at it."""
    x, filter = codes(1, 1, 1, 1), per_channel(np.ones((2, 1, 1, 1)), 0, np.array([0.5, 0.25]))
    inputs: list[Given] = [x, filter, bias(np.array([8, 8], np.int32), 0.3), 1, 1, 1, 0]
    out = OperandType(Q, (), 1.0, 0)
    found = compute(Operation.CONV_2D, *inputs, out=out)
    assert (
        found[0].tolist()
        == compute(Operation.CONV_2D, *inputs[:2], bias(np.array([8, 8])), *inputs[3:], out=out)[0].tolist()
    )
    row = row_of(Operation.CONV_2D)
    kinds = [one if isinstance(one, OperandType) else OperandType(Operand.INT32) for one in inputs]
    assert list(row.quantization_objections(row.validate(kinds, [out]), kinds, [out]))
