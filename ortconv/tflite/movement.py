"""Operators that move elements."""

from __future__ import annotations

import numpy as np

from ortconv.nnapi import Operand
from ortconv.nnapi.operations.table import OperationCall
from ortconv.tflite.model import Option
from ortconv.tflite.table import emits, translated
from ortconv.tflite.translation import RefusedOperationError, Translation

ALL = "F H I Q S"

emits("SLICE", inputs="x begin sizes", types=ALL, either_sign=True, same="x out")
emits("REVERSE", inputs="x axis", types=ALL, code="REVERSE_V2", either_sign=True)
emits("TILE", inputs="x multiples", types=ALL, either_sign=True)
emits("GATHER", inputs="x indices", types=ALL, either_sign=True, same="x out", axis="axis")
emits("EMBEDDING_LOOKUP", inputs="values lookups", types="F H Q S", code="GATHER", axis=0)
emits("PAD", inputs="x paddings", types=ALL, either_sign=True)
emits("MIRROR_PAD", inputs="x paddings", types=ALL, either_sign=True, mode="mode")


@translated("RESHAPE", types=ALL, either_sign=True)
def reshape(t: Translation, u: OperationCall) -> None:
    shape = t.array(u.shape)
    options = {} if shape is None else {"new_shape": shape.tolist()}
    t.emit("RESHAPE", [t.read(u.x), t.read(u.shape)], [t.write(u.out)], **options)


@translated("SQUEEZE", types=ALL, either_sign=True)
def squeeze(t: Translation, u: OperationCall) -> None:
    rank = len(t.dims(u.x))
    if u.axes is None:
        listed = [axis for axis, size in enumerate(t.dims(u.x)) if size == 1]
        if not all(t.dims(u.x)):
            raise RefusedOperationError("which dimensions are 1 is not known")
    else:
        listed = [axis % rank for axis in t.constant(u.axes, "dimensions to drop").tolist()]
    through_scalar(t, u, "SQUEEZE", [t.read(u.x)], len(set(listed)) == rank, squeeze_dims=listed)


def through_scalar(
    t: Translation, u: OperationCall, code: str, inputs: list[int], to_number: bool, **options: Option
) -> None:
    """An operator whose result is a scalar in LiteRT, and a vector of one element in NNAPI."""
    out = t.write(u.out)
    made = t.temporary(out, ()) if to_number else out
    t.emit(code, inputs, [made], **options)
    if to_number:
        t.emit("RESHAPE", [made, t.ints([1])], [out], new_shape=[1])


@translated("EXPAND_DIMS", types=ALL, either_sign=True)
def expand_dims(t: Translation, u: OperationCall) -> None:
    t.emit("EXPAND_DIMS", [t.read(u.x), t.ints(u.axis, ())], [t.write(u.out)])


@translated("TRANSPOSE", types=ALL, either_sign=True)
def transpose(t: Translation, u: OperationCall) -> None:
    order = t.ints(range(len(t.dims(u.x)))[::-1]) if u.order is None else t.read(u.order)
    t.emit("TRANSPOSE", [t.read(u.x), order], [t.write(u.out)])


@translated("CONCATENATION", types=ALL, either_sign=True)
def concatenation(t: Translation, u: OperationCall) -> None:
    if u.main is not Operand.TENSOR_QUANT8_ASYMM or t.signed:
        t.check_same_quantization(*u.inputs, u.out)
    inputs = [t.read(i) for i in u.inputs]
    t.emit("CONCATENATION", inputs, [t.write(u.out)], axis=u.axis, fused_activation_function=0)


@translated("PACK", types=ALL, either_sign=True)
def pack(t: Translation, u: OperationCall) -> None:
    t.check_same_quantization(*u.inputs, u.out)
    inputs = [t.read(i) for i in u.inputs]
    t.emit("PACK", inputs, [t.write(u.out)], values_count=len(inputs), axis=u.axis)


@translated("SPLIT", types=ALL, either_sign=True)
def split(t: Translation, u: OperationCall) -> None:
    outputs = [t.write(i) for i in u.parts]
    t.emit("SPLIT", [t.ints(u.axis, ()), t.read(u.x)], outputs, num_splits=u.count)


@translated("STRIDED_SLICE", types=ALL, either_sign=True)
def strided_slice(t: Translation, u: OperationCall) -> None:
    inputs = [t.read(i) for i in (u.x, u.begin, u.end, u.strides)]
    all_shrunk = u.shrink_mask & ((1 << len(t.dims(u.x))) - 1) == (1 << len(t.dims(u.x))) - 1
    masks = {"begin_mask": u.begin_mask, "end_mask": u.end_mask, "shrink_axis_mask": u.shrink_mask}
    through_scalar(t, u, "STRIDED_SLICE", inputs, all_shrunk, **masks)


@translated("PAD_V2", types=ALL)
def pad_with(t: Translation, u: OperationCall) -> None:
    x = t.read(u.x)
    t.emit("PADV2", [x, t.read(u.paddings), t.value_like(x, u.value)], [t.write(u.out)])


@translated("CHANNEL_SHUFFLE", types="F H Q S", either_sign=True)
def channel_shuffle(t: Translation, u: OperationCall) -> None:
    """A transpose of groups and their members, between two reshapes."""
    dims = t.dims(u.x)
    axis = u.axis % len(dims)
    if not all(dims):
        raise RefusedOperationError("the dimensions to shuffle are not known")
    split_dims = [*dims[:axis], u.groups, dims[axis] // u.groups, *dims[axis + 1 :]]
    order = list(range(len(split_dims)))
    order[axis], order[axis + 1] = order[axis + 1], order[axis]
    x = t.read(u.x)
    parts = t.temporary(x, split_dims)
    turned = t.temporary(x, [split_dims[i] for i in order])
    t.emit("RESHAPE", [x, t.ints(split_dims)], [parts], new_shape=split_dims)
    t.emit("TRANSPOSE", [parts, t.ints(order)], [turned])
    t.emit("RESHAPE", [turned, t.ints(dims)], [t.write(u.out)], new_shape=dims)


@translated("FILL", types="F I")
def fill(t: Translation, u: OperationCall) -> None:
    is_float = t.kind(u.out).type is Operand.TENSOR_FLOAT32
    value = t.floats(np.array(u.value)) if is_float else t.ints(u.value, ())
    t.emit("FILL", [t.read(u.dims), value], [t.write(u.out)])
