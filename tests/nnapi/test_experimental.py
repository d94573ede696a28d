"""DENSIFY against tensors that the test itself takes apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nnapi_calls import compute
from nnapi_models import tensor

from ortconv.ir.tensor import Array
from ortconv.nnapi import NnapiError, Operand, OperandType, Operation
from ortconv.nnapi.operand import Tensor
from tests.arrays import i32
from tests.conftest import examples

NONE = tensor(type=Operand.TENSOR_INT32)


def compressed(x: Array, order: tuple[int, ...], sparse: tuple[bool, ...]) -> tuple[Array, list[Array | OperandType]]:
    """Stored elements of x, and segments and indices of every level in order; x has an element in every slice kept."""
    x = x.transpose(order)
    places: list[tuple[int, ...]] = [()]
    parts: list[Array | OperandType] = []
    for level, is_sparse in enumerate(sparse):
        below = []
        counts = [0]
        for place in places:
            kept = [at for at in range(x.shape[level]) if not is_sparse or x[(*place, at)].any()]
            below += [(*place, at) for at in kept]
            counts.append(len(below))
        parts += [i32(*counts), i32(*[place[-1] for place in below])] if is_sparse else [NONE, NONE]
        places = below
    return np.array([x[place] for place in places], x.dtype), parts


@given(order=st.permutations(range(3)), sparse=st.tuples(*[st.booleans()] * 3), seed=st.integers(0, 99))
@examples(60)
def test_any_order_and_format(order: tuple[int, ...], sparse: tuple[bool, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.integers(1, 9, (2, 3, 4)) * (rng.random((2, 3, 4)) < 0.4)).astype(np.float32)
    x[0, 0, 0] = 1
    stored, parts = compressed(x, order, sparse)
    sizes = [x.shape[axis] for axis in order]
    inputs = [stored, i32(*order), NONE, i32(*map(int, sparse)), i32(*sizes), *parts]
    np.testing.assert_array_equal(compute(Operation.DENSIFY, *inputs, out=tensor())[0], x)


def test_what_is_not_stored_is_the_zero_point() -> None:
    kind = OperandType(Operand.TENSOR_QUANT8_ASYMM, (1,), 1.0, 7)
    stored = Tensor(kind, np.array([9], np.uint8))
    inputs = [stored, i32(0), NONE, i32(1), i32(3), i32(0, 1), i32(2)]
    assert compute(Operation.DENSIFY, *inputs, out=kind.with_dims(()))[0].tolist() == [7, 7, 9]


@pytest.mark.parametrize(
    "changed",
    [{1: i32(1)}, {3: i32(2)}, {5: i32(0, 2)}, {6: i32(3)}, {5: NONE}, {2: i32(1)}, {0: np.ones(2, np.float32)}],
    ids=["order", "format", "segments", "index", "no segments", "blocks", "elements"],
)
def test_parts_that_do_not_go_together_fail(changed: dict[int, Array]) -> None:
    inputs = [np.ones(1, np.float32), i32(0), NONE, i32(1), i32(3), i32(0, 1), i32(2)]
    for at, value in changed.items():
        inputs[at] = value
    with pytest.raises(NnapiError):
        compute(Operation.DENSIFY, *inputs, out=tensor())
