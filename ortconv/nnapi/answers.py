"""Checks of what a driver answers. A wrong answer is an exception, which counts as a failure of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortconv.nnapi.codes import ResultCode
from ortconv.nnapi.device import Executed, PreparedModel
from ortconv.nnapi.errors import NnapiError, OutputTooSmallError, op_failed
from ortconv.nnapi.operand import OperandType, Tensor
from ortconv.nnapi.running import Room
from ortconv.nnapi.validation import LARGEST, compatible

if TYPE_CHECKING:
    from ortconv.nnapi.plan import Request


def prepared_model(answer: object) -> PreparedModel:
    """The prepared model that a driver has returned. Raises TypeError if it is something else."""
    if not isinstance(answer, PreparedModel):
        raise TypeError(f"a {type(answer).__name__} is not a PreparedModel")
    return answer


def execute(prepared: PreparedModel, kinds: Sequence[OperandType], request: Request) -> Executed:
    """Run a driver's model with outputs of these types. Raises ValueError for results or durations, and OP_FAILED for shapes of
    outputs that do not fit, which a driver must not return.
    """
    try:
        results, timing = prepared.execute(request.inputs, request.room, request.limits, request.measure)
    except NnapiError as error:
        if error.code is ResultCode.OUTPUT_INSUFFICIENT_SIZE:
            _check_shapes(error, kinds)
        raise
    _check_results(results, kinds, request.room)
    for one in (timing.on_hardware, timing.in_driver):
        if one is not None and not (isinstance(one, int) and 0 <= one < 1 << 64):
            raise ValueError(f"{one!r} is not a duration in nanoseconds")
    return results, timing


def _check_results(results: Sequence[Tensor], kinds: Sequence[OperandType], room: Room) -> None:
    if len(results) != len(kinds) or not all(isinstance(one, Tensor) for one in results):
        raise ValueError(f"{len(results)} results for {len(kinds)} outputs, or results that are not Tensors")
    for result, kind, space in zip(results, kinds, room):
        if result.with_dims(()) != kind.with_dims(()):
            raise ValueError(f"{result} for an output {kind}")
        if result.array.dtype != kind.type.dtype or (space is not None and result.nbytes > space):
            raise ValueError(f"{result} in an array of {result.array.dtype}, with room for {space} bytes")


def _check_shapes(error: NnapiError, kinds: Sequence[OperandType]) -> None:
    """Raise OP_FAILED, as validateOutputShapesFromDriver and updateOutputShapes in Android's runtime/ExecutionBuilder.cpp, unless
    there is a shape for each output, as far as it is declared, and one that does not fit.
    """
    shapes = error.shapes if isinstance(error, OutputTooSmallError) else []
    if len(shapes) != len(kinds) or all(fits for _, fits in shapes):
        raise op_failed(f"the driver states the shapes {shapes} for {len(kinds)} outputs of which one does not fit")
    for (dims, _), kind in zip(shapes, kinds):
        found = kind.with_dims(dims)
        if not all(isinstance(dim, int) and dim >= 0 for dim in dims) or found.nbytes > LARGEST:
            raise op_failed(f"the driver states the dimensions {dims}")
        if not compatible(kind, found):
            raise op_failed(f"the driver states {found} for an output {kind}")
