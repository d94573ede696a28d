"""Nodes that ONNX Runtime's execution provider accepts but NNAPI refuses: the session or its run fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ortconv.ir.graph import Value
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit, UnitOperand
from ortconv.partition.checks import CHANGED, role, type_name
from ortconv.partition.nnapi.checks import parameters
from ortconv.partition.nnapi.row import NnapiRow
from ortconv.partition.policy import NUMBERS, RUNTIME, Objection, Objections, Target
from ortconv.partition.units import single_unit

COMPUTES = "; ONNX Runtime's provider accepts the node all the same"
FAILS = "; ONNX Runtime's provider accepts the node all the same, and its session or run fails"

INTERNAL_UINT8 = frozenset({"Transpose", "Resize", "Concat", "MaxPool"})
"""Operators that accept raw uint8 tensors only from their own partition, which knows scale and zero point."""

BINARY = frozenset({"Add", "Mul", "Conv", "Gemm", "MatMul"})
"""Operators whose second operand's quantization the provider reads, too."""

WITH_WEIGHTS = frozenset({"Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul"})
"""Operators whose constant inputs after the first are operands of their own."""


def refusals(row: NnapiRow, unit: NodeUnit, target: Target, in_group: Callable[[Value], bool]) -> Objections:
    """All objections of NNAPI to a unit to which the execution provider has none."""
    for found in _refusals(row, unit, target, in_group):
        rule, end = (NUMBERS, COMPUTES) if found.rule == NUMBERS else (RUNTIME, FAILS)
        yield Objection(rule, found.message + end, found.advice)


def _refusals(row: NnapiRow, unit: NodeUnit, target: Target, in_group: Callable[[Value], bool]) -> Objections:
    yield from row.runtime(unit, target)
    yield from _empty(row, unit, target, in_group)
    yield from _one_quantization(unit)
    yield from _float32_scales(unit)
    if unit.op == "Identity":
        yield from _copied(unit, in_group)
    if unit.op == "Concat" and unit.is_group:
        yield from _fed_later(unit, in_group)


def _empty_values(operands: Iterable[UnitOperand | None]) -> list[Value]:
    return [operand.value for operand in operands if operand is not None and _is_empty(operand.value)]


def _empty(row: NnapiRow, unit: NodeUnit, target: Target, in_group: Callable[[Value], bool]) -> Iterator[Objection]:
    """Objections to tensors without elements: until an operation writes a tensor, NNAPI reads its dimension of 0 as unknown."""
    inputs = _empty_values(unit.inputs)
    if any(value.constant is not None for value in inputs) and unit.op != "Resize":
        yield Objection(RUNTIME, "a constant has no elements: NNAPI has no such constants", "leave the node out")
    read = [value for value in inputs if value.constant is None]
    takes = row.takes_empty and (unit.op != "Softmax" or unit.since >= 13)
    if target.feature_level < 29:
        why = f"the runtime has such tensors from feature level 29: the target has {target.feature_level}"
        yield from (_has_shape(value, why) for value in dict.fromkeys((*read, *_empty_values(unit.outputs))))
        return
    for value in dict.fromkeys(read):
        if not in_group(value):
            yield _has_shape(value, "the runtime cannot be fed such a tensor")
        elif not takes:
            yield _has_shape(value, f"the operations of {unit.op} support no such tensor")


def _has_shape(value: Value, why: str) -> Objection:
    dims = ",".join(map(str, value.static_shape or ()))
    return Objection(RUNTIME, f"'{value.name}' has shape [{dims}]: {why}")


def _copied(unit: NodeUnit, in_group: Callable[[Value], bool]) -> Iterator[Objection]:
    """Objection to an Identity of rank above 4 that NNAPI must copy, with RESHAPE, because the tensor needs a second name."""
    out = unit.target.out
    source = out.original
    if (source.rank or 0) <= 4:
        return
    if not in_group(source) or source.is_output or sum(user.is_op("Identity") for user, _ in source.uses) > 1:
        message = f"'{out.name}' is '{source.name}' of rank {source.rank} under another name"
        yield Objection(RUNTIME, f"{message}: NNAPI copies rank 4 at most", "drop the Identity")


