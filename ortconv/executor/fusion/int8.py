"""Quantized graphs: convolutions, products and sums pass centered values to each other instead of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ortconv.executor.algorithms.gemm_exact import centered
from ortconv.executor.algorithms.rounding import dynamic_centered
from ortconv.executor.fusion.group import Constant, Group, Scope
from ortconv.executor.fusion.int8_steps import Int8Step, Int8Steps, Quantization, is_dequantize
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


def int8_groups(scope: Scope) -> Iterator[Group]:
    """Int8 steps. Their results are centered values if every reader accepts these, else bytes. A DequantizeLinear that no step
    needs does nothing.
    """
    steps = Int8Steps(scope)
    found = steps.found
    reads = {node: step.reads for node, step in found.items()}
    for node in filter(is_dequantize, scope.nodes):
        if (given := steps.quantization(node)) is not None:
            reads[node] = ((node.inputs[0], given),)

    def stays_centered(value: Value, made: Quantization) -> bool:
        accepted = [[other for v, other in reads.get(user, ()) if v is value] for user, _ in value.uses]
        same_origin = (other.zero_point == made.zero_point for wanted in accepted for other in wanted)
        return value not in scope.live_out and all(accepted) and all(same_origin)

    computed_from = {v for step in found.values() if not step.enters for v, _ in step.reads}
    # Bytes stay for values with a reader that is no int8 step, or without an int8 step as reader.
    for node, step in list(found.items()):
        if step.enters and not (node.out in computed_from and stays_centered(node.out, step.makes)):
            del found[node]
    centered_values = {node.out for node, step in found.items() if stays_centered(node.out, step.makes)}
    for node, step in found.items():
        function = _on_quantized(step, None if node.out in centered_values else step.makes)
        yield Group(step.nodes, [v for v, _ in step.reads], function)
    yield from _dequantizers(steps, centered_values)


def _dequantizers(steps: Int8Steps, centered_values: set[Value]) -> Iterator[Group]:
    """DequantizeLinear nodes that all of their readers bypass, and those that read centered values."""
    bypassed = {(node, reader) for step in steps.found.values() for node in step.bypassed for reader in step.nodes}
    for node in filter(is_dequantize, steps.scope.nodes):
        given = steps.quantization(node)
        if node.out not in steps.scope.live_out and all((node, user) in bypassed for user, _ in node.out.uses):
            yield Group((node,), [], None)
        elif node.inputs[0] in centered_values and given is not None:
            yield Group((node,), [node.inputs[0]], given.dequantize)


def _on_quantized(step: Int8Step, as_bytes: Quantization | None) -> Function:
    """A step's function of quantized values or bytes."""
    zeros = [given.zero_point for _, given in step.reads]
    finish = None if as_bytes is None else as_bytes.to_bytes

    def run(work: Work, *operands: Array) -> Array | None:
        values = [
            x if x.dtype == np.float32 else work.arranged(partial(centered, zero_point=z), x)
            for x, z in zip(operands, zeros, strict=True)
        ]
        y: Array | None = work.call(step.function, *values)
        return y if y is None or finish is None else work.call(finish, y)

    return recordable(run)


def dynamic_groups(scope: Scope) -> Iterator[Group]:
    """Groups of a DynamicQuantizeLinear whose readers all accept integers as float32."""
    for node in scope.nodes:
        value = node.outputs[0] if node.is_op("DynamicQuantizeLinear") else None
        users = [] if value is None or value in scope.live_out else [user for user, _ in value.uses]
        if users and all(u in scope.index and _multiplies_quantized(u, node, scope.constant) for u in users):
            yield Group((node,), list(node.inputs), dynamic_centered)


_ZERO_POINTS = {("", "MatMulInteger"): (2, 3), (MICROSOFT, "MatMulIntegerToFloat"): (4, 5)}
"""Slots with the zero points of the operands, for products of quantized values."""


def _multiplies_quantized(node: Node, quantize: Node, constant: Constant) -> bool:
    """True for a product of the output of a DynamicQuantizeLinear with constant weights."""
    of_a, of_b = _ZERO_POINTS.get((node.domain, node.op), (0, 0))
    if not of_a or node.inputs[0] is not quantize.outputs[0] or node.input(of_a) is not quantize.outputs[2]:
        return False
    b, b_zero_point = map(constant, (node.input(1), node.input(of_b)))
    return b is not None and b.ndim == 2 and (b_zero_point is not None or node.input(of_b) is None)
