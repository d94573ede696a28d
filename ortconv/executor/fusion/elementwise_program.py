"""Block programs: elementwise instructions on float32 tensors, run block by block to keep intermediate results in cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.blockwise import BLOCK
from ortconv.executor.algorithms.steps import blocks_of, broadcasts
from ortconv.executor.fusion.elementwise_ops import Instruction, Literal, Name, Operand
from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array, aligned


class BlockProgram:
    """Instructions that read some operands. The result overwrites the operand `source`, if there is one."""

    def __init__(
        self, instructions: Sequence[Instruction], source: Name | None, operands: Sequence[Name | None]
    ) -> None:
        places: dict[Name | None, int] = {name: slot for slot, name in enumerate(operands)}
        read = dict.fromkeys(o for instruction in instructions for o in instruction.operands)
        literals = [o for o in read if isinstance(o, Literal)]
        slots: dict[Operand, int] = {literal: slot for slot, literal in enumerate(literals, len(operands))}
        arrays = [(slots[literal], aligned(literal.array)) for literal in literals]
        numbers = {slot: v for slot, v in arrays if not v.ndim and v.dtype == np.float32}
        self._constants = [(slot, v) for slot, v in arrays if slot not in numbers]
        slots |= {o: places[o] for o in read if not isinstance(o, Literal) and o in places}
        self._read = sorted(slot for slot in slots.values() if slot < len(operands))
        self._result = len(operands) + len(literals)
        self._initial = [numbers.get(slot) for slot in range(self._result)]
        self._in_rows = any(instruction.is_row_wise for instruction in instructions)
        self._code, self._temporaries = _allocate(instructions, slots, source, self._result)

    def run(self, work: Work, source: Array | None, operands: Sequence[Any]) -> Array | None:
        """The result; None if the operands are not float32, or do not broadcast to the shape of one of them."""
        read = [(slot, operands[slot]) for slot in self._read]
        like = max((v for _, v in read), key=lambda v: (v.size, v.ndim)) if source is None else source
        layout = self._layout(like, [*read, *self._constants])
        if layout is None:
            return None
        result = self._memory(work, source, like, layout)
        slots: list[Any] = [*self._initial, layout.arranged(work, result)]
        for slot, v in self._constants:
            slots[slot] = layout.arranged(AT_ONCE, v)
        for slot, v in read:
            slots[slot] = layout.arranged(work, v)
        self._in_blocks(work, slots)
        return result

    def _memory(self, work: Work, source: Array | None, like: Array, layout: _Layout) -> Array:
        """Memory for the result: that of the source if it has no gaps, else memory laid out like an operand."""
        if source is not None and source.transpose(layout.axes).flags.c_contiguous:
            return source
        result = work.empty(like.shape) if self._in_rows else work.like(like)
        if source is not None:
            work.do(np.copyto, result, source)
        return result

    def _in_blocks(self, work: Work, slots: list[Any]) -> None:
        whole = slots[self._result]
        if whole.size <= BLOCK:
            self._execute(work, slots + [work.like(whole) for _ in range(self._temporaries)])
            return
        blocks = list(blocks_of(whole.shape, BLOCK, self._in_rows))
        temporaries = [work.like(whole[blocks[0]]) for _ in range(self._temporaries)]
        parted = [slot for slot, v in enumerate(slots) if v is not None and v.ndim == whole.ndim]
        for block in blocks:
            parts = slots.copy()
            for slot in parted:
                parts[slot] = slots[slot][block]
            self._execute(work, parts + [t[: len(parts[self._result])] for t in temporaries])

    def _execute(self, work: Work, slots: list[Any]) -> None:
        for function, operands in self._code:
            work.do(function, *operands(slots))

    def _layout(self, like: Array, values: Sequence[tuple[int, Array]]) -> _Layout | None:
        """The layout of a result like this array, for operands and constants by slot; None if they do not suit."""
        if not self._suits(like, values):
            return None
        strides = np.empty_like(like).strides
        axes = tuple(sorted(range(like.ndim), key=lambda axis: 0 if self._in_rows else -strides[axis]))
        row = 0 if self._in_rows else _repeated_row(like, axes, [v for _, v in values])
        return _Layout(like.shape, axes, row)

    def _suits(self, like: Array, values: Sequence[tuple[int, Array]]) -> bool:
        """True if elements are float32, operands broadcast to the result, and have whole rows if instructions read rows."""
        if not like.size or like.dtype != np.float32 or any(v.dtype != np.float32 for _, v in values):
            return False
        if not all(broadcasts(v.shape, like.shape) for _, v in values):
            return False
        if not self._in_rows:
            return True
        return like.ndim > 0 and all(v.shape[-1:] == like.shape[-1:] for slot, v in values if slot in self._read)


class _Layout(NamedTuple):
    """How the program reads operands for a result of a certain shape and layout."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """The axes of the result in the order of its memory."""
    row: int
    """Length of the rows in which the program runs, if it repeats operands to such a row; else 0."""

    def arranged(self, work: Work, v: Array) -> Array:
        """An operand in the order of the result's memory; a single number, or a row, if it is repeated."""
        if v.size == 1 and self.shape[-1:] != (1,):
            return v.reshape(())
        if self.row and v.size < prod(self.shape):
            return work.arranged(lambda v: np.resize(v, self.row), v)
        whole = (v if v.shape == self.shape else np.broadcast_to(v, self.shape)).transpose(self.axes)
        return work.reshaped(whole, (-1, self.row)) if self.row else whole


_SMALL = 1 << 12
"""Number of elements up to which repeated operands cost more than short rows."""

_SHORTEST_ROW = 1 << 11
"""Number of elements from which numpy adds the same row to each of many rows as fast as it adds a whole block."""


def _repeated_row(like: Array, axes: Sequence[int], values: Sequence[Array]) -> int:
    """The length of rows to which operands of the last of these axes are repeated, since numpy is slow on short rows; 0 for none.

    It is a multiple of that axis, divides the size of the result and fits a block. Operands of other axes forbid such rows.
    """
    repeated = [v for v in values if v.size not in (1, like.size)]
    if like.size <= _SMALL or not repeated:
        return 0
    last = axes[-1]
    size = like.shape[last]
    own = (1,) * last + (size,) + (1,) * (like.ndim - 1 - last)
    if any((1,) * (like.ndim - v.ndim) + v.shape != own for v in repeated):
        return 0
    count = like.size // size
    fewest, most = min(-(-_SHORTEST_ROW // size), count), min(BLOCK // size, count)
    return next((n * size for n in range(fewest, most + 1) if count % n == 0), 0)


_Code = list[tuple[Callable[..., Any], Callable[[list[Any]], Any]]]
"""Functions, and getters of their arguments from the slots."""


def _allocate(
    instructions: Sequence[Instruction], slots: dict[Operand, int], source: Name | None, result: int
) -> tuple[_Code, int]:
    """The code of the instructions, and the number of temporaries that it needs.

    The last instruction writes to slot `result`; the temporaries follow it. Each is reused after its last reader.
    """
    last_use = {o: index for index, instruction in enumerate(instructions) for o in instruction.operands}
    places = dict(slots) if source is None else {**slots, source: result}
    free = [result] if source is None else []
    code: _Code = []
    count = 0
    for index, (function, operands, made) in enumerate(instructions):
        ins = [places[o] for o in operands]
        free += {places[o] for o in operands if last_use[o] == index and places[o] >= result}
        if index == len(instructions) - 1:
            out = result
        elif free:
            out = min(free)
            free.remove(out)
        else:
            count += 1
            out = result + count
        places[made] = out
        code.append((function, itemgetter(*ins, out)))
    return code, count
