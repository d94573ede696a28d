"""Tables: fingerprints, missing keys, the forms of projections."""

from __future__ import annotations

import numpy as np
import pytest
from nnapi_calls import compute, level_of
from nnapi_models import tensor

from ortconv.nnapi import NnapiError, Operand, OperandType, Operation, ResultCode
from ortconv.nnapi.operations.fingerprint import fingerprint64

FINGERPRINTS = {  # published values of FarmHash's Fingerprint64
    "": 0x9AE16A3B2F90404F,
    "abc": 0x24A5B3A074E7F369,
    "abcd": 0x1A5502DE4A1F8101,
    "abcdefgh": 0xFEE9D22990C82909,
    "docklandsman@gmail.com": 0xB678CF3842309F40,
    "C is as portable as Stonehedge!!": 0xB944F8A16261E414,
    "Discard medicine more than two years old.": 0xE8F89AB6DF9BDD25,
    "How can you write a big system without C++?  -Paul Glick": 0x5A0A6EFD52E84E2A,
    "For every action there is an equal and opposite government program.": 0x55182F8859ECA4CE,
    "There is no reason for any individual to have a computer in their home. -Ken Olsen, 1977": 0x7E85D7B050ED2967,
    "The fugacity of a constituent in a mixture of gases at a given temperature is proportional to its mole fraction."
    "  Lewis-Randall Rule": 0x098EFF6958C5E91A,
}
HITS = OperandType(Operand.TENSOR_QUANT8_ASYMM, (), 1.0, 0)
INTS = tensor(type=Operand.TENSOR_INT32)


@pytest.mark.parametrize("text", FINGERPRINTS, ids=len)
def test_fingerprints(text: str) -> None:
    assert fingerprint64(text.encode()) == FINGERPRINTS[text]


def test_keys_beyond_both_ends_are_missed() -> None:
    values = np.arange(6, dtype=np.int32).reshape(3, 2) + 1
    keys, lookups = np.array([-5, 0, 7], np.int32), np.array([8, -6, 7, -5], np.int32)
    rows, hits = compute(Operation.HASHTABLE_LOOKUP, lookups, keys, values, out=(INTS, HITS))
    assert hits.tolist() == [0, 0, 1, 1]
    assert rows.tolist() == [[0, 0], [0, 0], [5, 6], [1, 2]]


def test_hits_have_one_quantization() -> None:
    keys = np.array([1], np.int32)
    with pytest.raises(NnapiError) as caught:
        compute(
            Operation.HASHTABLE_LOOKUP,
            keys,
            keys,
            np.ones((1, 2), np.float32),
            out=(tensor(), OperandType(Operand.TENSOR_QUANT8_ASYMM, (), 0.5, 0)),
        )
    assert caught.value.code is ResultCode.OP_FAILED


@pytest.mark.parametrize("index", [-1, 3])
def test_rows_out_of_range_fail(index: int) -> None:
    with pytest.raises(NnapiError) as caught:
        compute(Operation.EMBEDDING_LOOKUP, np.array([0, index], np.int32), np.ones((3, 2), np.float32), out=tensor())
    assert caught.value.code is ResultCode.OP_FAILED


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_three_projections_agree(dtype: type) -> None:
    """Dense bits, read as numbers, are the sparse ones; the newer sparse form adds an offset for each function."""
    rng = np.random.default_rng(3)
    hashes, x = rng.standard_normal((5, 3)).astype(dtype), rng.standard_normal((4, 2)).astype(dtype)
    weight = tensor(type=Operand.TENSOR_FLOAT32 if dtype is np.float32 else Operand.TENSOR_FLOAT16)
    old, dense, sparse = (compute(Operation.LSH_PROJECTION, hashes, x, weight, form, out=INTS)[0] for form in (1, 2, 3))
    assert set(dense) == {0, 1}
    assert (dense.reshape(5, 3) @ [4, 2, 1]).tolist() == old.tolist()
    assert (sparse - old).tolist() == [0, 8, 16, 24, 32]


def test_projections_refuse_what_they_do_not_know() -> None:
    hashes, x = np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)
    with pytest.raises(NnapiError, match="type of projection"):
        compute(Operation.LSH_PROJECTION, hashes, x, tensor(), 0, out=INTS)
    with pytest.raises(NnapiError, match="at most 32"):
        compute(Operation.LSH_PROJECTION, np.ones((1, 33), np.float32), x, tensor(), 2, out=INTS)
    with pytest.raises(NnapiError, match=r"\(x\) is TENSOR_BOOL8"):
        level_of(Operation.LSH_PROJECTION, hashes, tensor(2, type=Operand.TENSOR_BOOL8), tensor(), 2, out=INTS)
