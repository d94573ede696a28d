"""Reductions, and operators that compute along one dimension."""

from __future__ import annotations

from ortconv.nnapi.operations.table import OperationCall
from ortconv.tflite.layout import ElementType
from ortconv.tflite.model import Option
from ortconv.tflite.movement import through_scalar
from ortconv.tflite.table import translated
from ortconv.tflite.translation import RefusedOperationError, Translation


@translated("MEAN", types="F H Q S")
@translated("REDUCE_MAX", "REDUCE_MIN", types="F H Q S", either_sign=True)
@translated("REDUCE_SUM", "REDUCE_PROD", types="F H")
@translated("REDUCE_ALL", "REDUCE_ANY", types="B")
def reduce(t: Translation, u: OperationCall) -> None:
    """A mean over no dimension is the tensor itself. In NNAPI, other reductions accept an empty list of dimensions, too."""
    rank = len(t.dims(u.x))
    axes = sorted({axis % rank for axis in t.constant(u.axes, "axes").reshape(-1).tolist()})
    keep = bool(u.keep > 0)
    code = {"REDUCE_SUM": "SUM"}.get(u.operation.name, u.operation.name)
    to_number = not keep and len(axes) == rank
    through_scalar(t, u, code, [t.read(u.x), t.ints(axes)], to_number, keep_dims=keep)


@translated("ARGMAX", "ARGMIN", types="F H I Q S", either_sign=True)
def arg_extreme(t: Translation, u: OperationCall) -> None:
    rank = len(t.dims(u.x))
    inputs = [t.read(u.x), t.ints(u.axis, ())]
    code = {"ARGMAX": "ARG_MAX", "ARGMIN": "ARG_MIN"}[u.operation.name]
    through_scalar(t, u, code, inputs, rank == 1, output_type=ElementType.INT32)


def along_last(t: Translation, u: OperationCall, **options: Option) -> None:
    """An operator that works on the last dimension, between two transposes if another dimension is given."""
    dims, x, code = t.dims(u.x), t.read(u.x), u.operation.name
    last = len(dims) - 1
    axis = u.axis % len(dims)
    out = t.write(u.out)
    if axis == last:
        t.emit(code, [x], [out], **options)
        return
    order = list(range(len(dims)))
    order[axis], order[last] = last, axis
    shape, swap = [dims[i] for i in order], t.ints(order)
    turned, made = t.temporary(x, shape), t.temporary(out, shape)
    t.emit("TRANSPOSE", [x, swap], [turned])
    t.emit(code, [turned], [made], **options)
    t.emit("TRANSPOSE", [made, swap], [out])


@translated("SOFTMAX", types="F H Q S")
def softmax(t: Translation, u: OperationCall) -> None:
    along_last(t, u, beta=float(u.beta))


@translated("LOG_SOFTMAX", types="F H")
def log_softmax(t: Translation, u: OperationCall) -> None:
    if u.beta != 1.0:
        raise RefusedOperationError(f"its LOG_SOFTMAX has beta 1, not {u.beta:g}")
    along_last(t, u)


@translated("L2_NORMALIZATION", types="F H Q S")
def l2_normalization(t: Translation, u: OperationCall) -> None:
    along_last(t, u, fused_activation_function=0)


@translated("LOCAL_RESPONSE_NORMALIZATION", types="F H")
def lrn(t: Translation, u: OperationCall) -> None:
    if len(t.dims(u.x)) != 4:
        raise RefusedOperationError("it supports only tensors of four dimensions")
    numbers = {"bias": float(u.bias), "alpha": float(u.alpha), "beta": float(u.beta)}
    along_last(t, u, radius=u.radius, **numbers)
