"""Block programs: elementwise instructions on float32 tensors, run block by block so that what they pass on stays in cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.ir.tensor import Array

_BLOCK = 1 << 15
"""Elements per block: a few operands and temporaries of this size fit the second cache level."""


class Line(NamedTuple):
    """One instruction: `function(*operands, result)`. Operands and what it makes are names (any objects) or constant arrays."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    made: Any


class BlockProgram:
    """Lines over named operands. `source`, where there is one, names an operand whose memory the result takes."""

    def __init__(self, lines: Sequence[Line], source: Any, operands: Sequence[Any]) -> None:
        slots = {id(name): slot for slot, name in enumerate(operands)}
        self._constants: list[Array] = []
        for operand in (o for line in lines for o in line.operands):
            if isinstance(operand, np.ndarray) and id(operand) not in slots:
                slots[id(operand)] = len(slots)
                self._constants.append(operand)
        self._first_constant, self._result = len(operands), len(slots)
        self._used = sorted({slots[id(o)] for line in lines for o in line.operands if id(o) in slots})
        self._code, self._temporaries = _allocate(lines, slots, source, self._result)
        self._patterns: dict[Any, Array] = {}

    def run(self, source: Array | None, operands: Sequence[Any]) -> Array | None:
        """The result; None where the operands are not float32 or do not broadcast along the memory of one of them."""
        values = [*operands, *self._constants]
        used = [values[slot] for slot in self._used]
        if any(getattr(v, "dtype", None) != np.float32 for v in used):
            return None
        result = _target(source, used)
        if result is None:
            return None
        axes = sorted(range(result.ndim), key=lambda axis: -result.strides[axis])
        placed = [_Placed.of(v, result.shape, axes) for v in used]
        widths = {p.repeat for p in placed if p is not None and p.repeat > 1}
        if None in placed or len(widths) > 1:
            return None
        width = widths.pop() if widths else 1
        parts = self._parts(placed, width, result.size)  # type: ignore[arg-type]
        if parts is None:
            return None
        rows = result.transpose(axes).reshape((-1, width) if width > 1 else -1)
        self._execute(rows, *parts)
        return result

    def _parts(self, placed: Sequence[_Placed], width: int, size: int) -> tuple[int, list[Array], list[int]] | None:
        """Rows per block; per used operand its array and whether it is taken whole, cut to the block's length, or moves along."""
        periods = [p.period for p in placed if p.period > 1]
        longest = max(periods, default=1)
        if any(longest % p for p in periods) or (width > 1 and any(p != width for p in periods)):
            return None
        block = max(1, _BLOCK // width) if width > 1 else longest * max(1, _BLOCK // longest)
        count = min(block, size // width)
        arrays, ways = [], []
        for slot, p in zip(self._used, placed, strict=True):
            if p.is_full:
                arrays.append(p.flat().reshape((-1, width) if width > 1 else -1))
                ways.append(_MOVING)
            elif p.repeat > 1:
                arrays.append(np.tile(p.flat(), p.lead)[:, None])
                ways.append(_MOVING)
            elif p.period > 1 and width == 1:
                arrays.append(self._pattern(slot, p, count // p.period))
                ways.append(_CUT)
            else:
                arrays.append(p.flat() if p.period > 1 or size == 1 else p.array.reshape(()))
                ways.append(_WHOLE)
        return block, arrays, ways

    def _pattern(self, slot: int, p: _Placed, repeats: int) -> Array:
        """An operand repeated over a block; those of constants are kept."""
        key = (slot, repeats, *p.axes)
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = np.tile(p.flat(), repeats)
            if slot >= self._first_constant:
                self._patterns[key] = pattern
        return pattern

    def _execute(self, rows: Array, block: int, arrays: list[Array], ways: list[int]) -> None:
        slots: list[Any] = [None] * (self._result + 1)
        spare = [np.empty_like(rows[:block]) for _ in range(self._temporaries)]
        moving = [(s, a) for s, a, way in zip(self._used, arrays, ways, strict=True) if way == _MOVING]
        cut = [(s, a) for s, a, way in zip(self._used, arrays, ways, strict=True) if way == _CUT]
        for slot, array in zip(self._used, arrays, strict=True):
            slots[slot] = array
        slots += spare
        for start in range(0, len(rows), block):
            part = slots[self._result] = rows[start : start + block]
            for slot, array in moving:
                slots[slot] = array[start : start + block]
            if len(part) < block:
                for slot, array in cut:
                    slots[slot] = array[: len(part)]
                slots[self._result + 1 :] = [temporary[: len(part)] for temporary in spare]
            for function, ins, out in self._code:
                function(*[slots[i] for i in ins], slots[out])


_WHOLE, _CUT, _MOVING = range(3)


class _Placed(NamedTuple):
    """An operand against the result, its axes in the order of the result's memory."""

    array: Array
    axes: tuple[int, ...]
    lead: int
    """How often the whole of it comes."""
    repeat: int
    """How many elements in a row each of its elements stands for."""
    period: int
    """After how many elements it begins again; 1 for a scalar."""
    is_full: bool

    @staticmethod
    def of(v: Array, shape: tuple[int, ...], axes: Sequence[int]) -> _Placed | None:
        """None if it does not broadcast to the shape, or as no run of neighbouring axes."""
        if v.ndim > len(shape):
            return None
        own = (1,) * (len(shape) - v.ndim) + v.shape
        if any(n not in (1, size) for n, size in zip(own, shape, strict=True)):
            return None
        held = [i for i, axis in enumerate(axes) if own[axis] != 1]
        wide = [i for i, axis in enumerate(axes) if shape[axis] != 1]
        array = v.reshape(own)
        if not held:
            return _Placed(array, tuple(axes), 1, 1, 1, len(wide) == 0)
        between = [i for i in wide if held[0] <= i <= held[-1]]
        if between != held:
            return None
        lead = prod(shape[axes[i]] for i in wide if i < held[0])
        repeat = prod(shape[axes[i]] for i in wide if i > held[-1])
        return _Placed(array, tuple(axes), lead, repeat, v.size if repeat == 1 else 1, lead == repeat == 1)

    def flat(self) -> Array:
        return self.array.transpose(self.axes).reshape(-1)


def _target(source: Array | None, used: Sequence[Array]) -> Array | None:
    """Where the result goes: contiguous in some order of its axes, and not empty."""
    if source is None:
        model = max(used, key=lambda v: (v.size, v.ndim))
        return np.empty_like(model) if model.size else None
    if source.dtype != np.float32 or not source.size:
        return None
    order = sorted(range(source.ndim), key=lambda axis: -source.strides[axis])
    return source if source.transpose(order).flags.c_contiguous else source.copy(order="K")


def _allocate(
    lines: Sequence[Line], slots: dict[int, int], source: Any, result: int
) -> tuple[list[tuple[Callable[..., Any], tuple[int, ...], int]], int]:
    """The lines over slots, and the number of temporaries: these follow `result`, where the last line writes."""
    last_use = {id(o): index for index, line in enumerate(lines) for o in line.operands}
    place = dict(slots)
    free, temporaries = [], 0
    if source is None:
        free.append(result)
    else:
        place[id(source)] = result
    code = []
    for index, line in enumerate(lines):
        ins = tuple(place[id(o)] for o in line.operands)
        free += {place[id(o)] for o in line.operands if last_use[id(o)] == index and place[id(o)] >= result}
        if index == len(lines) - 1 or result in free:
            out = result
        elif free:
            out = free[-1]
        else:
            temporaries += 1
            out = result + temporaries
        if out in free:
            free.remove(out)
        place[id(line.made)] = out
        code.append((line.function, ins, out))
    return code, temporaries
