"""Runs single operations: binds the operands to the operation's row, checks them, and sizes and computes the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ortconv.executor.replay.work import AT_ONCE, Work
from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import Operand
from ortconv.nnapi.errors import NnapiError, op_failed
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.operations.table import Advice, Dims, OperationCall, OperationRow

OperandValue = Tensor | None
"""The value of an operand; None if it is omitted."""
Room = Sequence[int | None]
"""The bytes of each output's buffer; None means any size."""
Admit = Callable[[Sequence[Dims]], None]
"""Called with the dimensions of all results of an operation; before they are computed, if they can be inferred."""

NHWC = (0, 2, 3, 1)
NCHW = (0, 3, 1, 2)
"""Orders of the dimensions that lead from the other layout to this one."""


def run_operation(
    operation: ModelOperation,
    inputs: Sequence[OperandValue],
    declared: Sequence[OperandType],
    admit: Admit | None = None,
    work: Work = AT_ONCE,
) -> list[Tensor]:
    """The results of one operation, of the `declared` types. `work` may be a recorder if `is_recordable` permits it."""
    try:
        with np.errstate(all="ignore"):
            return _run_row(row_of(operation.code), operation, inputs, declared, admit, work)
    except NnapiError as error:
        error.operation = error.operation or operation.code
        raise
    except (ArithmeticError, IndexError, ValueError) as error:  # numpy cannot combine the operands
        raise op_failed(f"operands do not fit: {error}", operation=operation.code) from error


def is_recordable(operation: ModelOperation, changing: Iterable[int]) -> bool:
    """Whether an operation can be recorded if only these inputs, by index, change between runs."""
    recorded = row_of(operation.code).recorded
    return bool(recorded) and all(operation.use.slots[index].name in recorded for index in changing)


def _run_row(
    row: OperationRow,
    operation: ModelOperation,
    inputs: Sequence[OperandValue],
    declared: Sequence[OperandType],
    admit: Admit | None,
    work: Work,
) -> list[Tensor]:
    if row.compute is None:
        raise op_failed(f"{row.operation.name} is not an operation of the CPU")
    if not row.zero_sized and any(map(_is_empty, inputs)):
        raise op_failed("supports no tensor without elements")
    call = row.bind(operation.use, [one if row.native_half else _widened(one, work) for one in inputs], declared, work)
    _check_quantization(row, call)
    images = _turn_images(row, call)
    if row.infer is not None:
        _size_outputs(row.infer(call), call, declared, images, admit)
    results = row.compute(call)
    arrays: Sequence[Array] = [results] if isinstance(results, np.ndarray) else results
    assert all(map(work.holds, arrays)), f"{row.operation.name} computes outside of the recording"
    finished = [_finished(out, array, image, work) for out, array, image in zip(declared, arrays, images)]
    if row.infer is None and admit is not None:
        admit([result.dims for result in finished])
    return finished


def _is_empty(value: OperandValue) -> bool:
    return value is not None and value.size == 0 and value.type.is_tensor


def _turn_images(row: OperationRow, call: OperationCall) -> Sequence[bool]:
    """Turn the operation's NCHW images to NHWC. Returns for each output whether it has to be turned back."""
    if not row.nchw or not call.get("nchw"):
        return [False] * len(call.use.out_slots)
    for name in row.nchw:
        if isinstance(image := call.args[name], Tensor):
            if image.rank != 4:
                raise op_failed(f"an NCHW image has rank 4, not {image.rank}")
            call.args[name] = Tensor(image, image.array.transpose(NHWC))
    return [slot.name in row.nchw for slot in call.use.out_slots]


def _size_outputs(
    found: Dims | list[Dims],
    call: OperationCall,
    declared: Sequence[OperandType],
    images: Sequence[bool],
    admit: Admit | None,
) -> None:
    """Give the call's outputs the inferred dimensions. Raises NnapiError if they contradict the declared ones."""
    shapes = found if isinstance(found, list) else [found]
    stored = [permuted(dims, NCHW) if image else dims for dims, image in zip(shapes, images)]
    for out, dims in zip(declared, stored):
        agreed(out, dims)
    if admit is not None:
        admit(stored)
    call.set_outputs([out.with_dims(dims) for out, dims in zip(declared, shapes)])


def _check_quantization(row: OperationRow, call: OperationCall) -> None:
    """Raise OP_FAILED for scales and zero points that the operation cannot compute with."""
    for check in row.quantization:
        for found in check(call):
            if isinstance(found, str) and not isinstance(found, Advice):
                raise op_failed(found)


def _widened(value: OperandValue, work: Work) -> OperandValue:
    """The value, with a float16 tensor's elements as float32."""
    if value is not None and value.type is Operand.TENSOR_FLOAT16:
        return Tensor(value, converted(value.array, np.dtype(np.float32), work))
    return value


def converted(x: Array, dtype: np.dtype[np.generic], work: Work) -> Array:
    """Elements in row order, in another type."""
    out = work.empty(x.shape, dtype)
    work.do(_convert, x, out)
    return out


def _convert(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


def rounded_to_half(x: Tensor, work: Work = AT_ONCE) -> Tensor:
    """A float32 tensor with elements that float16 holds; other tensors as they are."""
    if x.array.dtype != np.float32:
        return x
    with np.errstate(over="ignore"):
        return Tensor(x, converted(converted(x.array, np.dtype(np.float16), work), x.array.dtype, work))


def permuted(dims: Sequence[int], order: Sequence[int]) -> Dims:
    return tuple(dims[axis] for axis in order)


def agreed(declared: OperandType, dims: Dims) -> None:
    """Raise OP_FAILED if dimensions contradict the declared ones."""
    known = declared.dims
    if known and known != dims and (len(known) != len(dims) or any(k not in (0, d) for k, d in zip(known, dims))):
        raise op_failed(f"dimensions {list(dims)} do not agree with the declared {list(known)}")


def _finished(declared: OperandType, array: Array, image: bool, work: Work) -> Tensor:
    array = np.asarray(array).transpose(NCHW) if image else np.asarray(array)
    agreed(declared, array.shape)
    dtype = declared.type.dtype
    is_final = array.dtype == dtype and array.flags.c_contiguous
    if is_final:
        return Tensor(declared, array)
    return Tensor(declared, work.copied(array) if array.dtype == dtype else converted(array, dtype, work))
