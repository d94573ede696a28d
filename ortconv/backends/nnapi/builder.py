"""Builds an NNAPI model from values of a graph: operands, constants, layouts and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ortconv import nnapi
from ortconv.errors import BackendError
from ortconv.ir.graph import Value
from ortconv.ir.tensor import Array, dense
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.nnapi import FuseCode, Operand, OperandType, Operation
from ortconv.nnapi.running import NCHW, NHWC, permuted

PADDING = 16
"""Alignment in bytes of initializers in shared memory."""
COPIED = 128
"""Constants up to this size in bytes are copied into the model."""

Quantization = tuple[float, int]
"""Scale and zero point."""
Fused = tuple[FuseCode, Value]
"""A fused activation, and its result."""

TYPES = {
    DType.FLOAT: Operand.TENSOR_FLOAT32, DType.INT32: Operand.TENSOR_INT32, DType.UINT8: Operand.TENSOR_QUANT8_ASYMM,
}  # fmt: skip
"""NNAPI's operand types for element types of tensors."""


class Builder:
    """An NNAPI model under construction.

    A value can have an operand in ONNX's order of dimensions, another one as an image (NHWC, unless `nchw`), or both. If the
    requested one is missing, a transpose of the other is added. `activations` are the fused activations by the values that they
    read.
    """

    def __init__(
        self, level: int, nchw: bool, quantization: Mapping[Value, Quantization], activations: Mapping[Value, Fused]
    ) -> None:
        self.level = level
        self.nchw = nchw
        self.model = nnapi.Model()
        self.names: dict[int, str] = {}
        """Names of values by operand index."""
        self.constants: set[int] = set()
        self._quantization = quantization
        self._activations = activations
        self._operands: dict[tuple[Value, bool], int] = {}
        self._pool: list[tuple[int, Array]] = []
        self._scalars: dict[tuple[Operand, Any], int] = {}

    # ------------------------------------------------------------------ values

    def operand(self, value: Value, *, image: bool = False) -> int:
        """The operand of a value that is constant or has an operand already. Raises BackendError otherwise."""
        image = image and not self.nchw
        found = self._operands.get((value, image))
        if found is None:
            if value.is_constant:
                assert value.const is not None
                array = dense(value.const)
                found = self.constant(array.transpose(NHWC) if image else array, self._quantization.get(value))
            elif (value, not image) in self._operands:
                source = self._operands[value, not image]
                found = self.temporary(self.kind(source), permuted(self.dims(source), NHWC if image else NCHW))
                self.add(Operation.TRANSPOSE, [source, self.ints(NHWC if image else NCHW)], [found])
            else:
                raise BackendError(f"'{value.name}' is read before it is made", backend="nnapi")
            self._bind(value, image, found)
        return found

    def in_its_layout(self, value: Value) -> tuple[int, bool]:
        """The operand of a value in the layout that it has, and True if that is an NHWC image."""
        image = self.is_image(value)
        return self.operand(value, image=image), image

    def is_image(self, value: Value) -> bool:
        """True if the only operand of a value is an NHWC image."""
        return (value, True) in self._operands and (value, False) not in self._operands

    def make(self, value: Value, image: bool = False, like: int | None = None) -> int:
        """Add an operand for a value. An 8-bit value without quantization parameters of its own inherits those of `like`."""
        image = image and not self.nchw
        dims = _dims(value, image)
        kind = self._kind(value, None if like is None else self.kind(like))
        index = self.model.add_operand(kind.with_dims(permuted(dims, NHWC) if image else dims))
        self._bind(value, image, index)
        return index

    def found(self, value: Value) -> tuple[int | None, bool]:
        """(existing operand of a value, or None; True if it is an NHWC image)."""
        image = self.is_image(value)
        return self._operands.get((value, image)), image

    def lacks(self, value: Value) -> bool:
        """True if a value is not constant and has no operand yet."""
        return not value.is_constant and self.found(value)[0] is None

    def alias(self, value: Value, source: Value) -> None:
        """Give a value the operands of another one."""
        for image in (False, True):
            if (source, image) in self._operands:
                self._operands[value, image] = self._operands[source, image]
        if source.is_constant:
            self._bind(value, False, self.operand(source))

    def reshaped(self, index: int, dims: Sequence[int]) -> int:
        """A new operand with the elements of another one."""
        made = self.temporary(self.kind(index), dims)
        self.add(Operation.RESHAPE, [index, self.ints(dims)], [made])
        return made

    def _bind(self, value: Value, image: bool, index: int) -> None:
        self._operands[value, image] = index
        self.names[index] = value.name

    def _kind(self, value: Value, like: OperandType | None) -> OperandType:
        type = None if value.dtype is None else TYPES.get(value.dtype)
        if type is None:
            raise BackendError(f"'{value.name}' is {value.type}: NNAPI has float32, int32 and uint8", backend="nnapi")
        if type is not Operand.TENSOR_QUANT8_ASYMM:
            return OperandType(type)
        default = None if like is None or not like.is_quantized else (like.scale, like.zero_point)
        found = self._quantization.get(value, default)
        if found is None:
            raise BackendError(f"nothing gives scale and zero point of '{value.name}'", backend="nnapi")
        return OperandType(type, (), *found)

    # ------------------------------------------------------------------ operands

    def kind(self, index: int) -> OperandType:
        return self.model.operands[index].kind

    def dims(self, index: int) -> tuple[int, ...]:
        return self.kind(index).dims

    def temporary(self, kind: OperandType, dims: Sequence[int] | None = None) -> int:
        """Add an operand of this type for a result that is not a value of the graph."""
        return self.model.add_operand(kind if dims is None else kind.with_dims(dims))

    def constant(self, array: Array, quantization: Quantization | None = None) -> int:
        """Add a constant tensor of type float32, int32 or quantized uint8. A scalar becomes a tensor of one element."""
        type = TYPES.get(DType.of(array.dtype))
        if type is None or (type is Operand.TENSOR_QUANT8_ASYMM and quantization is None):
            raise BackendError(f"NNAPI has no constants of {array.dtype} without quantization", backend="nnapi")
        array = array.reshape(1) if array.ndim == 0 else array
        return self.tensor(OperandType(type, array.shape, *(quantization or ())), array)

    def tensor(self, kind: OperandType, array: Array, scales: tuple[int, Sequence[float]] | None = None) -> int:
        """Add a constant of any type. `scales` are a dimension and the scales along it. Large constants go to shared memory."""
        index = self.model.add_operand(kind)
        self.constants.add(index)
        if scales is not None:
            self.model.set_operand_symm_per_channel_quant_params(index, *scales)
        if array.nbytes <= COPIED:
            self.model.set_operand_value(index, np.ascontiguousarray(array))
        else:
            self._pool.append((index, array))
        return index

    def ints(self, values: Sequence[int]) -> int:
        return self.constant(np.array(values, np.int32))

    def int32(self, value: int) -> int:
        return self._scalar(Operand.INT32, value)

    def float32(self, value: float) -> int:
        return self._scalar(Operand.FLOAT32, value)

    def boolean(self, value: bool) -> int:
        return self._scalar(Operand.BOOL, value)

    def _scalar(self, type: Operand, value: Any) -> int:
        key = (type, str(value))
        if key not in self._scalars:
            self._scalars[key] = index = self.model.add_operand(OperandType(type))
            self.model.set_operand_value(index, np.array(value, type.dtype))
        return self._scalars[key]

    # ------------------------------------------------------------------ operations

    def add(self, code: Operation, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.model.add_operation(code, inputs, outputs)

    def emit(self, unit: NodeUnit, code: Operation, inputs: Sequence[int], image: bool = False) -> None:
        """Add the operation that makes the result of a unit."""
        self.add(code, inputs, [self.make(self.result(unit), image)])

    def layout_flag(self) -> list[int]:
        """The operand that selects NCHW, as a list; empty below feature level 29, which lacks it."""
        return [self.boolean(self.nchw)] if self.level > 28 else []

    def activation(self, unit: NodeUnit) -> int:
        """The operand with the fuse code of the activation after a unit."""
        fused = self._activations.get(unit.target.out)
        return self.int32(FuseCode.NONE if fused is None else fused[0])

    def result(self, unit: NodeUnit) -> Value:
        """The output of a unit, or of its fused activation."""
        made = unit.outputs[0]
        assert made is not None
        fused = self._activations.get(made.value)
        return made.value if fused is None else fused[1]

    def finish(self, inputs: Sequence[int], outputs: Sequence[int], relaxed: bool, to_run: bool = True) -> None:
        """Finish the model. Its large constants share one memory; unless `to_run`, they are zeros and are not copied."""
        sizes = [-(-array.nbytes // PADDING) * PADDING for _, array in self._pool]
        starts = np.cumsum([0, *sizes]).tolist() if to_run else [0] * len(sizes)
        memory = np.zeros(sum(sizes) if to_run else max(sizes, default=0), np.uint8)
        shared = nnapi.Memory.from_array(memory)
        for (index, array), start in zip(self._pool, starts):
            if to_run:
                memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
            self.model.set_operand_value_from_memory(index, shared, start, array.nbytes)
        self._pool.clear()
        self.model.identify_inputs_and_outputs(inputs, outputs)
        if relaxed and self.level > 27:
            self.model.relax_computation_float32_to_float16(True)
        self.model.finish()


Lowering = Callable[[Builder, NodeUnit], None]
"""Adds the operations of a unit, and binds the values that it produces."""


def value_of(unit: NodeUnit, slot: int = 0) -> Value:
    """The tensor at an input that is present."""
    value = unit.input(slot)
    assert value is not None
    return value


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value that is known to be static."""
    shape = value.static_shape
    assert shape is not None
    return shape


def _dims(value: Value, image: bool) -> tuple[int, ...]:
    """Dimensions in NNAPI's notation: 0 for an unknown dimension, [1] for a scalar."""
    if value.shape is None:
        return (0,) * 4 if image else ()
    return tuple(d if isinstance(d, int) else 0 for d in value.shape) or (1,)
