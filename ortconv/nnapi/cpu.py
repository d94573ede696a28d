"""The reference executor: runs a model's operations in order, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import Operand, Operation
from ortconv.nnapi.errors import NnapiError, op_failed
from ortconv.nnapi.model import Lifetime, Model
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.operations.table import Dims, Row

Value = Tensor | None
"""None: omitted."""

NHWC = (0, 2, 3, 1)
NCHW = (0, 3, 1, 2)


def run(model: Model, inputs: Sequence[Value]) -> list[Tensor]:
    """The outputs of a finished model for its inputs, all of known shape."""
    values: dict[int, Value] = dict(zip(model.inputs, inputs))
    for operation in model.operations:
        operands = [_value(model, index, values) for index in operation.inputs]
        declared = [model.operands[index].kind for index in operation.outputs]
        results = run_operation(operation.code, operands, declared)
        values.update(zip(operation.outputs, results))
    return [values[index] for index in model.outputs]  # type: ignore[misc]


def _value(model: Model, index: int, values: dict[int, Value]) -> Value:
    operand = model.operands[index]
    if operand.lifetime in (Lifetime.COPY, Lifetime.REFERENCE):
        assert operand.value is not None
        return Tensor(operand.kind, operand.value)
    return values.get(index)


def run_operation(code: Operation, inputs: Sequence[Value], declared: Sequence[OperandType]) -> list[Tensor]:
    """The results of one operation; `declared` are the types of its outputs in the model."""
    row = row_of(code)
    try:
        return _run_row(row, inputs, declared)
    except NnapiError as error:
        error.operation = error.operation or code
        raise


def _run_row(row: Row, inputs: Sequence[Value], declared: Sequence[OperandType]) -> list[Tensor]:
    if not row.zero_sized and any(one is not None and one.type.is_tensor and one.size == 0 for one in inputs):
        raise op_failed("takes no tensor without elements")
    call = row.bind([one if row.native_half else _widen(one) for one in inputs], declared)
    turned = row.nchw if row.nchw and call.get("nchw") else ()
    for name in turned:
        if isinstance(call.args[name], Tensor):
            call.args[name] = _to_nhwc(call.args[name])
    assert row.compute is not None
    images = [slot.name in turned for slot in call.output_slots]
    if row.infer is not None:
        found = row.infer(call)
        shapes = found if isinstance(found, list) else [found]
        for out, dims, image in zip(declared, shapes, images):
            agreed(out, _permuted(dims, NCHW) if image else dims)
        call.set_outputs([out.with_dims(dims) for out, dims in zip(declared, shapes)])
    with np.errstate(all="ignore"):
        results = row.compute(call)
    arrays: Sequence[Array] = [results] if isinstance(results, np.ndarray) else results
    return [_finished(out, array, image) for out, array, image in zip(declared, arrays, images)]


def _widen(value: Value) -> Value:
    """Float16 tensors with their elements as float32."""
    if value is not None and value.type is Operand.TENSOR_FLOAT16:
        return Tensor(value, value.array.astype(np.float32))
    return value


def _to_nhwc(x: Tensor) -> Tensor:
    if x.rank != 4:
        raise op_failed(f"an NCHW image has rank 4, not {x.rank}")
    return Tensor(x, x.array.transpose(NHWC))


def _permuted(dims: Dims, order: tuple[int, ...]) -> Dims:
    return tuple(dims[axis] for axis in order)


def agreed(declared: OperandType, dims: Dims) -> None:
    """OP_FAILED if dimensions found do not agree with the known ones that were declared."""
    known = declared.dims
    if known and (len(known) != len(dims) or any(k not in (0, d) for k, d in zip(known, dims))):
        raise op_failed(f"the output has dimensions {list(dims)}, declared are {list(known)}")


def _finished(declared: OperandType, array: Array, image: bool) -> Tensor:
    array = array.transpose(NCHW) if image else array
    agreed(declared, array.shape)
    return Tensor(declared, np.ascontiguousarray(array, declared.type.dtype))
