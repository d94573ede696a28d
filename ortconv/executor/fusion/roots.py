"""The root of a fusion group: a convolution or product whose result is overwritten by the other nodes of the group."""

from __future__ import annotations

from collections.abc import Sequence
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
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


class Root(NamedTuple):
    """The kernel of a group's root, and the instructions of the group on its result."""

    function: Function
    """A function of the group's operands."""
    made: Name
    """The name of its result."""
    instructions: list[Instruction]
    """The instructions that remain after the root."""


def root_of(
    node: Node,
    cast: Node | None,
    instructions: list[Instruction],
    nodes: set[Node],
    scope: Scope,
    operands: Sequence[Value | None],
) -> Root:
    """The kernel of root `node` of a group with these operands. `cast` converts its integers to float32."""
    place, constant = {v: i for i, v in enumerate(operands)}, scope.constant
    if has_constant_weights(node, constant):
        return _convolution(node, instructions, nodes, constant, place)
    function, reads = _float_sums(node, constant) if node.op == "MatMulInteger" else scope.bind(node)
    slots = [(place.get(v), None if v is None or v in place else constant(v)) for v in reads]
    return Root(on_operands(function, slots), (cast or node).out, instructions)


def on_operands(function: Function, slots: Sequence[tuple[int | None, Any]]) -> Function:
    """A function of a group's operands. Each of `slots` is the index of an operand of `function` among them, or its array."""

    def run(work: Work, *operands: Any) -> Any:
        return work.call(function, *[known if slot is None else operands[slot] for slot, known in slots])

    return recordable(run)


def _float_sums(node: Node, constant: Constant) -> tuple[Function, list[Value | None]]:
    """An integer product with constant weights, and the Cast to float32 after it."""
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


def _convolution(
    node: Node, instructions: list[Instruction], nodes: set[Node], constant: Constant, place: dict[Value | None, int]
) -> Root:
    """The sums of a convolution, before its bias."""
    weights, bias = weights_and_bias(node, constant)
    assert weights is not None
    geometry: dict[str, Any] = dict(node.attrs)
    group = int(geometry.pop("group", 1))
    x, pad = node.inputs[0], merged_pad(node, constant)
    if pad is not None and pad in nodes:
        x, geometry["pads"], geometry["auto_pad"] = pad.inputs[0], total_padding(node, pad, constant), "NOTSET"
    function = on_operands(convolution(weights, group, geometry), [(place[x], None)])
    sums = Temporary()
    shape = (1, len(weights), *(1,) * (weights.ndim - 2))
    own = _after_sums(node, sums, None if bias is None else bias.reshape(shape), constant)
    return Root(function, sums if own else node.out, [*own, *instructions])


def _after_sums(node: Node, sums: Name, bias: Array | None, constant: Constant) -> list[Instruction]:
    """The instructions that a Conv or FusedConv applies to its sums: the bias, another summand, and the activation."""
    code = Code(node, constant)
    made: Operand | None = sums
    if bias is not None and bias.any():
        made = code.add(np.add, made, Literal(bias))
    if node.input(3) is not None:
        made = code.add(np.add, made, code.operand(3))
    function = fused_activation(node)
    if function is not None:
        code.add(function, made)
    return code.making(node.out)
