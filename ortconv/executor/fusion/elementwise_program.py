"""Block programs: elementwise instructions on float32 tensors, run block by block to keep intermediate results in cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK, LARGE_BLOCK, joint_row
from ortconv.executor.algorithms.steps import spans
from ortconv.executor.fusion.elementwise_ops import Clip, Instruction, Literal, Name, Operand
from ortconv.executor.replay.work import AT_ONCE, Work, copy_to
from ortconv.ir.tensor import Array, aligned


def columns(instructions: Sequence[Instruction]) -> set[Name]:
    """The names of values with one element per row."""
    found: set[Name] = set()
    for instruction in instructions:
        narrow = [o in found or (isinstance(o, Literal) and o.array.size == 1) for o in instruction.operands]
        if instruction.reduces or (all(narrow) and not found.isdisjoint(instruction.operands)):
            found.add(instruction.made)
    return found


class BlockProgram:
    """Instructions that read some operands. The result overwrites the operand `source`, if there is one."""

    def __init__(
        self, instructions: Sequence[Instruction], source: Name | None, operands: Sequence[Name | None]
    ) -> None:
        places: dict[Name | None, int] = {name: slot for slot, name in enumerate(operands)}
        read = dict.fromkeys(o for instruction in instructions for o in instruction.operands)
        literals = [o for o in read if isinstance(o, Literal)]
        slots: dict[Operand, int] = {literal: slot for slot, literal in enumerate(literals, len(operands))}
        self._constants = [(slots[literal], aligned(literal.array)) for literal in literals]
        slots |= {o: places[o] for o in read if not isinstance(o, Literal) and o in places}
        self._read = sorted(slot for slot in slots.values() if slot < len(operands))
        self._result = len(operands) + len(literals)
        self._instructions, self._source, self._slots = instructions, source, slots
        is_simple = all(isinstance(instruction.function, np.ufunc | Clip) for instruction in instructions)
        self._block = LARGE_BLOCK if is_simple else BLOCK
        self._in_rows = any(instruction.reduces or instruction.is_row_wise for instruction in instructions)
        self._code, self._temporaries, self._columns = _allocate(instructions, slots, source, self._result)
        self._recipes: dict[Any, _Recipe | None] = {}

    def run(self, work: Work, source: Array | None, operands: Sequence[Any]) -> Array | None:
        """The result; None if the operands are not float32 or do not broadcast along the memory of one of them."""
        read = [operands[slot] for slot in self._read]
        key = tuple([(v.shape, v.strides, v.dtype) for v in (read if source is None else [source, *read])])
        recipe = self._recipes.get(key, _UNKNOWN)
        if recipe is _UNKNOWN:
            recipe = self._recipe(source, read)
            if len(self._recipes) < _MOST_RECIPES:
                self._recipes[key] = recipe
        if recipe is None:
            return None
        result = self._memory(work, recipe, source, read)
        slots = recipe.slots.copy()
        if recipe.is_small:
            self._run_whole(work, slots, read, result)
            return result
        for slot, arranged, value in zip(self._read, recipe.arranged, read, strict=True):
            slots[slot] = arranged(work, value)
        slots[self._result] = recipe.rows(result)
        self._in_blocks(work, recipe, slots)
        return result

    def _memory(self, work: Work, recipe: _Recipe, source: Array | None, read: Sequence[Array]) -> Array:
        """Memory for the result. If there is a source, it contains the source's elements."""
        like = read[recipe.model] if source is None else source
        if recipe.keeps:
            return like
        result = work.empty(like.shape) if self._in_rows else work.like(like)
        if source is not None:
            work.do(copy_to, source, result)
        return result

    def _run_whole(self, work: Work, slots: list[Any], read: Sequence[Array], result: Array) -> None:
        """Run as one block with numpy's broadcasting. For few elements, that costs less than arranging the operands."""
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
        """True if rows are reduced from whole rows of a result of that shape, and the last instruction writes all of it."""
        held = {slot: v.shape for slot, v in values}
        shapes: dict[Operand | None, tuple[int, ...]] = {
            o: held[slot] for o, slot in self._slots.items() if slot in held
        }
        shapes[self._source] = shape
        made: tuple[int, ...] = ()
        for instruction in self._instructions:
            found = _broadcast([shapes[o] for o in instruction.operands])
            reads_rows = instruction.reduces or instruction.is_row_wise
            if found is None or (reads_rows and found[-1:] != shape[-1:]):
                return False
            made = (*found[:-1], 1) if instruction.reduces else found
            shapes[instruction.made] = made
        return made == shape

    def _recipe(self, source: Array | None, read: Sequence[Array]) -> _Recipe | None:
        values = [*zip(self._read, read, strict=True), *self._constants]
        model = 0 if source is not None else max(range(len(read)), key=lambda i: (read[i].size, read[i].ndim))
        like = read[model] if source is None else source
        if not self._suits(like, values):
            return None
        axes = self._axes(like)
        keeps = source is not None and like.transpose(axes).flags.c_contiguous
        slots: list[Any] = [None] * (self._result + 1)
        if like.size <= _SMALL and _broadcast([like.shape, *(v.shape for _, v in values)]) == like.shape:
            for slot, v in self._constants:
                slots[slot] = v
            return _Recipe(model, keeps, _itself, like.size, 1, slots, [], [], [], is_small=True)
        placed = [_Placed.of(v, like.shape, axes) for _, v in values]
        grid = self._grid(like, [p for p in placed if p is not None]) if None not in placed else None
        if grid is None:
            return None
        longest = min(grid.block, like.size // grid.width)
        ways = {slot: p.way(axes, grid.shape, longest) for (slot, _), p in zip(values, placed) if p is not None}
        return self._laid_out(model, keeps, axes, grid, slots, ways)

    def _laid_out(
        self, model: int, keeps: bool, axes: tuple[int, ...], grid: _Grid, slots: list[Any], ways: dict[int, _Way]
    ) -> _Recipe:
        for slot, v in self._constants:
            slots[slot] = ways[slot].arranged(AT_ONCE, v)
        arranged = [ways[slot].arranged for slot in self._read]
        moving, cut = ([slot for slot, way in ways.items() if way.kind == kind] for kind in ("moving", "cut"))
        return _Recipe(model, keeps, _ordered(axes, grid.shape), grid.block, grid.period, slots, arranged, moving, cut)

    def _suits(self, like: Array, values: Sequence[tuple[int, Array]]) -> bool:
        """True if elements are float32, and instructions that need whole rows can read them."""
        if not like.size or like.dtype != np.float32 or any(v.dtype != np.float32 for _, v in values):
            return False
        return not self._in_rows or (like.ndim > 0 and self._fills(like.shape, values))

    def _axes(self, like: Array) -> tuple[int, ...]:
        """The axes of the result in the order of its memory."""
        if self._in_rows:
            return tuple(range(like.ndim))
        strides = np.empty_like(like).strides
        return tuple(sorted(range(like.ndim), key=lambda axis: -strides[axis]))

    def _grid(self, like: Array, placed: Sequence[_Placed]) -> _Grid | None:
        """The grid of a result like this one; None if operands do not repeat in rows of one width."""
        widths = {p.repeat for p in placed if p.repeat > 1} | ({like.shape[-1]} if self._in_rows else set())
        periods = [p.period for p in placed if p.period > 1]
        width = max(widths, default=1)
        longest = max(*periods, width, 1)
        if len(widths) > 1 or not _fit(periods, width, longest):
            return None
        if not widths and periods and (row := joint_row(longest, like.size // longest)) is not None:
            widths, width, longest = {row}, row, row
        # An operand that does not repeat within a row is held for the whole block.
        most = BLOCK if periods and not widths else self._block
        block = longest // width * max(1, most // longest)
        return _Grid((-1, width) if widths else (-1,), width, block, longest // width)


def _fit(periods: Sequence[int], width: int, longest: int) -> bool:
    """True if the width divides all periods, and the periods divide the longest one."""
    return longest % width == 0 and all(longest % p == 0 and p % width == 0 for p in periods)


class _Grid(NamedTuple):
    """The elements of a result in the order of its memory, in rows."""

    shape: tuple[int, ...]
    """(-1, width), or (-1,) for rows of one element."""
    width: int
    block: int
    """Number of rows in a block."""
    period: int
    """Number of rows after which repeated operands begin again. A block has whole periods."""


_UNKNOWN: Any = object()
_MOST_RECIPES = 16


class _Recipe(NamedTuple):
    """How the program runs for operands of certain shapes and layouts."""

    model: int
    """The operand that determines the shape and layout of the result if there is no source."""
    keeps: bool
    """True if the result uses the memory of the source; otherwise it gets memory laid out like the model."""
    rows: Callable[[Array], Array]
    """The elements of the result in the order of its memory."""
    block: int
    period: int
    """Number of rows after which repeated operands begin again. A block has whole periods."""
    slots: list[Any]
    arranged: list[Callable[[Work, Array], Array]]
    """Functions that bring each operand into the order of the result."""
    moving: list[int]
    """Slots of operands with a separate part for each block."""
    cut: list[int]
    """Slots of operands that repeat in each block, and are shorter in the last one."""
    is_small: bool = False
    """True if operands are read without a copy."""


_SMALL = 1 << 12
"""Number of elements up to which numpy's broadcasting costs less than another layout."""


class _Way(NamedTuple):
    kind: str
    arranged: Callable[[Work, Array], Array]


def _itself(x: Array) -> Array:
    return x


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape to which shapes broadcast; None if there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _ordered(axes: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[Array], Array]:
    if axes == tuple(range(len(axes))):
        return lambda x: x.reshape(shape)
    return lambda x: x.transpose(axes).reshape(shape)


def _tiled(x: Array, copies: int) -> Array:
    return x if copies == 1 else np.tile(x, copies)


class _Placed(NamedTuple):
    """How an operand broadcasts to the result, with axes in the order of the result's memory."""

    shape: tuple[int, ...]
    """Its shape, with the rank of the result."""
    lead: int
    """Number of repetitions of the whole operand."""
    repeat: int
    """Number of neighboring elements of the result that read the same element."""
    period: int
    """Number of elements after which it repeats; 1 if it does not."""
    is_full: bool

    @staticmethod
    def of(v: Array, shape: tuple[int, ...], axes: Sequence[int]) -> _Placed | None:
        """None if it does not broadcast to the shape, or not as one run of neighboring axes."""
        own = (1,) * (len(shape) - v.ndim) + v.shape
        if v.ndim > len(shape) or any(n not in (1, size) for n, size in zip(own, shape, strict=True)):
            return None
        held, wide = ([i for i, axis in enumerate(axes) if sizes[axis] != 1] for sizes in (own, shape))
        if not held:
            return _Placed(own, 1, 1, 1, not wide)
        if [i for i in wide if held[0] <= i <= held[-1]] != held:
            return None
        lead = prod(shape[axes[i]] for i in wide if i < held[0])
        repeat = prod(shape[axes[i]] for i in wide if i > held[-1])
        return _Placed(own, lead, repeat, v.size if repeat == 1 < lead else 1, lead == repeat == 1)

    def way(self, axes: tuple[int, ...], shape: tuple[int, ...], count: int) -> _Way:
        """How blocks read the operand, for a result in rows of a shape; `count` is the number of elements or rows in
        the longest block.
        """
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


_Code = list[tuple[Callable[..., Any], Callable[[list[Any]], Any]]]
"""Functions, and getters of their arguments from the slots."""


def _allocate(
    instructions: Sequence[Instruction], slots: dict[Operand, int], source: Name | None, result: int
) -> tuple[_Code, int, int]:
    """The code of the instructions, and the numbers of full and narrow temporaries that it needs.

    The last instruction writes to slot `result`. The full temporaries follow it, then the narrow ones.
    """
    buffers = _Buffers(instructions, source)
    placed = [buffers.place(index, instruction) for index, instruction in enumerate(instructions)]

    def slot(operand: Operand, place: _Buffer | None) -> int:
        if place is None:
            return slots[operand]
        return result + place.number + (buffers.count[False] if place.is_narrow else 0)

    code: _Code = []
    for (function, operands, made), (ins, out) in zip(instructions, placed, strict=True):
        code.append((function, itemgetter(*map(slot, operands, ins), slot(made, out))))
    return code, buffers.count[False] - 1, buffers.count[True]


class _Buffer(NamedTuple):
    is_narrow: bool
    """True for one element per row."""
    number: int
    """Its number among those of its kind. The first of the full ones is the result."""


class _Buffers:
    """The buffers that instructions write to. A buffer is reused after its last reader."""

    def __init__(self, instructions: Sequence[Instruction], source: Name | None) -> None:
        self._narrow, self._last = columns(instructions), len(instructions) - 1
        self._last_use = {o: index for index, instruction in enumerate(instructions) for o in instruction.operands}
        self._held: dict[Operand, _Buffer] = {} if source is None else {source: _Buffer(False, 0)}
        self._free = [_Buffer(False, 0)] if source is None else []
        self.count = {False: 1, True: 0}

    def place(self, index: int, instruction: Instruction) -> tuple[list[_Buffer | None], _Buffer]:
        """The buffers from which an instruction reads its operands, None for operands of the program; and the buffer to
        which it writes.
        """
        ins = [self._held.get(o) for o in instruction.operands]
        done = [o for o in dict.fromkeys(instruction.operands) if self._last_use[o] == index]
        self._free += [self._held[o] for o in done if o in self._held]
        out = _Buffer(False, 0) if index == self._last else self._take(instruction.made in self._narrow)
        self._held[instruction.made] = out
        return ins, out

    def _take(self, is_narrow: bool) -> _Buffer:
        suitable = sorted(buffer for buffer in self._free if buffer.is_narrow == is_narrow)
        if suitable:
            self._free.remove(suitable[0])
            return suitable[0]
        self.count[is_narrow] += 1
        return _Buffer(is_narrow, self.count[is_narrow] - 1)
