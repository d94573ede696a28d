"""Fewer instructions for the same elements: Gelu, Swish, HardSwish and standard scores in operators as one instruction."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import erf_block, gelu_block, gelu_tanh_block
from ortconv.executor.fusion.elementwise_ops import (
    Instruction,
    Literal,
    Operand,
    row_mean,
    sigmoid,
    square,
    standardize,
    swish,
)
from ortconv.ir.graph import Value

_Pattern = Any
"""A tuple of a function and the patterns of its operands, the number that a constant is, or a name for any operand."""

_COMMUTATIVE = (np.add, np.multiply)


def _halves(x: str, sum: _Pattern) -> list[_Pattern]:
    """x * sum / 2 in any order."""
    return [
        (np.multiply, (np.multiply, x, sum), 0.5),
        (np.multiply, (np.multiply, x, 0.5), sum),
        (np.multiply, x, (np.multiply, sum, 0.5)),
    ]


def _one_and(curve: _Pattern) -> _Pattern:
    return np.add, curve, 1.0


_BY_ROOT_OF_2 = ((np.divide, "x", math.sqrt(2)), (np.multiply, "x", math.sqrt(0.5)))
_CUBE = (np.multiply, (square, "x"), "x")
_INNER = (np.multiply, (np.add, "x", (np.multiply, _CUBE, 0.044715)), math.sqrt(2 / math.pi))
_CENTERED = (np.subtract, "x", (row_mean, "x"))
_SQUARES = ((square, _CENTERED), (np.multiply, _CENTERED, _CENTERED))

_Replaced = tuple[_Pattern, Callable[..., Callable[..., Any]]]

_PATTERNS: list[_Replaced] = [
    ((np.multiply, "x", (sigmoid, "x")), lambda: swish(1)),
    *((p, lambda: gelu_block) for scaled in _BY_ROOT_OF_2 for p in _halves("x", _one_and((erf_block, scaled)))),
    *((p, lambda: gelu_tanh_block) for p in _halves("x", _one_and((np.tanh, _INNER)))),
    *(
        ((np.divide, _CENTERED, (np.sqrt, (np.add, (row_mean, squares), "epsilon"))), standardize)
        for squares in _SQUARES
    ),
]
"""A pattern that one instruction of x replaces, and the maker of its function. It takes the other operands, which are numbers."""


def _functions(pattern: _Pattern) -> set[Callable[..., Any]]:
    return {pattern[0]}.union(*map(_functions, pattern[1:])) if isinstance(pattern, tuple) else set()


_NEEDED = [_functions(pattern) for pattern, _ in _PATTERNS]
"""For each pattern, the functions in it."""


def simplified(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Instructions that make the last result of these, float32 elements to rounding."""
    there = {instruction.function for instruction in instructions}
    patterns = [pattern for pattern, needed in zip(_PATTERNS, _NEEDED, strict=True) if needed <= there]
    if not patterns:
        return list(instructions)
    uses = _Uses(instructions)
    for root in instructions:
        found = uses.found(root, patterns)
        if found is not None:
            uses = _Uses(found)
    return uses.instructions


class _Uses:
    """The maker and the readers of each operand of some instructions."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions = list(instructions)
        self._makers: dict[Operand, Instruction] = {instruction.made: instruction for instruction in instructions}
        self._readers: defaultdict[Operand, list[Instruction]] = defaultdict(list)
        for instruction in instructions:
            for operand in dict.fromkeys(instruction.operands):
                self._readers[operand].append(instruction)

    def found(self, root: Instruction, patterns: Iterable[_Replaced]) -> list[Instruction] | None:
        """The instructions with one in the place of those that a pattern matches, which ends in the root; else None."""
        for pattern, make in patterns:
            bound: dict[str, Operand] = {}
            gone: list[Instruction] = []
            if self._makers.get(root.made) is not root or not self._matches(pattern, root.made, bound, gone):
                continue
            x = bound.pop("x")
            numbers = [_number(operand) for operand in bound.values()]
            if None in numbers or not self._only_inside(gone) or not _have_one_rank(x, root.made):
                continue
            dropped = {instruction.made for instruction in gone[:-1]}
            new = Instruction(make(*numbers), (x,), root.made)
            return [new if i is root else i for i in self.instructions if i.made not in dropped]
        return None

    def _matches(self, pattern: _Pattern, operand: Operand, bound: dict[str, Operand], gone: list[Instruction]) -> bool:
        """True if an instruction tree that ends in `operand` has this pattern. `bound` and `gone` are filled, the root last."""
        if isinstance(pattern, str):
            return bound.setdefault(pattern, operand) is operand
        if isinstance(pattern, float):
            number = _number(operand)
            return number is not None and math.isclose(number, pattern, rel_tol=1e-5)
        maker = self._makers.get(operand)
        if maker is None or maker.function is not pattern[0]:
            return False
        for operands in (maker.operands, maker.operands[::-1]) if maker.function in _COMMUTATIVE else (maker.operands,):
            names, inner = dict(bound), list(gone)
            if all(self._matches(p, o, names, inner) for p, o in zip(pattern[1:], operands, strict=True)):
                bound.update(names)
                gone[:] = inner if maker in inner else [*inner, maker]
                return True
        return False

    def _only_inside(self, gone: Sequence[Instruction]) -> bool:
        """True if none but these instructions reads what they make, except for the last one."""
        members = {instruction.made for instruction in gone}
        return all(reader.made in members for instruction in gone[:-1] for reader in self._readers[instruction.made])


def _have_one_rank(x: Operand, made: Operand) -> bool:
    """False where constants of one element, which go, might give the result more axes than x has."""
    return not (isinstance(x, Value) and isinstance(made, Value)) or (x.rank is not None and x.rank == made.rank)


def _number(operand: Operand) -> float | None:
    return float(operand.array.reshape(())) if isinstance(operand, Literal) and operand.array.size == 1 else None
