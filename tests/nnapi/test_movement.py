"""Edges of the operations that move elements: bounds, axes, quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnapi_calls import compute, level_of
from nnapi_models import tensor

from ortconv.nnapi import FeatureLevel, NnapiError, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.operand import Tensor
from tests.arrays import i32
from tests.batches import batched
from tests.conftest import examples

F = tensor()
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
QUANT8 = Operand.TENSOR_QUANT8_ASYMM


def quantized(values: Any, scale: float, zero_point: int) -> Tensor:
    array = np.asarray(values, np.uint8)
    return Tensor(OperandType(QUANT8, array.shape, scale, zero_point), array)


bounds = st.integers(-8, 8)


@given(begin=st.tuples(*[bounds] * 3), end=st.tuples(*[bounds] * 3), strides=st.tuples(*[bounds.filter(bool)] * 3),
       begin_mask=st.integers(0, 7), end_mask=st.integers(0, 7))  # fmt: skip
@examples(100)
def test_strided_slice_is_numpy_s(begin: Any, end: Any, strides: Any, begin_mask: int, end_mask: int) -> None:
    wanted = CUBE[
        tuple(
            slice(None if begin_mask >> at & 1 else b, None if end_mask >> at & 1 else e, s)
            for at, (b, e, s) in enumerate(zip(begin, end, strides))
        )
    ]
    inputs = [CUBE, i32(*begin), i32(*end), i32(*strides), begin_mask, end_mask, 0]
    (found,) = compute(Operation.STRIDED_SLICE, *inputs, out=F)
    np.testing.assert_array_equal(found, wanted)


def test_shrinking_every_axis_leaves_one_element() -> None:
    inputs = [CUBE, i32(1, -1, 2), i32(2, 3, 3), i32(1, 1, 1), 0, 0, 7]
    (found,) = compute(Operation.STRIDED_SLICE, *inputs, out=F)
    np.testing.assert_array_equal(found, CUBE[1, -1, 2:3])


@given(rows=st.integers(2, 3), columns=st.integers(1, 3), block=st.tuples(st.integers(1, 3), st.integers(1, 3)))
@examples(30)
def test_batches_go_to_space_and_back(rows: int, columns: int, block: tuple[int, int]) -> None:
    x = np.random.default_rng(rows).random((2, rows * block[0] - 1, columns * block[1], 3), np.float32)
    paddings = np.array([[1, 0], [0, 0]], np.int32)
    (batches,) = compute(Operation.SPACE_TO_BATCH_ND, x, i32(*block), paddings, out=F)
    assert batches.shape == (2 * block[0] * block[1], rows, columns, 3)
    (back,) = compute(Operation.BATCH_TO_SPACE_ND, batches, i32(*block), out=F)
    np.testing.assert_array_equal(back[:, 1:], x)
    assert not back[:, 0].any()


@pytest.mark.parametrize("nchw", [False, True])
def test_depth_goes_to_space_and_back(nchw: bool) -> None:
    x = np.random.default_rng(0).random((2, 8, 4, 4), np.float32)
    (space,) = compute(Operation.DEPTH_TO_SPACE, x, 2, nchw, out=F)
    (back,) = compute(Operation.SPACE_TO_DEPTH, space, 2, nchw, out=F)
    np.testing.assert_array_equal(back, x)
    assert space.shape == ((2, 2, 8, 8) if nchw else (2, 16, 8, 1))


def test_concatenation_brings_inputs_to_the_output_s_quantization() -> None:
    out = OperandType(QUANT8, (4,), 1.0, 100)
    parts = [quantized([0, 2], 0.5, 1), quantized([9, 255], 2.0, 9)]
    (found,) = compute(Operation.CONCATENATION, *parts, 0, out=out)
    assert found.tolist() == [99, 101, 100, 255]  # -0.5 and 0.5 round away from 0; 492 is too large


def test_quantized_padding_stands_for_zero() -> None:
    x = quantized([[1, 2]], 0.5, 7)
    (found,) = compute(Operation.PAD, x, np.array([[1, 0], [0, 1]], np.int32), out=OperandType(QUANT8, (), 0.5, 7))
    assert found.tolist() == [[7, 7, 7], [1, 2, 7]]


REFUSED_RUNNING: dict[str, tuple[Operation, list[Any], OperandType]] = {
    "transpose without order": (Operation.TRANSPOSE, [CUBE, tensor(type=Operand.TENSOR_INT32)], F),
    "order with an axis twice": (Operation.TRANSPOSE, [CUBE, i32(0, 0, 1)], F),
    "axis out of range": (Operation.EXPAND_DIMS, [CUBE, 4], F),
    "squeezed axis not 1": (Operation.SQUEEZE, [CUBE, i32(1)], F),
    "slice outside": (Operation.SLICE, [CUBE, i32(0, 1, 0), i32(2, 3, 4)], F),
    "slice of size -2": (Operation.SLICE, [CUBE, i32(0, 0, 0), i32(-2, 3, 4)], F),
    "stride 0": (Operation.STRIDED_SLICE, [CUBE, i32(0, 0, 0), i32(1, 1, 1), i32(1, 0, 1), 0, 0, 0], F),
    "shrinking 2": (Operation.STRIDED_SLICE, [CUBE, i32(0, 0, 0), i32(2, 1, 1), i32(1, 1, 1), 0, 0, 1], F),
    "shrinking back": (Operation.STRIDED_SLICE, [CUBE, i32(1, 0, 0), i32(0, 1, 1), i32(-1, 1, 1), 0, 0, 1], F),
    "concatenation of other dimensions": (Operation.CONCATENATION, [CUBE, CUBE[:, :2], 0], F),
    "packing other dimensions": (Operation.PACK, [0, CUBE, CUBE[:, :2]], F),
    "packing at a negative axis": (Operation.PACK, [-1, CUBE, CUBE], F),
    "index out of range": (Operation.GATHER, [CUBE, 1, i32(0, 3)], F),
    "negative index": (Operation.GATHER, [CUBE, 1, i32(-1)], F),
    "negative padding": (Operation.PAD, [CUBE, np.array([[0, 0], [0, -1], [0, 0]], np.int32)], F),
    "reflecting all": (Operation.MIRROR_PAD, [CUBE, np.array([[2, 0], [0, 0], [0, 0]], np.int32), 0], F),
    "mode 2": (Operation.MIRROR_PAD, [CUBE, np.zeros((3, 2), np.int32), 2], F),
    "negative multiples": (Operation.TILE, [CUBE, i32(1, -1, 1)], F),
    "negative dimensions": (Operation.FILL, [i32(2, -1), 1.0], F),
    "groups that do not divide": (Operation.CHANNEL_SHUFFLE, [CUBE, 2, 1], F),
    "blocks that do not divide": (Operation.SPACE_TO_DEPTH, [CUBE[None], 2], F),
    "a value out of type": (
        Operation.PAD_V2, [quantized([1], 1.0, 0), i32(0, 1).reshape(1, 2), 256], OperandType(QUANT8, (), 1.0, 0)
    ),
}  # fmt: skip


@batched
@pytest.mark.parametrize("name", REFUSED_RUNNING)
def test_what_does_not_fit_fails_while_running(name: str) -> None:
    code, inputs, out = REFUSED_RUNNING[name]
    with pytest.raises(NnapiError) as caught:
        compute(code, *inputs, out=out)
    assert caught.value.code is ResultCode.OP_FAILED
    assert caught.value.operation is code


REFUSED_BUILDING: dict[str, tuple[Operation, list[Any], OperandType]] = {
    "rank 5": (Operation.PAD, [CUBE[None, None], np.zeros((5, 2), np.int32)], F),
    "two axes to reverse": (Operation.REVERSE, [CUBE, i32(0, 1)], F),
    "no inputs": (Operation.CONCATENATION, [0], F),
    "another quantization": (
        Operation.REVERSE, [quantized([1], 1.0, 0), i32(0)], OperandType(QUANT8, (), 2.0, 0)
    ),
    "a value of another type": (Operation.FILL, [i32(2), 1], F),
    "the rank of a scalar": (Operation.RANK, [1], OperandType(Operand.INT32)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BUILDING)
def test_what_is_known_to_be_wrong_is_refused_when_built(name: str) -> None:
    code, inputs, out = REFUSED_BUILDING[name]
    with pytest.raises(NnapiError) as caught:
        level_of(code, *inputs, out=out)
    assert caught.value.code is ResultCode.BAD_DATA


def test_split_gives_each_part_its_output() -> None:
    parts = compute(Operation.SPLIT, CUBE, -1, 2, out=(F, F))
    np.testing.assert_array_equal(np.concatenate(parts, axis=2), CUBE)
    with pytest.raises(NnapiError, match="outputs"):
        compute(Operation.SPLIT, CUBE, -1, 2, out=(F, F, F))


def test_a_split_without_outputs_fails_when_it_runs() -> None:
    """Android's validateOperation accepts it; the check of the parts' quantization raised KeyError."""
    assert level_of(Operation.SPLIT, CUBE, 0, 2, out=()) is FeatureLevel.LEVEL_3
    with pytest.raises(NnapiError, match="does not split into 2 for 0 outputs"):
        compute(Operation.SPLIT, CUBE, 0, 2, out=())


def test_rank_is_a_scalar() -> None:
    (found,) = compute(Operation.RANK, CUBE, out=OperandType(Operand.INT32))
    assert found.item() == 3
