"""The root of a fusion group: a convolution or product whose result the rest of the group overwrites.

Factors and summands per channel are folded into its weights and bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.conv import convolution
from ortconv.executor.algorithms.gemm_exact import integer_sums
from ortconv.executor.fusion.conv import has_constant_weights, merged_pad, total_padding, weights_and_bias
from ortconv.executor.fusion.elementwise_ops import (
    Code,
    Instruction,
    Literal,
    Name,
    Operand,
    Temporary,
    fused_activation,
)
from ortconv.executor.fusion.group import Constant, Scope
from ortconv.executor.replay.numerics import f32
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


class Root(NamedTuple):
    """The kernel of a group's root, and what the group does to its result."""

    function: Function
    """Of the group's operands."""
    made: Name
    """The name of its result."""
    instructions: list[Instruction]
    """The instructions that are left after the root."""


def root_of(
    node: Node,
    cast: Node | None,
    instructions: list[Instruction],
    nodes: set[Node],
    scope: Scope,
    operands: Sequence[Value | None],
) -> Root:
    """The kernel of root `node` of a group with these operands. `cast` makes float32 of its integers."""
    place, constant = {v: i for i, v in enumerate(operands)}, scope.constant
    if has_constant_weights(node, constant):
        return _folded_convolution(node, instructions, nodes, constant, place)
    function, reads = _float_sums(node, constant) if node.op == "MatMulInteger" else scope.bind(node)
    slots = [(place.get(v), None if v is None or v in place else constant(v)) for v in reads]
    return Root(on_operands(function, slots), (cast or node).out, instructions)


def on_operands(function: Function, slots: Sequence[tuple[int | None, Any]]) -> Function:
    """A function of a group's operands. Each of `slots` is the place of an operand of `function` among them, or its array."""

    def run(work: Work, *operands: Any) -> Any:
        return work.call(function, *[known if slot is None else operands[slot] for slot, known in slots])

    return recordable(run)


def _float_sums(node: Node, constant: Constant) -> tuple[Function, list[Value | None]]:
    """An integer product with constant weights and the Cast to float32 behind it."""
    b, zero_point = (None if v is None else constant(v) for v in (node.input(1), node.input(3)))
    assert b is not None
    sums = integer_sums(b, zero_point)

    def run(work: Work, *operands: Array) -> Array | None:
        y: Array | None = work.call(sums, *operands)
        return y if y is None or y.dtype == np.float32 else work.arranged(lambda y: y.astype(np.float32), y)

    return recordable(run), [node.input(0), node.input(2)]


def is_fused(node: Node, constant: Constant) -> bool:
    """True for a FusedConv whose sums and activation can be written as instructions."""
    if not node.is_op("FusedConv", MICROSOFT) or not has_constant_weights(node, constant):
        return False
    return not node.attr("activation", "") or fused_activation(node) is not None


def _own_instructions(node: Node, product: Name, constant: Constant) -> list[Instruction]:
    """What a FusedConv does to the product of its weights."""
    code = Code(node, constant)
    made: Operand | None = product
    if node.input(3) is not None:
        made = code.add(np.add, made, code.operand(3))
    function = fused_activation(node)
    if function is not None:
        code.add(function, made)
    return code.making(node.out)


def _folded_convolution(
    node: Node,
    instructions: list[Instruction],
    nodes: set[Node],
    constant: Constant,
    place: dict[Value | None, int],
) -> Root:
    """Factors and summands per channel behind a convolution become part of its weights and bias."""
    weights, bias = weights_and_bias(node, constant)
    assert weights is not None
    sums = Temporary()
    own = _own_instructions(node, sums, constant) if node.domain else []
    shape = (1, len(weights), *(1,) * (weights.ndim - 2))
    made, instructions, scale, shift = _fold([*own, *instructions], sums if own else node.out, bias, shape)
    if (scale != 1).any():
        weights = weights * scale.reshape(-1, *(1,) * (weights.ndim - 1))
    geometry: dict[str, Any] = dict(node.attrs)
    group = int(geometry.pop("group", 1))
    x, pad = node.inputs[0], merged_pad(node, constant)
    if pad is not None and pad in nodes:
        x, geometry["pads"], geometry["auto_pad"] = pad.inputs[0], total_padding(node, pad, constant), "NOTSET"
    function = on_operands(convolution(np.asarray(weights, np.float32), group, geometry), [(place[x], None)])
    if shift.any():
        unshifted = Temporary()
        instructions = [Instruction(np.add, (unshifted, Literal(f32(shift).reshape(shape))), made), *instructions]
        made = unshifted
    return Root(function, made, instructions)


def _fold(
    instructions: list[Instruction], made: Name, bias: Array | None, shape: Sequence[int]
) -> tuple[Name, list[Instruction], Array, Array]:
    """The leading instructions that scale or shift the channels of `made`, as one factor and summand per channel.

    Before these, the name of the last result and the instructions that are left.
    """
    scale, shift = np.ones(prod(shape), np.float32), np.zeros(prod(shape), np.float32) if bias is None else bias
    readers = Counter(o for instruction in instructions for o in instruction.operands)
    while instructions and readers[made] == 1:
        affine = _channel_affine(instructions[0], made, shape)
        if affine is None:
            break
        factor, summand = affine
        scale, shift = scale * factor, shift * factor + summand
        made, *instructions = instructions[0].made, *instructions[1:]
    return made, instructions, scale, shift


_ONE, _ZERO = f32(1), f32(0)

_AFFINE: dict[Any, Callable[[Array], tuple[Any, Any]]] = {
    np.add: lambda v: (_ONE, v),
    np.subtract: lambda v: (_ONE, -v),
    np.multiply: lambda v: (v, _ZERO),
    np.divide: lambda v: (1 / v, _ZERO),
}
"""By function of two operands: factor and summand for the first operand if the second is v."""


def _channel_affine(instruction: Instruction, made: Name, shape: Sequence[int]) -> tuple[Array, Array] | None:
    """Factor and summand of an instruction that scales or shifts `made` by constants, one per channel or one for all."""
    function, operands, _ = instruction
    if function not in _AFFINE or made not in operands:
        return None
    first, second = operands if function in (np.subtract, np.divide) or operands[0] is made else operands[::-1]
    if first is not made or not isinstance(second, Literal) or second.array.dtype != np.float32:
        return None
    v = second.array
    is_per_channel = v.size == 1 or (1,) * (len(shape) - v.ndim) + v.shape == tuple(shape)
    if not is_per_channel or v.ndim > len(shape):
        return None
    factor, summand = _AFFINE[function](np.broadcast_to(v.reshape(-1), prod(shape)))
    return (factor, summand) if np.isfinite(factor).all() and np.isfinite(summand).all() else None
