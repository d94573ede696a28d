"""Block programs: elementwise instructions on float32 tensors, run block by block so that what they pass on stays in cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK, LARGE_BLOCK, joint_row
from ortconv.executor.fusion.elementwise_ops import Clip
from ortconv.executor.replay.work import AT_ONCE, Work, copy_to, spans
from ortconv.ir.tensor import Array, aligned


class Instruction(NamedTuple):
    """One instruction: `function(*operands, result)`. Operands and what it makes are names (any objects) or constant arrays."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    made: Any
    reduces: bool = False
    """True for a function of whole rows, along the last axis, that makes one element of each."""
    in_rows: bool = False
    """True for a function of whole rows that makes whole rows."""


def columns(instructions: Sequence[Instruction]) -> set[int]:
    """The ids of what is made with one element per row."""
    found: set[int] = set()
    for instruction in instructions:
        narrow = [id(o) in found or (isinstance(o, np.ndarray) and o.size == 1) for o in instruction.operands]
        if instruction.reduces or (all(narrow) and any(id(o) in found for o in instruction.operands)):
            found.add(id(instruction.made))
    return found


class BlockProgram:
    """Instructions over named operands. `source`, where there is one, names an operand whose memory the result takes."""

    def __init__(self, instructions: Sequence[Instruction], source: Any, operands: Sequence[Any]) -> None:
        slots = {id(name): slot for slot, name in enumerate(operands)}
        constants: list[tuple[int, Array]] = []
        for operand in (o for instruction in instructions for o in instruction.operands):
            if isinstance(operand, np.ndarray) and id(operand) not in slots:
                constants.append((len(slots), aligned(operand)))
                slots[id(operand)] = len(slots)
        self._constants, self._result = constants, len(slots)
        self._read = sorted(
            {
                slots[id(o)]
                for instruction in instructions
                for o in instruction.operands
                if slots.get(id(o), len(slots)) < len(operands)
            }
        )
        self._instructions, self._source, self._slots = instructions, source, slots
        is_simple = all(isinstance(instruction.function, np.ufunc | Clip) for instruction in instructions)
        self._block = LARGE_BLOCK if is_simple else BLOCK
        self._in_rows = any(instruction.reduces or instruction.in_rows for instruction in instructions)
        self._code, self._temporaries, self._columns = _allocate(instructions, slots, source, self._result)
        self._recipes: dict[Any, _Recipe | None] = {}

    def run(self, work: Work, source: Array | None, operands: Sequence[Any]) -> Array | None:
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
        result = read[recipe.model] if source is None else source
        if not recipe.keeps:
            given, result = result, work.empty(result.shape) if self._in_rows else work.like(result)
            if source is not None:
                work.do(copy_to, given, result)
        slots = recipe.slots.copy()
        if recipe.is_small:
            self._run_whole(work, slots, read, result)
            return result
        for slot, arranged, value in zip(self._read, recipe.arranged, read, strict=True):
            slots[slot] = arranged(work, value)
        slots[self._result] = recipe.rows(result)
        self._in_blocks(work, recipe, slots)
        return result

    def _run_whole(self, work: Work, slots: list[Any], read: Sequence[Array], result: Array) -> None:
        """One block, and numpy broadcasts: for few elements that is less work than to lay them out."""
        for slot, value in zip(self._read, read):
            slots[slot] = value
        slots[self._result] = result
        slots += [work.like(result) for _ in range(self._temporaries)]
        slots += [work.like(result[..., :1]) for _ in range(self._columns)]
        self._execute(work, slots)

    def _execute(self, work: Work, slots: list[Any]) -> None:
        if work is AT_ONCE:
            for function, operands in self._code:
                function(*operands(slots))
        else:
            for function, operands in self._code:
                work.do(function, *operands(slots))

    def _in_blocks(self, work: Work, recipe: _Recipe, whole: list[Any]) -> None:
        rows, block, period = whole[self._result], recipe.block, recipe.period
        if parts := spans(-(-len(rows) // period), block // period):
            longest = min((parts[0].stop - parts[0].start) * period, len(rows))
            held = whole + [work.like(rows[:longest]) for _ in range(self._temporaries)]
            held += [work.like(rows[:longest, :1]) for _ in range(self._columns)]
            slots = held.copy()
            moving = [*recipe.moving, self._result]
            cut = [*recipe.cut, *range(self._result + 1, len(slots))]
            for part in parts:
                start, stop = part.start * period, min(part.stop * period, len(rows))
                for slot in moving:
                    slots[slot] = held[slot][start:stop]
                for slot in cut:
                    slots[slot] = held[slot][: stop - start]
                self._execute(work, slots)

    def _fills(self, shape: tuple[int, ...], values: Sequence[tuple[int, Array]]) -> bool:
        """True if rows are reduced from whole rows of a result of that shape, and the last instruction makes all of it."""
        held = {slot: v.shape for slot, v in values}
        shapes = {name: held[slot] for name, slot in self._slots.items() if slot in held} | {id(self._source): shape}
        made: tuple[int, ...] = ()
        try:
            for instruction in self._instructions:
                made = np.broadcast_shapes(*(shapes[id(o)] for o in instruction.operands))
                if (instruction.reduces or instruction.in_rows) and (not made or made[-1] != shape[-1]):
                    return False
                if instruction.reduces:
                    made = (*made[:-1], 1)
                shapes[id(instruction.made)] = made
        except ValueError:
            return False
        return made == shape

    def _recipe(self, source: Array | None, read: Sequence[Array]) -> _Recipe | None:
        values = [(slot, v) for slot, v in zip(self._read, read, strict=True)] + self._constants
        arrays = [v for _, v in values] + ([] if source is None else [source])
        if any(v.dtype != np.float32 for v in arrays):
            return None
        model = 0 if source is not None else max(range(len(read)), key=lambda i: (read[i].size, read[i].ndim))
        like = read[model] if source is None else source
        if not like.size or (self._in_rows and not (like.ndim and self._fills(like.shape, values))):
            return None
        order: Any = "C" if self._in_rows else "K"
        target = np.empty_like(like, order=order)
        axes = tuple(range(like.ndim))
        if not self._in_rows:
            axes = tuple(sorted(axes, key=lambda axis: -target.strides[axis]))
        keeps = source is not None and like.transpose(axes).flags.c_contiguous
        slots: list[Any] = [None] * (self._result + 1)
        if like.size <= _SMALL and _broadcast(arrays) == like.shape:
            for slot, v in self._constants:
                slots[slot] = v
            return _Recipe(model, keeps, _itself, like.size, 1, slots, [], [], [], is_small=True)
        placed = {slot: _Placed.of(v, like.shape, axes) for slot, v in values}
        widths = {p.repeat for p in placed.values() if p is not None and p.repeat > 1}
        periods = [p.period for p in placed.values() if p is not None and p.period > 1]
        if self._in_rows:
            widths.add(like.shape[-1])
        width, longest = max(widths, default=1), max(periods, default=1)
        if None in placed.values() or len(widths) > 1:
            return None
        longest = max(longest, width)
        if any(longest % p or p % width for p in periods) or longest % width:
            return None
        if not widths and periods and (row := joint_row(longest, like.size // longest)) is not None:
            widths, width, longest = {row}, row, row
        most = BLOCK if periods and not widths else self._block  # what repeats in no row is held for all of a block
        block = longest // width * max(1, most // longest)
        shape = (-1, width) if widths else (-1,)
        ways = {slot: p.way(axes, shape, min(block, like.size // width)) for slot, p in placed.items() if p is not None}
        for slot, v in self._constants:
            slots[slot] = ways[slot].arranged(AT_ONCE, v)
        return _Recipe(
            model,
            keeps,
            _ordered(axes, shape),
            block,
            longest // width,
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
    keeps: bool
    """True where the result takes the memory of the source, else it gets memory like that of the model."""
    rows: Callable[[Array], Array]
    """The elements of the result in the order of its memory."""
    block: int
    period: int
    """Rows after which operands that repeat begin again. A block has whole periods."""
    slots: list[Any]
    arranged: list[Callable[[Work, Array], Array]]
    """How each operand is brought into the order of the result."""
    moving: list[int]
    """Slots of operands that have a part for each block."""
    cut: list[int]
    """Slots of operands that repeat in each block, and are shorter in the last one."""
    is_small: bool = False
    """True where operands are read without a copy."""


_SMALL = 1 << 12
"""Elements up to which numpy's broadcasting costs less than another layout."""


class _Way(NamedTuple):
    kind: str
    arranged: Callable[[Work, Array], Array]


def _itself(x: Array) -> Array:
    return x


def _broadcast(arrays: Sequence[Array]) -> tuple[int, ...] | None:
    """The shape of all of them together, if there is one."""
    try:
        return np.broadcast_shapes(*(v.shape for v in arrays))
    except ValueError:
        return None


def _ordered(axes: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[Array], Array]:
    if axes == tuple(range(len(axes))):
        return lambda x: x.reshape(shape)
    return lambda x: x.transpose(axes).reshape(shape)


def _tiled(x: Array, copies: int) -> Array:
    return x if copies == 1 else np.tile(x, copies)


class _Placed(NamedTuple):
    """An operand against the result, its axes in the order of the result's memory."""

    shape: tuple[int, ...]
    """Its own, with the rank of the result."""
    lead: int
    """How often the whole of it comes."""
    repeat: int
    """How many neighboring elements of the result read each of its elements."""
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
        own, lead = self.shape, self.lead

        def flat(v: Array) -> Array:
            return v.reshape(own).transpose(axes).reshape(-1)

        if self.is_full:
            return _Way("moving", lambda work, v: work.reshaped(v.reshape(own).transpose(axes), shape))
        if self.repeat > 1:
            return _Way("moving", lambda work, v: work.arranged(lambda v: np.tile(flat(v), lead)[:, None], v))
        if self.period == 1:
            return _Way("whole", lambda work, v: v.reshape(()))
        width = shape[-1]
        if width > 0 and width % self.period == 0:
            copies = width // self.period
            return _Way("whole", lambda work, v: work.arranged(lambda v: _tiled(flat(v), copies), v))
        repeats = count * max(width, 1) // self.period
        return _Way("cut", lambda work, v: work.arranged(lambda v: np.tile(flat(v), repeats).reshape(shape), v))


def _allocate(
    instructions: Sequence[Instruction], slots: dict[int, int], source: Any, result: int
) -> tuple[list[tuple[Callable[..., Any], Callable[[list[Any]], Any]]], int, int]:
    """The instructions as functions and getters of their arguments from the slots, and how many full and narrow temporaries.

    These follow `result`, where the last instruction writes.
    """
    narrow = columns(instructions)
    last_use = {id(o): index for index, instruction in enumerate(instructions) for o in instruction.operands}
    # Buffers are (narrow, number); the result is the first of the full ones.
    buffers: dict[int, tuple[bool, int]] = {} if source is None else {id(source): (False, 0)}
    free: list[tuple[bool, int]] = [(False, 0)] if source is None else []
    count = {False: 1, True: 0}
    placed = []
    for index, instruction in enumerate(instructions):
        names = {id(o) for o in instruction.operands}
        ins = [buffers.get(id(o), slots.get(id(o))) for o in instruction.operands]
        free += [buffers[name] for name in names if name in buffers and last_use[name] == index]
        kind = id(instruction.made) in narrow
        suitable = sorted(buffer for buffer in free if buffer[0] == kind)
        if index == len(instructions) - 1:
            out = (False, 0)
        elif suitable:
            out = suitable[0]
            free.remove(out)
        else:
            out = (kind, count[kind])
            count[kind] += 1
        buffers[id(instruction.made)] = out
        placed.append((instruction.function, ins, out))

    def slot(where: Any) -> int:
        return where if isinstance(where, int) else result + where[1] + (count[False] if where[0] else 0)

    code: list[tuple[Callable[..., Any], Callable[[list[Any]], Any]]] = [
        (function, itemgetter(*map(slot, ins), slot(out))) for function, ins, out in placed
    ]
    return code, count[False] - 1, count[True]
