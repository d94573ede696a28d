"""Conversions between types."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_calls import compute, level_of
from nnapi_models import tensor

from ortconv.nnapi import FeatureLevel, NnapiError, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.operand import ChannelQuant, Tensor
from ortconv.nnapi.operations import row_of

EDGES = np.array([-np.inf, -1e10, -1.9, -0.0, 254.9, 300, 1e10, np.inf, np.nan], np.float32)


def test_casts_cut_off_and_stay_within_the_type() -> None:
    (bytes_,) = compute(Operation.CAST, EDGES, out=OperandType(Operand.TENSOR_QUANT8_ASYMM, (), 0.5, 9))
    assert bytes_.tolist() == [0, 0, 0, 0, 254, 255, 255, 255, 0]
    (whole,) = compute(Operation.CAST, EDGES, out=tensor(type=Operand.TENSOR_INT32))
    assert whole.tolist() == [-(2**31), -(2**31), -1, 0, 254, 300, 2**31 - 1, 2**31 - 1, 0]


def test_quantized_elements_are_cast_as_they_are_stored() -> None:
    x = Tensor(OperandType(Operand.TENSOR_QUANT8_ASYMM, (2,), 0.5, 9), np.array([0, 200], np.uint8))
    assert compute(Operation.CAST, x, out=tensor())[0].tolist() == [0.0, 200.0]


COPIED = ("BOOL8", "QUANT8_ASYMM_SIGNED", "QUANT8_SYMM", "QUANT16_ASYMM", "QUANT16_SYMM")


@pytest.mark.parametrize("name", COPIED)
def test_some_types_are_only_copied(name: str) -> None:
    kind = Operand[f"TENSOR_{name}"]
    scale = 0.0 if name == "BOOL8" else 1.0
    row, operand = row_of(Operation.CAST), OperandType(kind, (2,), scale)
    assert row.validate([operand], [operand]).level is FeatureLevel.LEVEL_4
    for pair in ([operand], [tensor(2)]), ([tensor(2)], [operand]):
        with pytest.raises(NnapiError) as caught:
            row.validate(*pair)
        assert caught.value.code is ResultCode.BAD_DATA


@pytest.mark.parametrize("dims", [(9,), (0,)])
def test_casts_to_other_dimensions_are_refused_when_built(dims: tuple[int, ...]) -> None:
    with pytest.raises(NnapiError) as caught:
        level_of(Operation.CAST, tensor(*dims), out=tensor(3, type=Operand.TENSOR_INT32))
    assert caught.value.code is ResultCode.BAD_DATA


def test_halves_are_quantized_away_from_zero() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    (found,) = compute(Operation.QUANTIZE, x, out=OperandType(Operand.TENSOR_QUANT8_ASYMM_SIGNED, (), 1.0, 0))
    assert found.tolist() == [-3, -2, -1, 1, 2, 3]


def test_not_a_number_is_quantized_as_the_largest_element() -> None:
    (found,) = compute(Operation.QUANTIZE, EDGES, out=OperandType(Operand.TENSOR_QUANT8_ASYMM, (), 1.0, 2))
    assert found.tolist() == [0, 0, 0, 2, 255, 255, 255, 255, 255]


def test_channels_are_dequantized_by_their_own_scales() -> None:
    kind = OperandType(Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL, (2, 3), channel_quant=ChannelQuant(1, (0.5, 1.0, 2.0)))
    x = Tensor(kind, np.array([[1, 2, 3], [-1, -2, -128]], np.int8))
    call = row_of(Operation.DEQUANTIZE)
    bound = call.bind(call.validate([x], [tensor()]), [x], [tensor()])
    assert call.compute is not None
    assert np.asarray(call.compute(bound)).tolist() == [[0.5, 2.0, 6.0], [-0.5, -2.0, -256.0]]
