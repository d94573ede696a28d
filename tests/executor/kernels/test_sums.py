"""Sums over images whose channels are innermost in memory, where numpy does not add pairwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ortconv.executor.kernels.reduction import precise_sum
from ortconv.executor.kernels.registry import lookup
from tests.batches import slow_except

AXES = np.array([2, 3])
ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


def standardized(x: Any) -> Any:
    return (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)


CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Callable[[Any], Any]]] = {
    "InstanceNormalization": ((ONES, ZEROS), {}, standardized),
    "MeanVarianceNormalization": ((), {"axes": [2, 3]}, standardized),
    "ReduceSum": ((AXES,), {}, lambda x: x.sum((2, 3), keepdims=True)),
    "GlobalAveragePool": ((), {}, lambda x: x.mean((2, 3), keepdims=True)),
    "GlobalLpPool": ((), {}, lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))),
    "LpNormalization": ((), {"axis": 2}, lambda x: x / np.sqrt((x * x).sum(2, keepdims=True))),
    "Softmax": ((), {"axis": 2}, lambda x: np.exp(x - 100) / np.exp(x - 100).sum(2, keepdims=True)),
    "ReduceLogSumExp": ((AXES,), {}, lambda x: np.log(np.exp(x - 100).sum((2, 3), keepdims=True)) + 100),
    "ReduceL2": ((AXES,), {}, lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))),
}


@pytest.mark.parametrize("op", slow_except([*CASES][::3], CASES))
def test_channels_that_are_innermost(op: str) -> None:
    others, attributes, exact = CASES[op]
    rng = np.random.default_rng(3)
    x = np.moveaxis(rng.normal(100, 1, (1, 1100, 300, 4)).astype(np.float32), 3, 1)
    kernel = lookup("", op, 22)
    assert kernel is not None
    want = exact(x.astype(np.float64))
    limit = 1e-5 if exact is standardized else 2e-7  # a difference of numbers near 100 has larger errors
    assert np.abs(kernel.reference(x, *others, **attributes) - want).max() < limit * np.abs(want).max()


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_sums_have_the_type_of_the_elements(dtype: type, keepdims: bool) -> None:
    x = np.moveaxis(np.arange(60 * 60 * 2, dtype=dtype).reshape(60, 60, 2), 2, 0)
    found = precise_sum(x, (-2, -1), keepdims)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, x.sum((1, 2), keepdims=keepdims), rtol=1e-6)
