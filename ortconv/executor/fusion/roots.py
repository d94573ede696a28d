"""The root of a fusion group: a convolution or product whose result is overwritten by the other nodes of the group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.conv import convolution
from ortconv.executor.algorithms.gemm_exact import integer_sums
from ortconv.executor.fusion.elementwise_ops import Instruction, Name, NodeCode, Operand, Temporary, fused_activation
from ortconv.executor.fusion.group import Constant, Scope
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

_KERNELS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), ""),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), MICROSOFT),
}
"""Operators whose kernels return a new array that nothing else references."""


class Root(NamedTuple):
    """The root, with a Pad before it or a Cast after it, and its own instructions on its result."""

    nodes: tuple[Node, ...]
    bind: Callable[[], tuple[Function, list[Value | None]]]
    """Makes the function, and names the values that are its operands."""
    made: Name
    """The name of its result."""
    instructions: Sequence[Instruction] = ()
    is_laid_out: bool = False
    """True for a convolution with constant weights."""

    def on(self, reads: Sequence[Value | None], constant: Constant) -> Function:
        """The function of the operands of a group."""
        place = {v: i for i, v in enumerate(reads)}
        function, operands = self.bind()
        slots = [(place.get(v), None if v in place else constant(v)) for v in operands]

        def run(work: Work, *operands: Any) -> Any:
            return work.call(function, *[known if slot is None else operands[slot] for slot, known in slots])

        return recordable(run)


def root_of(node: Node, scope: Scope) -> Root | None:
    """The root that ends in a node; None if it cannot be one."""
    if node.is_op("Conv") or node.is_op("FusedConv", MICROSOFT):
        root = _convolution(node, scope)
        if root is not None:
            return root
    if node.is_op("Cast"):
        return _float_sums(node, scope)
    is_kernel = _KERNELS.get(node.op) == node.domain
    return Root((node,), partial(scope.bind, node), node.out) if is_kernel else None


def _float_sums(cast: Node, scope: Scope) -> Root | None:
    """A MatMulInteger with constant weights that only this Cast to float32 reads."""
    node = scope.maker(cast.inputs[0], (cast,))
    if node is None or not node.is_op("MatMulInteger"):
        return None
    b, zero_point = map(scope.constant, (node.input(1), node.input(3)))
    if b is None or b.ndim != 2 or (zero_point is None) != (node.input(3) is None):
        return None
    known = b

    def bind() -> tuple[Function, list[Value | None]]:
        sums = integer_sums(known, zero_point)

        def run(work: Work, *operands: Array) -> Array | None:
            y: Array | None = work.call(sums, *operands)
            return y if y is None or y.dtype == np.float32 else work.arranged(lambda y: y.astype(np.float32), y)

        return recordable(run), [node.input(0), node.input(2)]

    return Root((node, cast), bind, cast.out)


def _convolution(node: Node, scope: Scope) -> Root | None:
    """A convolution of float32 with constant weights and bias that fit each other, before its bias. Its input is not known."""
    constant, x = scope.constant, node.inputs[0]
    weights, bias = map(constant, (node.input(1), node.input(2)))
    if x is None or constant(x) is not None or weights is None or weights.dtype != np.float32:
        return None
    if node.input(2) is not None and (bias is None or bias.shape != weights.shape[:1]):
        return None
    sums = Temporary()
    own = _after_sums(node, sums, None if bias is None else bias.reshape(1, -1, *(1,) * (weights.ndim - 2)), constant)
    if own is None:
        return None
    geometry, nodes = dict(node.attrs), [node]
    pad = scope.maker(x, (node,))
    padding = None if pad is None else _padding(node, pad, constant)
    if pad is not None and padding is not None:
        x, nodes = pad.inputs[0], [pad, node]
        geometry |= {"pads": padding, "auto_pad": "NOTSET"}
    convolve = partial(convolution, weights, node.attr("group", 1), geometry)
    return Root(tuple(nodes), lambda: (convolve(), [x]), sums if own else node.out, own, is_laid_out=True)


def _after_sums(node: Node, sums: Name, bias: Array | None, constant: Constant) -> list[Instruction] | None:
    """The instructions that a Conv or FusedConv applies to its sums: the bias, another summand, and the activation. None
    if there are none for the activation.
    """
    code = NodeCode(node, constant)
    made: Operand | None = sums
    if bias is not None and bias.any():
        made = code.add(np.add, made, bias)
    if node.input(3) is not None:
        made = code.add(np.add, made, code.operand(3))
    activate = fused_activation(node)
    if activate is not None:
        activate(code, made)
    return None if activate is None and node.attr("activation", "") else code.making(node.out)


def _padding(node: Node, pad: Node, constant: Constant) -> tuple[int, ...] | None:
    """The padding with zeros that a Pad and a Conv add to the spatial axes together; None if it is unknown, or if the Pad
    does more than that.
    """
    if node.op != "Conv" or not pad.is_op("Pad") or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    if pad.attr("mode", "constant") not in ("constant", b"constant"):
        return None
    if len(pad.inputs) < 2:
        return None if pad.attr("value", 0.0) else _sum(node, tuple(pad.attr("pads", ())))
    amounts, value = map(constant, (pad.input(1), pad.input(2)))
    if amounts is None or pad.input(3) is not None or (pad.input(2) is not None and (value is None or value.any())):
        return None
    return _sum(node, tuple(amounts.reshape(-1).tolist()))


def _sum(node: Node, amounts: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = len(amounts) // 2
    if rank < 3 or min(amounts) < 0 or any(amounts[i] for i in (0, 1, rank, rank + 1)):
        return None
    own = tuple(node.attr("pads", ())) or (0,) * (2 * rank - 4)
    return tuple(a + b for a, b in zip((*amounts[2:rank], *amounts[rank + 2 :]), own, strict=True))
