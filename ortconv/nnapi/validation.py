"""Checks of operand types, values and models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operand, Operation
from ortconv.nnapi.errors import bad_data
from ortconv.nnapi.operand import Lifetime, OperandType, agree

if TYPE_CHECKING:
    from ortconv.nnapi.model import Model, ModelOperand, ModelOperation

LARGEST = 0xFFFFFFFF  # bytes of one operand
WRITTEN = (Lifetime.TEMPORARY, Lifetime.OUTPUT)


def check_type(kind: OperandType, index: int | None = None) -> None:
    """Raise BAD_DATA if the type cannot have the dimensions, the scale or the zero point."""
    for objection in _type_objections(kind):
        raise bad_data(f"{kind.type.name} {objection}", operand=index)


def _type_objections(kind: OperandType) -> Iterator[str]:
    if kind.dims and not kind.type.is_tensor:
        yield f"has no dimensions, not {list(kind.dims)}"
    if min(kind.dims, default=0) < 0:
        yield f"has a negative dimension: {list(kind.dims)}"
    if math.prod(max(dim, 1) for dim in kind.dims) * kind.type.dtype.itemsize > LARGEST:
        yield f"of {list(kind.dims)} is larger than {LARGEST} bytes"
    if kind.type is Operand.TENSOR_INT32:
        if not math.isfinite(kind.scale):
            yield f"cannot have the scale {kind.scale}"
    elif not kind.type.is_oem:
        yield from _quantization_objections(kind)


def _quantization_objections(kind: OperandType) -> Iterator[str]:
    if kind.zero_point not in (kind.type.zero_points or range(1)):
        yield f"cannot have the zero point {kind.zero_point}"
    if kind.is_quantized and kind.type is not Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        if not 0 < kind.scale < math.inf:
            yield f"needs a scale above 0, not {kind.scale:g}"
    elif kind.scale != 0:
        yield f"has no scale, not {kind.scale:g}"


def check_channel_quant(kind: OperandType, index: int) -> None:
    """Raise BAD_DATA if the number of scales is not the size of their dimension."""
    quant = kind.channel_quant
    if kind.type is not Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        raise bad_data(f"{kind.type.name} has no scales per channel", operand=index)
    assert quant is not None
    if not 0 <= quant.dim < kind.rank:
        raise bad_data(f"the channel dimension {quant.dim} is out of range for rank {kind.rank}", operand=index)
    if len(quant.scales) != kind.dims[quant.dim] or not quant.scales:
        raise bad_data(f"{len(quant.scales)} scales for a dimension of {kind.dims[quant.dim]}", operand=index)
    if not all(0 < scale < math.inf for scale in quant.scales):
        raise bad_data("every scale must be above 0", operand=index)


def as_elements(data: Array, kind: OperandType, index: int | None) -> Array:
    """The data as an array with the operand's element type and shape. `data` has this type or contains raw bytes.
    Raises BAD_DATA if the size differs; an OEM_SCALAR has any number of bytes.
    """
    if kind.type is Operand.OEM_SCALAR and data.dtype == np.uint8 and data.size:
        return np.ascontiguousarray(data).reshape(-1)
    if not kind.is_known:
        raise bad_data(f"{kind} has no known size", operand=index)
    dtype = kind.type.dtype
    if data.dtype != dtype and data.dtype != np.uint8:
        raise bad_data(f"{kind.type.name} holds {dtype}, not {data.dtype}", operand=index)
    if data.nbytes != kind.nbytes:
        raise bad_data(f"{kind} has {kind.nbytes} bytes, not {data.nbytes}", operand=index)
    return np.ascontiguousarray(data).reshape(-1).view(dtype).reshape(kind.dims)


def compatible(a: OperandType, b: OperandType) -> bool:
    """True if two operands can be bound to each other: their types are equal, except for unknown dimensions."""
    same = a.type == b.type and a.same_quantization(b) and a.channel_quant == b.channel_quant
    return same and agree(a.dims, b.dims)


def refined(declared: OperandType, given: OperandType) -> OperandType:
    """The declared type with unknown dimensions replaced by those of `given`. Raises BAD_DATA if the types contradict
    each other. See checkDimensionInfo in Android's runtime/ExecutionBuilder.cpp.
    """
    check_type(given)
    fits = given.type is declared.type and (given.same_quantization(declared) or not given.is_quantized)
    if declared.dims:
        fits = fits and given.rank == declared.rank
        fits = fits and all(known in (0, dim) for known, dim in zip(declared.dims, given.dims))
    if not fits:
        raise bad_data(f"{given} says something else than {declared}, or less")
    return declared.with_dims(given.dims)


def check_model(model: Model) -> None:
    """Raise BAD_DATA if the model breaks a rule for finished models. The operations are in execution order."""
    if not model.operands or not model.operations:
        raise bad_data("a model has at least one operand and one operation")
    writers = {output: operation for operation in model.operations for output in operation.outputs}
    for index, operand in enumerate(model.operands):
        _check_operand(index, operand)
        _check_writer(index, operand, writers.get(index))
        listed = {Lifetime.INPUT: model.inputs, Lifetime.OUTPUT: model.outputs}
        for lifetime, indexes in listed.items():
            if (index in indexes) != (operand.lifetime is lifetime):
                raise bad_data(f"is listed as {lifetime.name} but is {operand.lifetime.name}", operand=index)


def _check_writer(index: int, operand: ModelOperand, writer: ModelOperation | None) -> None:
    is_written = operand.lifetime in WRITTEN
    if is_written and writer is None:
        raise bad_data("has no value and no operation writes it", operand=index)
    if not is_written and writer is not None:
        raise bad_data(f"is {operand.lifetime.name} and cannot be written", operation=writer.code, operand=index)


def _check_operand(index: int, operand: ModelOperand) -> None:
    kind = operand.kind
    check_type(kind, index)
    if kind.type is Operand.TENSOR_INT32 and (kind.scale < 0 or kind.zero_point):
        raise bad_data(f"TENSOR_INT32 with scale {kind.scale:g} and zero point {kind.zero_point}", operand=index)
    per_channel = kind.type is Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL
    if per_channel and kind.channel_quant is None:
        raise bad_data("the scales per channel are not set", operand=index)
    if (kind.type is Operand.MODEL) != (operand.lifetime is Lifetime.SUBGRAPH):
        raise bad_data("an operand of type MODEL, and no other, holds a model", operand=index)


def dependencies(model: Model) -> tuple[list[int], dict[int, list[int]]]:
    """For each operation, how many of its inputs other operations write; for each operand, the operations that read it."""
    missing = []
    readers: dict[int, list[int]] = {}
    for at, operation in enumerate(model.operations):
        awaited = [i for i in operation.inputs if model.operands[i].lifetime in WRITTEN]
        missing.append(len(awaited))
        for index in awaited:
            readers.setdefault(index, []).append(at)
    return missing, readers


def run_order(model: Model) -> list[int]:
    """Indices of the operations in execution order: of the ready ones, the one that became ready last comes next.
    Raises BAD_DATA for a cycle or an operand that nothing writes.
    """
    missing, readers = dependencies(model)
    ready = [at for at, count in enumerate(missing) if count == 0]
    order: list[int] = []
    written: set[int] = set()
    while ready:
        at = ready.pop()
        order.append(at)
        for index in model.operations[at].outputs:
            if index in written:
                raise bad_data("is written twice", operation=model.operations[at].code, operand=index)
            written.add(index)
            for reader in readers.get(index, ()):
                missing[reader] -= 1
                if missing[reader] == 0:
                    ready.append(reader)
    if len(order) < len(model.operations):
        stuck = model.operations[min(set(range(len(model.operations))) - set(order))]
        raise bad_data("waits for an operand that is never written, or for itself", operation=stuck.code)
    return order


def operation_level(operation: ModelOperation, operands: Sequence[ModelOperand]) -> FeatureLevel:
    """The feature level that an operation needs with its operands."""
    level = operation.level
    for index in (*operation.inputs, *operation.outputs):
        kind = operands[index].kind
        level = max(level, kind.type.level)
        if kind.type.is_tensor and not kind.dims:
            level = max(level, FeatureLevel.LEVEL_3)
    return level


def check_control_flow(code: Operation, inputs: Sequence[ModelOperand], outputs: Sequence[ModelOperand]) -> None:
    """Raise BAD_DATA if the models of an IF or WHILE do not match its operands."""
    if code is Operation.IF:
        _check_if(inputs, outputs)
    elif code is Operation.WHILE:
        _check_while(inputs, outputs)


def _check_if(inputs: Sequence[ModelOperand], outputs: Sequence[ModelOperand]) -> None:
    _check_condition(inputs[0].kind, Operation.IF)
    for branch in inputs[1:3]:
        model = _referenced(branch, Operation.IF)
        _check_pairs(Operation.IF, "branch input", model.input_types, [one.kind for one in inputs[3:]])
        _check_pairs(Operation.IF, "branch output", model.output_types, [one.kind for one in outputs])


def _check_while(inputs: Sequence[ModelOperand], outputs: Sequence[ModelOperand]) -> None:
    condition, body = (_referenced(one, Operation.WHILE) for one in inputs[:2])
    kinds = [one.kind for one in inputs[2:]]
    if not outputs:
        raise bad_data("needs an output", operation=Operation.WHILE)
    _check_pairs(Operation.WHILE, "condition input", condition.input_types, kinds)
    _check_pairs(Operation.WHILE, "body input", body.input_types, kinds)
    if len(condition.outputs) != 1:
        raise bad_data(f"the condition has {len(condition.outputs)} outputs, not 1", operation=Operation.WHILE)
    _check_condition(condition.output_types[0], Operation.WHILE)
    states = body.output_types
    if not len(outputs) <= len(states) <= len(kinds):
        message = f"the body has {len(states)} outputs for {len(outputs)} results and {len(kinds)} inputs"
        raise bad_data(message, operation=Operation.WHILE)
    _check_pairs(Operation.WHILE, "body output", states, kinds[: len(states)])
    _check_pairs(Operation.WHILE, "output", [one.kind for one in outputs], states[: len(outputs)])


def _referenced(operand: ModelOperand, code: Operation) -> Model:
    if operand.model is None:
        raise bad_data("an operand of type MODEL holds no model", operation=code)
    return operand.model


def _check_condition(kind: OperandType, code: Operation) -> None:
    if kind.type is not Operand.TENSOR_BOOL8 or (kind.dims and kind.dims not in ((1,), (0,))):
        raise bad_data(f"the condition is {kind}, not TENSOR_BOOL8[1]", operation=code)


def _check_pairs(code: Operation, what: str, inner: Sequence[OperandType], outer: Sequence[OperandType]) -> None:
    if len(inner) != len(outer):
        raise bad_data(f"{what}s: {len(inner)} for {len(outer)} operands", operation=code)
    for at, (one, other) in enumerate(zip(inner, outer)):
        if not compatible(one, other):
            raise bad_data(f"{what} {at} is {one}, the operand {other}", operation=code)
