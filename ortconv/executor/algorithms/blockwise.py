"""Ufuncs with memory of a work, and chains of them on float32 elements, block by block in cache: erf, Softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ortconv.executor.algorithms.half_precision import is_native
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.tensor import Array

BLOCK = 1 << 16
"""Elements per step of a chain of ufuncs: the temporaries stay in the second cache level."""


@lru_cache(maxsize=64)
def ones(size: int, dtype: np.dtype[Any]) -> Array:
    """A vector of ones. A product with it sums short rows several times faster than a reduction. Callers must not write to it."""
    return np.ones(size, dtype)


def has_finite_square(x: Array) -> bool:
    """True if the sum of squares of a vector is finite: then its elements are finite, too, and none is huge."""
    return math.isfinite(np.dot(x, x))


# x * P(x^2) / Q(x^2), a minimax fit of relative error 2e-8 on [-3.95, 3.95]; beyond 3.92 erf rounds to 1 in float32.
_ERF_LIMIT, _ONE = f32(3.92), f32(1)
_ERF_P = [*map(f32, (2.025900019497025e-06, 2.846843543011574e-04, 3.808082742255041e-03, 5.287519818427674e-02,
                     1.915487111923502e-01, 1.1283791437803767))]  # fmt: skip
_ERF_Q = [*map(f32, (3.783153961161159e-05, 1.1707036269028893e-03, 1.5054933254976668e-02, 1.1455892944420536e-01,
                     5.030883015159585e-01, 1.0))]  # fmt: skip


@recordable
def erf_block(work: Work, x: Array, out: Array) -> None:
    """erf of float32 elements, to 4e-7 relative."""
    limited, square, denominator = work.like(x), work.like(x), work.like(x)
    work.do(clip_to, x, -_ERF_LIMIT, _ERF_LIMIT, limited)
    work.do(np.multiply, limited, limited, square)
    _polynomial(work, _ERF_P, square, out)
    _polynomial(work, _ERF_Q, square, denominator)
    work.do(np.multiply, out, limited, out)
    work.do(np.divide, out, denominator, out)
    work.do(clip_to, out, -_ONE, _ONE, out)


def softmax(exponential: Function, unit: float) -> Callable[[Work, Array, Array], None]:
    """Softmax of each row of float32, shifted by its maximum only if necessary. `exponential(unit * x)` is exp(x)."""
    scale = f32(unit)

    def run(work: Work, x: Array, out: Array) -> None:
        powers, sums = work.like(x), work.empty(x.shape[:-1])
        work.do(np.multiply, x, scale, powers)
        work.do(exponential, powers, powers)
        work.do(np.matmul, powers, ones(x.shape[-1], x.dtype), sums)
        work.do(_shift_if_necessary, x, powers, sums)
        work.do(np.divide, powers, sums[..., None], out)

    return run


def _shift_if_necessary(x: Array, powers: Array, sums: Array) -> None:
    """Compute powers and sums again, by the definition, if a sum of powers is out of range."""
    if not (has_finite_square(sums.reshape(-1)) and has_finite_square(np.reciprocal(sums).reshape(-1))):
        np.subtract(x, x.max(axis=-1, keepdims=True), powers)
        np.exp(powers, powers)
        powers.sum(axis=-1, out=sums)


def _polynomial(work: Work, coefficients: Sequence[Array], x: Array, out: Array) -> None:
    work.do(np.multiply, x, coefficients[0], out)
    for c in coefficients[1:-1]:
        work.do(np.add, out, c, out)
        work.do(np.multiply, out, x, out)
    work.do(np.add, out, coefficients[-1], out)


def blockwise(function: Function, dtype: np.dtype[Any] | None = None) -> Function:
    """A function of operands of one shape that calls `function(*parts of operands, part of out)` for parts that fit the cache.

    The result has the layout of the first operand, and its type unless `dtype` is given.
    """

    def run(work: Work, *operands: Array) -> Array:
        out = work.like(operands[0], dtype)
        order = sorted(range(out.ndim), key=lambda axis: -out.strides[axis])
        flat = [work.contiguous(x.transpose(order)).reshape(-1) for x in operands] + [out.transpose(order).reshape(-1)]
        for part in spans(out.size, BLOCK):
            work.do(function, *[x[part] for x in flat])
        return out

    return recordable(run)


def of_ufunc(function: Function) -> Function:
    """The elementwise operator of a ufunc whose result has the type of its operands."""

    def run(work: Work, *operands: Array) -> Array | None:
        if not is_native(*operands):
            return None
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        model = next((x for x in operands if x.shape == shape), None)
        out = work.empty(shape, operands[0].dtype) if model is None else work.like(model)
        work.do(function, *operands, out)
        return out

    return run
