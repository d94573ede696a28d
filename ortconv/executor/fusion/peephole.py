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
    hard_gate,
    hard_swish,
    row_mean,
    sigmoid,
    square,
    standardize,
    swish,
)
from ortconv.executor.fusion.elementwise_program import Instruction
from ortconv.ir.graph import Value
from ortconv.ir.tensor import Array


def simplified(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Instructions that make the last result of these, float32 elements to rounding."""
    for instruction in instructions:
        find = _FINDERS.get(instruction.function)
        if find is not None:
            found = find(instruction, instructions)
            if found is not None:
                gone, made = found
                dropped = {id(other.made) for other in gone[:-1]}
                instructions = [
                    made if other is gone[-1] else other for other in instructions if id(other.made) not in dropped
                ]
    return list(instructions)


_GELU_FORMS: dict[Any, tuple[Callable[..., Any], tuple[float, ...]]] = {
    erf_block: (gelu_block, (0, math.sqrt(0.5))),
    np.tanh: (gelu_tanh_block, (0, math.sqrt(2 / math.pi), 0, math.sqrt(2 / math.pi) * 0.044715)),
}
"""By the function of which Gelu is made: Gelu itself, and the polynomial in x that this function is applied to."""


def _gelu(root: Instruction, instructions: Sequence[Instruction]) -> tuple[list[Instruction], Instruction] | None:
    """The instructions that multiply x, 1/2 and 1 + f(P(x)) in any order, the last one last, and the one for all of them."""
    makers = {id(instruction.made): instruction for instruction in instructions}
    readers: defaultdict[int, list[Instruction]] = defaultdict(list)
    for instruction in instructions:
        for operand in instruction.operands:
            readers[id(operand)].append(instruction)
    gelu, wanted = _GELU_FORMS[root.function]
    found = _argument(root.operands[0], makers, wanted)
    if found is None:
        return None
    (x, inner), factor, has_x = found, 1.0, False
    gone, made = [*inner, root], root.made
    while len(readers[id(made)]) == 1:
        instruction = readers[id(made)][0]
        if instruction.function is not (np.add if made is root.made else np.multiply):
            break
        other = instruction.operands[1 if instruction.operands[0] is made else 0]
        if made is root.made:
            if _number(other) != 1:
                return None
        elif _number(other) is not None:
            factor *= _number(other)  # type: ignore[operator]
        elif other is x and not has_x:
            has_x = True
        else:
            before = makers.get(id(other))
            part = None if before is None or len(readers[id(other)]) > 1 else _scaled(before)
            if before is None or part is None or part[0] is not x or has_x:
                break
            gone.append(before)
            has_x, factor = True, factor * part[1]
        gone.append(instruction)
        made = instruction.made
        if has_x and factor == 0.5:
            members = {id(instruction.made) for instruction in gone}
            inside = all(
                id(reader.made) in members for instruction in gone[:-1] for reader in readers[id(instruction.made)]
            )
            return (gone, Instruction(gelu, (x,), made)) if inside and _have_one_rank(x, made) else None
    return None


def _argument(
    operand: Any, makers: dict[int, Instruction], wanted: Sequence[float]
) -> tuple[Any, list[Instruction]] | None:
    """The x whose polynomial with these coefficients, constant first, an operand is, and the instructions that compute it."""
    candidates = [operand]
    expected = np.pad(wanted, (0, _TERMS - len(wanted)))
    for x in candidates:
        instructions: dict[int, Instruction] = {}
        powers = _powers(operand, x, makers, instructions)
        if powers is not None and np.allclose(powers, expected, 1e-5, 0):
            return x, list(instructions.values())
        instruction = makers.get(id(x))
        if instruction is not None and len(candidates) < _MOST_CANDIDATES:
            known = {id(c) for c in candidates}
            candidates += [o for o in instruction.operands if _number(o) is None and id(o) not in known]
    return None


_MOST_CANDIDATES, _DEEPEST = 12, 6
"""How far the x of a polynomial is looked for. Gelu in operators has fewer values on the way, and no more instructions in a row."""


_TERMS = 8


def _powers(
    operand: Any, x: Any, makers: dict[int, Instruction], instructions: dict[int, Instruction], depth: int = 0
) -> Array | None:
    """The coefficients of an operand that is a polynomial in x, and the instructions met on the way, by what they make."""
    number, instruction = _number(operand), makers.get(id(operand))
    if operand is x or number is not None:
        powers = np.zeros(_TERMS)
        powers[1 if number is None else 0] = 1 if number is None else number
        return powers
    combine = None if instruction is None else _ARITHMETIC.get(instruction.function)
    if instruction is None or combine is None or depth == _DEEPEST:
        return None
    instructions[id(operand)] = instruction
    first, second = instruction.operands
    a = _powers(first, x, makers, instructions, depth + 1)
    b = None if a is None else _powers(second, x, makers, instructions, depth + 1)
    return None if a is None or b is None else combine(a, b)


def _product(a: Array, b: Array) -> Array | None:
    full = np.convolve(a, b)
    return None if full[_TERMS:].any() else full[:_TERMS]


_ARITHMETIC: dict[Any, Callable[[Array, Array], Array | None]] = {
    np.add: np.add,
    np.subtract: np.subtract,
    np.multiply: _product,
    np.divide: lambda a, b: None if b[1:].any() or not b[0] else a / b[0],
    square: lambda a, _: _product(a, a),
}


def _gated(gate: Instruction, instructions: Sequence[Instruction]) -> tuple[list[Instruction], Instruction] | None:
    """The instructions of x * sigmoid(x), or of its piecewise linear form, and the one for both."""
    (x,) = gate.operands
    readers = [instruction for instruction in instructions if any(o is gate.made for o in instruction.operands)]
    if len(readers) != 1 or readers[0].function is not np.multiply:
        return None
    a, b = readers[0].operands
    other = b if a is gate.made else a
    return ([gate, readers[0]], Instruction(_GATED[gate.function], (x,), readers[0].made)) if other is x else None


def _standardize(
    root: Instruction, instructions: Sequence[Instruction]
) -> tuple[list[Instruction], Instruction] | None:
    """The instructions of (x - mean) / sqrt(mean of squares + epsilon) in rows, and the one for all of them."""
    readers: defaultdict[int, list[Instruction]] = defaultdict(list)
    for instruction in instructions:
        for made in {id(o) for o in instruction.operands}:
            readers[made].append(instruction)

    def only_reader(instruction: Instruction, function: Any) -> Instruction | None:
        found = readers[id(instruction.made)]
        return found[0] if len(found) == 1 and found[0].function is function else None

    makers = {id(instruction.made): instruction for instruction in instructions}
    shifted = makers.get(id(root.operands[0]))
    epsilon = None if shifted is None or shifted.function is not np.add else _number(shifted.operands[1])
    variance = None if shifted is None or epsilon is None else makers.get(id(shifted.operands[0]))
    squares = None if variance is None or variance.function is not row_mean else makers.get(id(variance.operands[0]))
    if shifted is None or epsilon is None or variance is None or squares is None:
        return None
    centered = makers.get(id(squares.operands[0]))
    is_square = squares.function is square or (
        squares.function is np.multiply and squares.operands[0] is squares.operands[1]
    )
    mean = None if centered is None or centered.function is not np.subtract else makers.get(id(centered.operands[1]))
    if centered is None or not is_square or mean is None or mean.function is not row_mean:
        return None
    quotient, x = only_reader(root, np.divide), centered.operands[0]
    chain = only_reader(squares, row_mean), only_reader(variance, np.add), only_reader(shifted, np.sqrt)
    alone = None not in chain and only_reader(mean, np.subtract) is not None and len(readers[id(centered.made)]) == 2
    if quotient is None or not alone or quotient.operands[0] is not centered.made or mean.operands[0] is not x:
        return None
    if not _have_one_rank(x, quotient.made):
        return None
    gone = [mean, centered, squares, variance, shifted, root, quotient]
    return gone, Instruction(standardize(epsilon), (x,), quotient.made, in_rows=True)


def after_factor(instruction: Instruction) -> list[Instruction]:
    """An instruction, or one that multiplies by a constant and one that then costs less: for what is behind constant weights."""
    if instruction.function not in OF_SCALED:
        return [instruction]
    factor, function = OF_SCALED[instruction.function]
    scaled = object()
    product = Instruction(np.multiply, (*instruction.operands, np.asarray(factor, np.float32)), scaled)
    return [product, instruction._replace(function=function, operands=(scaled,))]


_GATED: dict[Any, Callable[..., Any]] = {sigmoid: swish(1), hard_gate: hard_swish}

_FINDERS: dict[Any, Callable[[Instruction, Sequence[Instruction]], tuple[list[Instruction], Instruction] | None]] = {
    erf_block: _gelu,
    np.tanh: _gelu,
    **dict.fromkeys(_GATED, _gated),
    np.sqrt: _standardize,
}


def _scaled(instruction: Instruction) -> tuple[Any, float] | None:
    """What an instruction multiplies by which number."""
    if instruction.function not in (np.multiply, np.divide):
        return None
    a, b = instruction.operands
    if (number := _number(b)) is not None:
        return a, number if instruction.function is np.multiply else 1 / number if number else math.inf
    if instruction.function is np.multiply and (number := _number(a)) is not None:
        return b, number
    return None


def _have_one_rank(x: Any, made: Any) -> bool:
    """False where constants of one element, which go, might give the result more axes than x has."""
    return not (isinstance(x, Value) and isinstance(made, Value)) or (x.rank is not None and x.rank == made.rank)


def _number(operand: Any) -> float | None:
    return float(operand.reshape(())) if isinstance(operand, np.ndarray) and operand.size == 1 else None
