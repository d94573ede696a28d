"""The root of a fusion group: a convolution or product whose result the rest of the group overwrites.

Factors and summands per channel are folded into its weights and bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.conv import convolution
from ortconv.executor.algorithms.gemm_exact import integer_sums
from ortconv.executor.fusion.conv import has_constant_weights, merged_pad, total_padding, weights_and_bias
from ortconv.executor.fusion.elementwise_ops import fused_activation
from ortconv.executor.fusion.elementwise_program import Instruction
from ortconv.executor.fusion.group import Bind, Constant
from ortconv.executor.fusion.peephole import after_factor
from ortconv.executor.kernels.activation import MICROSOFT
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array


class Root(NamedTuple):
    """The kernel of a group's root, and what the group does to its result."""

    function: Function
    """Of the group's operands."""
    made: Any
    """The name of its result."""
    instructions: list[Instruction]
    """What is left to do with that."""


def root_of(
    node: Node,
    layout_op: Node | None,
    instructions: list[Instruction],
    nodes: set[Node],
    constant: Constant,
    place: dict[Value | None, int],
    bind: Bind,
) -> Root:
    """The kernel of root `node`; `place` maps each operand of the group to its argument index."""
    if has_constant_weights(node, constant):
        return _folded_convolution(node, layout_op, instructions, nodes, constant, place)
    function, reads = _float_sums(node, constant) if node.op == "MatMulInteger" else bind(node)
    slots = [(place.get(v), None if v is None or v in place else constant(v)) for v in reads]
    return Root(on_operands(function, slots), (layout_op or node).out, instructions)


def on_operands(
    function: Function, slots: Sequence[tuple[int | None, Any]], order: Sequence[int] | None = None
) -> Function:
    """A function as one of a unit's operands: where each of its own stands among them, or what it is.

    `order` is how the axes of its result are transposed.
    """

    def run(work: Work, *operands: Any) -> Any:
        y = work.call(function, *[known if slot is None else operands[slot] for slot, known in slots])
        return y if order is None or y is None else y.transpose(order)

    return recordable(run)


def pooled(root: Function, pool: Function) -> Function:
    def run(work: Work, *operands: Any) -> Any:
        y = work.call(root, *operands)
        return None if y is None else work.call(pool, y)

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


def _own_instructions(node: Node, constant: Constant) -> list[Instruction]:
    """What a FusedConv does to the product of its weights."""
    made: Any = object()
    instructions = []
    if node.input(3) is not None:
        instructions.append(Instruction(np.add, (made, known_or_name(node.input(3), constant)), object()))
    function = fused_activation(node)
    if function is not None:
        instructions.append(Instruction(function, (instructions[-1].made if instructions else made,), object()))
    return [*instructions[:-1], instructions[-1]._replace(made=node.out)] if instructions else []


def _folded_convolution(
    node: Node,
    layout_op: Node | None,
    instructions: list[Instruction],
    nodes: set[Node],
    constant: Constant,
    place: dict[Value | None, int],
) -> Root:
    """Factors and summands per channel behind a convolution become part of its weights and bias."""
    weights, shift = weights_and_bias(node, constant)
    assert weights is not None
    rank, channels = weights.ndim, weights.shape[0]
    order: Sequence[int] = range(rank) if layout_op is None else layout_op.attr("perm", ())
    shape = [1] * rank
    shape[list(order).index(1)] = channels
    own = _own_instructions(node, constant) if node.domain else []
    instructions = [*own, *instructions]
    readers = Counter(id(o) for instruction in instructions for o in instruction.operands)
    scale, made = None, own[0].operands[0] if own else (layout_op or node).out
    while instructions and readers[id(made)] == 1:
        instructions = [*after_factor(instructions[0]), *instructions[1:]]
        affine = _channel_affine(instructions[0], made, shape)
        if affine is None:
            break
        factor, summand = affine
        if factor is not None:
            scale = factor if scale is None else scale * factor
            shift = None if shift is None else shift * factor
        if summand is not None:
            shift = summand if shift is None else shift + summand
        made, instructions = instructions[0].made, instructions[1:]
    if scale is not None:
        weights = weights * scale.reshape(-1, *(1,) * (rank - 1))
    weights = np.asarray(weights, np.float32)
    geometry: dict[str, Any] = dict(node.attrs)
    group = int(geometry.pop("group", 1))
    x, pad = node.inputs[0], merged_pad(node, constant)
    if pad is not None and pad in nodes:
        x, geometry["pads"], geometry["auto_pad"] = pad.inputs[0], total_padding(node, pad, constant), "NOTSET"
    function = on_operands(
        convolution(weights, group, geometry), [(place[x], None)], None if layout_op is None else order
    )
    source: Any = made
    if shift is not None and shift.any():
        source = object()
        instructions = [
            Instruction(np.add, (source, np.asarray(shift, np.float32).reshape(shape)), made),
            *instructions,
        ]
    return Root(function, source, instructions)


def _channel_affine(
    instruction: Instruction, made: Any, shape: Sequence[int]
) -> tuple[Array | None, Array | None] | None:
    """An instruction that scales or shifts `made` by constants that broadcast to `shape`, one per channel, as factor or summand."""
    if instruction.function not in (np.add, np.subtract, np.multiply, np.divide):
        return None
    first = instruction.operands[0] is made
    if not first and instruction.function in (np.subtract, np.divide):
        return None
    other = instruction.operands[1 if first else 0]
    if not isinstance(other, np.ndarray) or other.ndim > len(shape) or other.dtype != np.float32:
        return None
    own = (1,) * (len(shape) - other.ndim) + other.shape
    if other.size != 1 and own != tuple(shape):
        return None
    v = other.reshape(-1) if own == tuple(shape) else np.full(prod(shape), other.reshape(()))
    if not np.isfinite(v).all() or (instruction.function is np.divide and not v.all()):
        return None
    if instruction.function in (np.multiply, np.divide):
        return v if instruction.function is np.multiply else np.asarray(1 / v), None
    return None, v if instruction.function is np.add else np.asarray(-v)


def known_or_name(operand: Any, constant: Constant) -> Any:
    known = constant(operand) if isinstance(operand, Value) else None
    return operand if known is None else known
