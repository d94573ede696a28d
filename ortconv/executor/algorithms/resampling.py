"""Weighted sums of shifted selections along an axis.

Enlarging by a whole number n repeats the same weights every n elements. It is n sums of views of the input times one weight each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np

from ortconv.executor.replay.work import Work, copy_runs, copy_to
from ortconv.ir.tensor import Array

_MOST_PHASES = 1024
"""The limit on n."""


class Taps:
    """Per element along an axis of the result, the input elements and the weights whose products it sums: both (taps, output).

    Indices beyond an end mean the element at that end. Without weights, elements are copied.
    """

    def __init__(self, index: Array, weights: Array | None, size: int) -> None:
        self.index = np.clip(index, 0, max(size - 1, 0))
        self.size, self.output = size, index.shape[1]
        self._unbounded = index
        self._weights = weights
        if weights is not None:
            used = weights.any(axis=1) if weights.any() else np.arange(len(weights)) == 0
            self.index, self._unbounded, self._weights = self.index[used], index[used], weights[used]

    def weights(self, dtype: np.dtype[np.generic]) -> Array | None:
        return None if self._weights is None else self._weights.astype(dtype)

    @cached_property
    def phases(self) -> list[list[tuple[int, float | None]]] | None:
        """If the axis grows by a whole number n, the shifts and weights of each of the n elements; else None."""
        n = self.output // max(self.size, 1)
        if not 1 <= n <= _MOST_PHASES or self.output != n * self.size:
            return None
        shifts = self._unbounded.reshape(-1, self.size, n) - np.arange(self.size)[:, None]
        if self._weights is None:
            return None if (shifts != shifts[:, :1]).any() else [[(int(shift), None)] for shift in shifts[0, 0]]
        factors = self._weights.astype(np.float32).reshape(shifts.shape)
        if (shifts != shifts[:, :1]).any() or (factors != factors[:, :1]).any():
            return None
        return [[(int(s), float(f)) for s, f in zip(shifts[:, 0, i], factors[:, 0, i])] for i in range(n)]


_LONG_RUN = 32
"""Neighbors in memory that make numpy's innermost loop efficient."""

_HELD = 1 << 16
"""The approximate number of products with one weight that are held at once."""


def resampled(work: Work, x: Array, axis: int, taps: Taps) -> Array:
    """x along another axis, as contiguous memory."""
    shape, run = x.shape, prod(x.shape[axis + 1 :])
    out = work.empty((*shape[:axis], taps.output, *shape[axis + 1 :]), x.dtype)
    if not out.size:
        return out
    x = work.contiguous(x).reshape(-1, taps.size, run)
    target = out.reshape(len(x), taps.output, run)
    weights = taps.weights(x.dtype)
    pays = weights is None or (x.dtype == np.float32 and run >= _LONG_RUN)
    phases = taps.phases if pays else None
    if phases is None:
        with work.scratch():
            _in_selections(work, x, taps.index, weights, target)
        return out
    lines = len(x) if weights is None else max(1, _HELD // (taps.size * run))
    for start in range(0, len(x), lines):
        part = slice(start, start + lines)
        with work.scratch():
            _in_phases(work, x[part], phases, target.reshape(len(x), taps.size, -1, run)[part])
    return out


def _in_selections(work: Work, x: Array, indices: Array, weights: Array | None, out: Array) -> None:
    if weights is None:
        work.do(_take, x, indices[0], out)
        return
    part = work.empty(out.shape, x.dtype) if len(weights) > 1 else out
    for i, (index, factors) in enumerate(zip(indices, weights, strict=True)):
        made = part if i else out
        work.do(_take, x, index, made)
        work.do(np.multiply, made, factors[:, None], made)
        if i:
            work.do(np.add, out, part, out)


def _take(x: Array, index: Array, out: Array) -> None:
    x.take(index, 1, out, "clip")


def _in_phases(work: Work, x: Array, phases: Sequence[Sequence[tuple[int, float | None]]], out: Array) -> None:
    """x (lead, size, run) to (lead, size, n, run)."""
    shifts = [shift for phase in phases for shift, _ in phase]
    before, size = max(-min(shifts), 0), x.shape[1]
    padded = (len(x), before + size + max(*shifts, 0), x.shape[2])
    made: dict[float | None, Array] = {}
    for factor in dict.fromkeys(factor for phase in phases for _, factor in phase):
        if factor is None and padded == x.shape:
            made[factor] = x
            continue
        made[factor] = held = work.empty(padded, x.dtype)
        inner = held[:, before : before + size]
        if factor is None:
            work.do(copy_to, x, inner)
        else:
            work.do(np.multiply, x, np.asarray(factor, x.dtype), inner)
        for outside, edge in ((held[:, :before], inner[:, :1]), (held[:, before + size :], inner[:, -1:])):
            if outside.size:
                work.do(copy_to, edge, outside)
    for i, ((shift, factor), *others) in enumerate(phases):
        first, target = made[factor][:, before + shift :][:, :size], out[:, :, i]
        if not others:
            work.do(copy_to if x.dtype.hasobject else copy_runs, first, target)
            continue
        sums = first
        for shift, factor in others:
            work.do(np.add, sums, made[factor][:, before + shift :][:, :size], target)
            sums = target
