"""Fewer instructions for the same elements: Gelu, Swish, HardSwish and standard scores in operators as one instruction."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.executor.algorithms.blockwise import erf_block, gelu_block, gelu_tanh_block
from ortconv.executor.fusion.elementwise_ops import (
    OF_SCALED,
    Instruction,
    Literal,
    Operand,
    Temporary,
    hard_gate,
    hard_swish,
    row_mean,
    sigmoid,
    square,
    standardize,
    swish,
)
from ortconv.ir.graph import Value
from ortconv.ir.tensor import Array


def simplified(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Instructions that make the last result of these, float32 elements to rounding."""
    uses = _Uses(instructions)
    for instruction in instructions:
        find = _FINDERS.get(instruction.function)
        found = find(instruction, uses) if find is not None and uses.has(instruction) else None
        if found is not None and uses.only_inside(found[0]) and _have_one_rank(found[1]):
            uses = _Uses(uses.replaced(*found))
    return uses.instructions


_Found = tuple[list[Instruction], Instruction]
"""Instructions, the last one last, and the one for all of them."""


class _Uses:
    """The maker and the readers of each operand of some instructions."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions = list(instructions)
        self.makers: dict[Operand, Instruction] = {instruction.made: instruction for instruction in instructions}
        self.readers: defaultdict[Operand, list[Instruction]] = defaultdict(list)
        for instruction in instructions:
            for operand in dict.fromkeys(instruction.operands):
                self.readers[operand].append(instruction)

    def has(self, instruction: Instruction) -> bool:
        return self.makers.get(instruction.made) is instruction

    def only_inside(self, gone: Sequence[Instruction]) -> bool:
        """True if none but these instructions reads what they make, except for the last one."""
        members = {instruction.made for instruction in gone}
        return all(reader.made in members for instruction in gone[:-1] for reader in self.readers[instruction.made])

    def replaced(self, gone: Sequence[Instruction], new: Instruction) -> list[Instruction]:
        """The instructions with a new one in the place of the last of some."""
        dropped = {instruction.made for instruction in gone[:-1]}
        return [new if i is gone[-1] else i for i in self.instructions if i.made not in dropped]

    def matches(self, pattern: _Pattern, operand: Operand, bound: dict[str, Operand], gone: list[Instruction]) -> bool:
        """True if an instruction tree that ends in `operand` has this pattern. `bound` and `gone` are filled."""
        if isinstance(pattern, str):
            return bound.setdefault(pattern, operand) is operand
        instruction = self.makers.get(operand)
        if instruction is None or instruction.function is not pattern[0]:
            return False
        if not all(self.matches(p, o, bound, gone) for p, o in zip(pattern[1:], instruction.operands, strict=True)):
            return False
        if instruction not in gone:
            gone.append(instruction)
        return True


_GELU_FORMS: dict[Any, tuple[Callable[..., Any], tuple[float, ...]]] = {
    erf_block: (gelu_block, (0, math.sqrt(0.5))),
    np.tanh: (gelu_tanh_block, (0, math.sqrt(2 / math.pi), 0, math.sqrt(2 / math.pi) * 0.044715)),
}
"""By the function of which Gelu is made: Gelu itself, and the polynomial in x that this function is applied to."""


def _gelu(root: Instruction, uses: _Uses) -> _Found | None:
    """A product of x, 1/2 and 1 + f(P(x)), in any order."""
    factor, leaves, gone = _factors(root, uses)
    sums = [leaf for leaf in leaves if _is_sum_with_one(uses.makers.get(leaf))]
    others = [leaf for leaf in leaves if leaf not in sums]
    if factor != 0.5 or len(sums) != 1 or len(others) != 1:
        return None
    added, x = uses.makers[sums[0]], others[0]
    curve = next((uses.makers[o] for o in added.operands if o in uses.makers), None)
    if curve is None or curve.function not in _GELU_FORMS:
        return None
    gelu, wanted = _GELU_FORMS[curve.function]
    inner: dict[Operand, Instruction] = {}
    powers = _powers(curve.operands[0], x, uses.makers, inner)
    if powers is None or not np.allclose(powers, np.pad(wanted, (0, _TERMS - len(wanted))), 1e-5, 0):
        return None
    return [*inner.values(), curve, added, *gone], Instruction(gelu, (x,), root.made)


def _factors(root: Instruction, uses: _Uses) -> tuple[float, list[Operand], list[Instruction]]:
    """The number and the operands whose product an instruction makes, and the instructions that multiply, the root last."""
    factor, leaves, gone, waiting = 1.0, [], [root], list(root.operands)
    if root.function is np.divide:
        factor, waiting = _inverse(root), [root.operands[0]]
    while waiting:
        operand = waiting.pop()
        number, inner = _number(operand), uses.makers.get(operand)
        is_alone = inner is not None and len(uses.readers[operand]) == 1
        if number is not None:
            factor *= number
        elif inner is not None and is_alone and inner.function is np.multiply:
            gone.insert(0, inner)
            waiting += inner.operands
        elif inner is not None and is_alone and inner.function is np.divide and _number(inner.operands[1]) is not None:
            gone.insert(0, inner)
            factor *= _inverse(inner)
            waiting.append(inner.operands[0])
        else:
            leaves.append(operand)
    return factor, leaves, gone


def _inverse(quotient: Instruction) -> float:
    """The factor by which an instruction that divides multiplies; NaN unless it divides by a number."""
    return 1 / (_number(quotient.operands[1]) or math.nan)


def _is_sum_with_one(instruction: Instruction | None) -> bool:
    return instruction is not None and instruction.function is np.add and 1 in map(_number, instruction.operands)


_DEEPEST = 6
"""How far the x of a polynomial is looked for."""

_TERMS = 8


def _powers(
    operand: Operand,
    x: Operand,
    makers: dict[Operand, Instruction],
    instructions: dict[Operand, Instruction],
    depth: int = 0,
) -> Array | None:
    """The coefficients of an operand that is a polynomial in x, and the instructions met on the way, by what they make."""
    number, instruction = _number(operand), makers.get(operand)
    if operand is x or number is not None:
        powers = np.zeros(_TERMS)
        powers[1 if number is None else 0] = 1 if number is None else number
        return powers
    combine = None if instruction is None else _ARITHMETIC.get(instruction.function)
    if instruction is None or combine is None or depth == _DEEPEST:
        return None
    instructions[operand] = instruction
    parts = [_powers(o, x, makers, instructions, depth + 1) for o in instruction.operands]
    known = [p for p in parts if p is not None]
    return combine(*known) if len(known) == len(parts) else None


def _product(a: Array, b: Array) -> Array | None:
    full = np.convolve(a, b)
    return None if full[_TERMS:].any() else full[:_TERMS]


_ARITHMETIC: dict[Any, Callable[..., Array | None]] = {
    np.add: np.add,
    np.subtract: np.subtract,
    np.multiply: _product,
    np.divide: lambda a, b: None if b[1:].any() or not b[0] else a / b[0],
    square: lambda a: _product(a, a),
}


_Pattern = Any
"""A name for any operand, always the same one, or a tuple of a function and the patterns of its operands."""

_CENTERED = (np.subtract, "x", (row_mean, "x"))
_STANDARDIZED = [
    (np.divide, _CENTERED, (np.sqrt, (np.add, (row_mean, squares), "epsilon")))
    for squares in ((square, _CENTERED), (np.multiply, _CENTERED, _CENTERED))
]
"""(x - mean) / sqrt(mean of squares + epsilon) in rows."""


def _standardize(root: Instruction, uses: _Uses) -> _Found | None:
    for pattern in _STANDARDIZED:
        bound: dict[str, Operand] = {}
        gone: list[Instruction] = []
        if uses.matches(pattern, root.made, bound, gone):
            epsilon = _number(bound["epsilon"])
            return None if epsilon is None else (gone, Instruction(standardize(epsilon), (bound["x"],), root.made))
    return None


_GATES: dict[Any, Callable[..., Any]] = {sigmoid: swish(1), hard_gate: hard_swish}
"""By function of x: its product with x."""


def _gated(root: Instruction, uses: _Uses) -> _Found | None:
    """x * sigmoid(x), or its piecewise linear form."""
    for x, gate in (root.operands, root.operands[::-1]):
        maker = uses.makers.get(gate)
        if maker is not None and maker.function in _GATES and maker.operands == (x,):
            return [maker, root], Instruction(_GATES[maker.function], (x,), root.made)
    return None


def after_factor(instruction: Instruction) -> list[Instruction]:
    """An instruction, or one that multiplies by a constant and one that then costs less: for what is behind constant weights."""
    if instruction.function not in OF_SCALED:
        return [instruction]
    factor, function = OF_SCALED[instruction.function]
    scaled = Temporary()
    product = Instruction(np.multiply, (*instruction.operands, Literal(np.asarray(factor, np.float32))), scaled)
    return [product, instruction._replace(function=function, operands=(scaled,))]


def _have_one_rank(instruction: Instruction) -> bool:
    """False where constants of one element, which go, might give the result more axes than x has."""
    (x,), made = instruction.operands, instruction.made
    return not (isinstance(x, Value) and isinstance(made, Value)) or (x.rank is not None and x.rank == made.rank)


def _number(operand: Operand) -> float | None:
    return float(operand.array.reshape(())) if isinstance(operand, Literal) and operand.array.size == 1 else None


_FINDERS: dict[Any, Callable[[Instruction, _Uses], _Found | None]] = {
    np.multiply: lambda root, uses: _gated(root, uses) or _gelu(root, uses),
    np.divide: lambda root, uses: _standardize(root, uses) or _gelu(root, uses),
}
