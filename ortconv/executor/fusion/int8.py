"""Quantized graphs: convolutions, sums and the steps between them pass centered values on to each other instead of
bytes.

Other readers get bytes, or the dequantized float values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.rounding import dynamic_centered
from ortconv.executor.fusion.group import Constant, Group, Scope
from ortconv.executor.fusion.int8_ops import Quantization
from ortconv.executor.fusion.int8_patterns import Int8Step, Int8Steps, is_dequantize
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


def int8_groups(scope: Scope) -> list[Group]:
    """Int8 steps, and the DequantizeLinear nodes next to them. A DequantizeLinear that no step needs does nothing."""
    steps = Int8Steps(scope)
    return _Groups(steps).made() if steps.found else []


def dynamic_groups(scope: Scope) -> Iterator[Group]:
    """Groups of a DynamicQuantizeLinear whose readers all accept integers as float32."""
    inside = set(scope.nodes)
    for node in scope.nodes:
        if (
            node.is_op("DynamicQuantizeLinear")
            and node.outputs[0] is not None
            and node.outputs[0] not in scope.live_out
        ):
            users = [user for user, _ in node.outputs[0].uses]
            if all(user in inside and _multiplies_quantized(user, node, scope.constant) for user in users):
                yield Group((node,), list(node.inputs), dynamic_centered)


_ZERO_POINTS = {("", "MatMulInteger"): (2, 3), (MICROSOFT, "MatMulIntegerToFloat"): (4, 5)}
"""Slots with the zero points of the operands, for products of quantized values."""


def _multiplies_quantized(node: Node, quantize: Node, constant: Constant) -> bool:
    """True for a product of the output of a DynamicQuantizeLinear with constant weights."""
    of_a, of_b = _ZERO_POINTS.get((node.domain, node.op), (0, 0))
    if not of_a or node.inputs[0] is not quantize.outputs[0] or node.input(of_a) is not quantize.outputs[2]:
        return False
    b, b_zero_point = (None if v is None else constant(v) for v in (node.input(1), node.input(of_b)))
    return b is not None and b.ndim == 2 and (b_zero_point is not None or node.input(of_b) is None)


class _Groups:
    """The groups for int8 steps; it determines which of them pass on centered values."""

    def __init__(self, steps: Int8Steps) -> None:
        self._steps, self._scope, self._found = steps, steps.scope, steps.found

    def made(self) -> list[Group]:
        self._drop_entries()
        handed = {node.out for node, step in self._found.items() if self._all_take(node.out, step.makes)}
        return [*self._of_steps(handed), *self._of_dequantizers(handed)]

    def _of_steps(self, handed: set[Value]) -> Iterator[Group]:
        for node, step in self._found.items():
            function = _on_quantized(step, None if node.out in handed else step.makes)
            yield Group(step.nodes, [v for v, _ in step.reads], function)

    def _of_dequantizers(self, handed: set[Value]) -> Iterator[Group]:
        """DequantizeLinear nodes that no step needs, and those of values that are passed on."""
        bypassed = {(node, reader) for step in self._found.values() for node in step.bypassed for reader in step.nodes}
        for node in filter(is_dequantize, self._scope.nodes):
            codes = self._steps.codes(node)
            if node.out not in self._scope.live_out and all((node, user) in bypassed for user, _ in node.out.uses):
                yield Group((node,), [], None)
            elif node.inputs[0] in handed and codes is not None:
                yield Group((node,), [node.inputs[0]], codes.dequantize)

    def _drop_entries(self) -> None:
        """Keep bytes for values with a reader that is no int8 step, or without an int8 step as reader."""
        read = {v for step in self._found.values() if not step.enters for v, _ in step.reads}
        for node, step in list(self._found.items()):
            if step.enters and not (node.out in read and self._all_take(node.out, step.makes)):
                del self._found[node]

    def _all_take(self, value: Value, codes: Quantization) -> bool:
        """True if every reader of a quantized value accepts centered values."""
        return value not in self._scope.live_out and all(self._takes(user, value, codes) for user, _ in value.uses)

    def _takes(self, user: Node, value: Value, codes: Quantization) -> bool:
        step = self._found.get(user)
        if step is not None:
            wanted = [other for v, other in step.reads if v is value]
        else:
            own = self._steps.codes(user) if is_dequantize(user) and user in self._scope.index else None
            wanted = [] if own is None or user.inputs[0] is not value else [own]
        return bool(wanted) and all(other.zero_point == codes.zero_point for other in wanted)


def _on_quantized(step: Int8Step, as_bytes: Quantization | None) -> Function:
    """A step's function of quantized values or bytes."""
    function, zeros = step.function, [codes.zero_point for _, codes in step.reads]
    finish = None if as_bytes is None else as_bytes.to_bytes

    def run(work: Work, *operands: Array) -> Array | None:
        codes = [
            x if x.dtype == np.float32 else work.arranged(partial(centered, zero_point=z), x)
            for x, z in zip(operands, zeros, strict=True)
        ]
        y: Array | None = work.call(function, *codes)
        return y if y is None or finish is None else work.call(finish, y)

    return recordable(run)
