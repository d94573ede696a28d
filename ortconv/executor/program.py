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
        constants: list[tuple[int, Array]] = []
        for operand in (o for line in lines for o in line.operands):
            if isinstance(operand, np.ndarray) and id(operand) not in slots:
                constants.append((len(slots), operand))
                slots[id(operand)] = len(slots)
        self._constants, self._result = constants, len(slots)
        self._read = sorted({slots[id(o)] for line in lines for o in line.operands if slots.get(id(o), len(slots)) < len(operands)})
        self._code, self._temporaries = _allocate(lines, slots, source, self._result)
        self._recipes: dict[Any, _Recipe | None] = {}

    def run(self, source: Array | None, operands: Sequence[Any]) -> Array | None:
        """The result; None where the operands are not float32 or do not broadcast along the memory of one of them."""
        read = [operands[slot] for slot in self._read]
        key = tuple([(v.shape, v.strides, v.dtype) for v in (read if source is None else [source, *read])])
        recipe = self._recipes.get(key, _UNKNOWN)
        if recipe is _UNKNOWN:
            recipe = self._recipe(source, read)
            if len(self._recipes) < _MOST_RECIPES:
                self._recipes[key] = recipe
        if recipe is None:
            return None
        result = np.empty_like(read[recipe.model]) if source is None else recipe.owned(source)
        rows = recipe.rows(result)
        slots = recipe.slots.copy()
        for slot, arranged, value in zip(self._read, recipe.arranged, read, strict=True):
            slots[slot] = arranged(value)
        slots[self._result] = rows
        if self._temporaries:
            slots += [np.empty_like(rows[: recipe.block]) for _ in range(self._temporaries)]
        if len(rows) <= recipe.block:
            self._execute(slots)
        else:
            self._in_blocks(recipe, slots)
        return result

    def _execute(self, slots: list[Any]) -> None:
        for function, ins, out in self._code:
            function(*[slots[i] for i in ins], slots[out])

    def _in_blocks(self, recipe: _Recipe, whole: list[Any]) -> None:
        slots, block, size = whole.copy(), recipe.block, len(whole[self._result])
        moving = [*recipe.moving, self._result]
        cut = [*recipe.cut, *range(self._result + 1, len(slots))]
        for start in range(0, size, block):
            for slot in moving:
                slots[slot] = whole[slot][start : start + block]
            if start + block > size:
                for slot in cut:
                    slots[slot] = whole[slot][: size - start]
            self._execute(slots)

    def _recipe(self, source: Array | None, read: Sequence[Array]) -> _Recipe | None:
        values = [(slot, v) for slot, v in zip(self._read, read, strict=True)] + self._constants
        arrays = [v for _, v in values] + ([] if source is None else [source])
        if any(v.dtype != np.float32 for v in arrays):
            return None
        model = 0 if source is not None else max(range(len(read)), key=lambda i: (read[i].size, read[i].ndim))
        like = read[model] if source is None else source
        if not like.size:
            return None
        target = np.empty_like(like)
        axes = tuple(sorted(range(like.ndim), key=lambda axis: -target.strides[axis]))
        placed = {slot: _Placed.of(v, like.shape, axes) for slot, v in values}
        widths = {p.repeat for p in placed.values() if p is not None and p.repeat > 1}
        periods = [p.period for p in placed.values() if p is not None and p.period > 1]
        width, longest = max(widths, default=1), max(periods, default=1)
        if None in placed.values() or len(widths) > 1:
            return None
        if any(longest % p for p in periods) or (widths and any(p != width for p in periods)):
            return None
        block = max(1, _BLOCK // width) if widths else longest * max(1, _BLOCK // longest)
        shape = (-1, width) if widths else (-1,)
        ways = {slot: p.way(axes, shape, min(block, like.size // width)) for slot, p in placed.items() if p is not None}
        slots: list[Any] = [None] * (self._result + 1)
        for slot, v in self._constants:
            slots[slot] = ways[slot].arranged(v)
        return _Recipe(
            model,
            (lambda x: x) if source is not None and source.transpose(axes).flags.c_contiguous else _dense_copy,
            _ordered(axes, shape),
            block,
            slots,
            [ways[slot].arranged for slot in self._read],
            [slot for slot, way in ways.items() if way.kind == "moving"],
            [slot for slot, way in ways.items() if way.kind == "cut"],
        )


_UNKNOWN: Any = object()
_MOST_RECIPES = 16


class _Recipe(NamedTuple):
    """What to do with operands of certain shapes and layouts."""

    model: int
    """The operand that the result is shaped and laid out like, without a source."""
    owned: Callable[[Array], Array]
    """The source, or a copy of it that is contiguous."""
    rows: Callable[[Array], Array]
    """The elements of the result in the order of its memory."""
    block: int
    slots: list[Any]
    arranged: list[Callable[[Array], Array]]
    """How each operand is brought into the order of the result."""
    moving: list[int]
    """Slots of operands that have a part for each block."""
    cut: list[int]
    """Slots of operands that repeat in each block, and are shorter in the last one."""


class _Way(NamedTuple):
    kind: str
    arranged: Callable[[Array], Array]


def _dense_copy(x: Array) -> Array:
    return x.copy(order="K")


def _ordered(axes: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[Array], Array]:
    if axes == tuple(range(len(axes))):
        return lambda x: x.reshape(shape)
    return lambda x: x.transpose(axes).reshape(shape)


class _Placed(NamedTuple):
    """An operand against the result, its axes in the order of the result's memory."""

    shape: tuple[int, ...]
    """Its own, with the rank of the result."""
    lead: int
    """How often the whole of it comes."""
    repeat: int
    """How many elements in a row each of its elements stands for."""
    period: int
    """After how many elements it begins again; 1 where it does not."""
    is_full: bool

    @staticmethod
    def of(v: Array, shape: tuple[int, ...], axes: Sequence[int]) -> _Placed | None:
        """None if it does not broadcast to the shape, or not as one run of neighbouring axes."""
        own = (1,) * (len(shape) - v.ndim) + v.shape
        if v.ndim > len(shape) or any(n not in (1, size) for n, size in zip(own, shape, strict=True)):
            return None
        held = [i for i, axis in enumerate(axes) if own[axis] != 1]
        wide = [i for i, axis in enumerate(axes) if shape[axis] != 1]
        if not held:
            return _Placed(own, 1, 1, 1, not wide)
        if [i for i in wide if held[0] <= i <= held[-1]] != held:
            return None
        lead = prod(shape[axes[i]] for i in wide if i < held[0])
        repeat = prod(shape[axes[i]] for i in wide if i > held[-1])
        return _Placed(own, lead, repeat, v.size if repeat == 1 < lead else 1, lead == repeat == 1)

    def way(self, axes: tuple[int, ...], shape: tuple[int, ...], count: int) -> _Way:
        """How blocks read it, for a result in rows of a shape; `count` elements or rows are the longest block."""
        flat, own, lead = _ordered(axes, (-1,)), self.shape, self.lead
        if self.is_full:
            ordered = _ordered(axes, shape)
            return _Way("moving", lambda v: ordered(v.reshape(own)))
        if self.repeat > 1:
            return _Way("moving", lambda v: np.tile(flat(v.reshape(own)), lead)[:, None])
        if self.period == 1:
            return _Way("whole", lambda v: v.reshape(()))
        if len(shape) > 1:
            return _Way("whole", lambda v: flat(v.reshape(own)))
        repeats = count // self.period
        return _Way("cut", lambda v: np.tile(flat(v.reshape(own)), repeats))


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