def _fed_later(unit: NodeUnit, in_group: Callable[[Value], bool]) -> Iterator[Objection]:
    """Objections to operands of a Concat after the first that come from outside: the provider takes their quantization only from
    units that read them as first operand, or as one of two.
    """
    for slot, operand in enumerate(unit.inputs):
        if slot and operand is not None and not (in_group(operand.value) or _is_known(operand.value)):
            message = f"{role(unit, slot)} comes from outside of the partition"
            message = f"{message}, which only the first operand of a Concat may"
            yield Objection(RUNTIME, message, "keep the nodes that make it in the partition")


def _is_known(value: Value) -> bool:
    """True if a quantized unit reads a value as first operand, or as second of a sum, product or convolution."""
    readers = ((user, slot) for dq, _ in value.uses for user, slot in dq.out.uses if dq.op == "DequantizeLinear")
    return any(slot == 0 or (slot == 1 and user.op in BINARY) for user, slot in readers)


def _is_empty(value: Value) -> bool:
    """True if a data tensor has no elements; tensors of parameters such as axes do not count."""
    return value.dtype in (DType.FLOAT, DType.UINT8, DType.INT32) and 0 in (value.static_shape or ())


def _one_quantization(unit: NodeUnit) -> Iterator[Objection]:
    """Require one scale and zero point per tensor: those of its producer, else of the first node that reads it as quantized.

    Weights and biases are exempt: the nodes that have them make their own operands.
    """
    operands = [operand for operand in unit.inputs if operand is not None]
    if unit.op == "Concat" and not unit.is_group and unit.dtype(0) is DType.UINT8:
        yield from _one_for_all([operand.value for operand in operands])
    own = unit.inputs[1:] if unit.op in WITH_WEIGHTS else ()
    for operand in operands:
        if operand in own and operand.value.constant is not None:
            continue
        stated = parameters(operand)
        known = None if stated is None else _made_with(operand.value) or _read_with(operand.value)
        if known is not None and known != stated:
            yield _differs(operand.value, stated, known)


def _float32_scales(unit: NodeUnit) -> Iterator[Objection]:
    """Require scales of float32: the provider reads no others."""
    stated = (operand.scale for operand in (*unit.inputs, *unit.outputs) if operand is not None)
    for scale in dict.fromkeys(stated):
        if scale is not None and scale.dtype is not DType.FLOAT:
            message = f"the scale '{scale.name}' is {type_name(scale.dtype)}: the provider reads float32"
            yield Objection(RUNTIME, message, "export the model in float32")


def _one_for_all(values: Sequence[Value]) -> Iterator[Objection]:
    """Require that all values are made with the scale and zero point of the first."""
    made = list(map(_made_with, values))
    for value, found in zip(values[1:], made[1:], strict=True):
        if found != made[0]:
            yield _differs(value, found, made[0])


def _differs(value: Value, stated: tuple[float, int] | None, known: tuple[float, int] | None) -> Objection:
    here, elsewhere = (f"scale {p[0]:.9g} and zero point {p[1]}" if p else "no scale" for p in (stated, known))
    message = f"'{value.name}' has {here} here and {elsewhere} elsewhere: NNAPI knows one of each for a tensor"
    if value.constant is not None:
        return Objection(NUMBERS, message, "give each of the nodes a copy of the constant")
    return Objection(RUNTIME, message, f"quantize all ends of a tensor with the same range, {CHANGED}")


def _made_with(value: Value) -> tuple[float, int] | None:
    """The scale and zero point that a value's producer states, or passes on from its first input; None if unknown."""
    while (maker := value.producer) is not None and maker.op in INTERNAL_UINT8 and value.dtype is DType.UINT8:
        if maker.inputs[0] is None:
            break
        value = maker.inputs[0]
    return None if maker is None else parameters(single_unit(maker).outputs[0])


def _read_with(value: Value) -> tuple[float, int] | None:
    """The scale and zero point that the first quantized reader of a value states; None if there is none."""
    for user, slot in value.uses:
        if slot and user.op in WITH_WEIGHTS and value.constant is not None:
            continue
        for operand in single_unit(user).inputs:
            if operand is not None and operand.value is value and (stated := parameters(operand)) is not None:
                return stated
    return None
