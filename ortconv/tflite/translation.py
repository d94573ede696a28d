"""The model for LiteRT in the making: tensors for the operands of an NNAPI model, and the operators that rows emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi import Model, Operand, OperandType
from ortconv.nnapi.model import ModelOperand, ModelOperation
from ortconv.tflite.layout import ElementType
from ortconv.tflite.model import Operator, Option, QuantizationParameters, Tensor, TfliteModel
from ortconv.tflite.versions import version_of

TYPES = {
    Operand.TENSOR_FLOAT32: ElementType.FLOAT32, Operand.TENSOR_FLOAT16: ElementType.FLOAT16,
    Operand.TENSOR_INT32: ElementType.INT32, Operand.TENSOR_BOOL8: ElementType.BOOL,
    Operand.TENSOR_QUANT8_ASYMM: ElementType.UINT8, Operand.TENSOR_QUANT8_ASYMM_SIGNED: ElementType.INT8,
    Operand.TENSOR_QUANT8_SYMM: ElementType.INT8, Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL: ElementType.INT8,
}  # fmt: skip
"""LiteRT's element type for each type of NNAPI's tensors."""

SIGN = 128
"""How much smaller an element is as int8 than as uint8."""

UNSIGNED, HALF, CHANNELS = (
    Operand.TENSOR_QUANT8_ASYMM, Operand.TENSOR_FLOAT16, Operand.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)  # fmt: skip


class RefusedOperationError(Exception):
    """An operation cannot be translated for LiteRT. The message is the reason."""


class Translation:
    """A model in translation: rows of operations read and write its tensors, and emit operators.

    An operand has a tensor of its own type, or one that is easier to compute with, or both: int8 for uint8, since LiteRT has
    filters quantized per channel only for int8; float32 for float16, since LiteRT's CPU kernels have no float16 arithmetic.
    """

    def __init__(self, model: Model, names: Mapping[int, str] | None = None) -> None:
        self.nnapi = model
        self.model = TfliteModel("")
        self._names = names or {}
        self._used: dict[str, int] = {}
        self._tensors: dict[tuple[int, bool], int] = {}  # by operand, and whether it is the one to compute with
        self._constants: dict[object, int] = {}
        self.signed = False  # whether the present operation computes with int8
        self._halves: list[tuple[int, int]] = []  # float16 results that the present operation computed in float32
        for index in model.inputs:
            self._tensors[index, False] = self._new(index)

    def begin(self, operation: ModelOperation, either_sign: bool) -> None:
        """Decide whether the next operation computes with int8, before its row reads operands."""
        types = {self.kind(i).type for i in operation.inputs if i >= 0}
        self.signed = {CHANNELS, UNSIGNED} <= types or (either_sign and self._only_signed(operation.inputs))

    def end(self) -> None:
        """Round the results that the present operation computed in float32 to float16."""
        for wide, index in self._halves:
            made = self._tensors[index, False] = self._new(index)
            self.emit("CAST", [wide], [made], in_data_type=ElementType.FLOAT32, out_data_type=ElementType.FLOAT16)
        self._halves.clear()

    def finished(self, inputs: Sequence[str], outputs: Sequence[str], name: str) -> TfliteModel:
        """The model, with names for its signature."""
        self.signed = False
        self.model.name = name
        self.model.inputs = [(n, self._tensors[i, False]) for n, i in zip(inputs, self.nnapi.inputs, strict=True)]
        self.model.outputs = [(n, self._tensor(i, False)) for n, i in zip(outputs, self.nnapi.outputs, strict=True)]
        return self.model

    def _only_signed(self, inputs: Sequence[int]) -> bool:
        """Whether some uint8 input exists only as int8, so that computing with int8 saves an operator."""
        unsigned = [i for i in inputs if self.kind(i).type is UNSIGNED and self.array(i) is None]
        return any((i, True) in self._tensors and (i, False) not in self._tensors for i in unsigned)

    # ------------------------------------------------------------------ for rows

    def kind(self, index: int) -> OperandType:
        return self.nnapi.operands[index].kind

    def dims(self, index: int) -> tuple[int, ...]:
        return self.kind(index).dims

    def array(self, index: int) -> Array | None:
        """The elements of a constant."""
        return self.nnapi.operands[index].value

    def constant(self, index: int, what: str) -> Array:
        """The elements of an operand that LiteRT needs as a constant."""
        array = self.array(index)
        if array is None:
            raise RefusedOperationError(f"{what} must be constant")
        return array

    def check_same_quantization(self, *operands: int) -> None:
        """Refuse operands with different quantizations: LiteRT compares and moves quantized values without rescaling."""
        kinds = [self.kind(i) for i in operands]
        if any(kinds[0].is_quantized and not kind.same_quantization(kinds[0]) for kind in kinds):
            raise RefusedOperationError("it wants one quantization of all operands")

    def read(self, index: int) -> int:
        """The tensor of an operand that the present operation reads."""
        kind = self.kind(index).type
        return self._tensor(index, kind is HALF or (kind is UNSIGNED and self.signed))

    def write(self, index: int) -> int:
        """The tensor that the present operation writes a result to."""
        kind = self.kind(index).type
        if kind is HALF:
            self._halves.append((made := self._new(index, True), index))
            return made
        eased = kind is UNSIGNED and self.signed
        made = self._tensors[index, eased] = self._new(index, eased)
        return made

    def temporary(self, like: int, shape: Sequence[int]) -> int:
        """A tensor with the type and quantization of another one."""
        tensor = self.model.tensors[like]
        return self._add(replace(tensor, name=self._unique(f"{tensor.name}_part"), shape=tuple(shape), data=None))

    def ints(self, values: Sequence[int] | Sequence[Sequence[int]] | Array, shape: Sequence[int] | None = None) -> int:
        """A constant vector of int32, or a tensor of another shape; () makes a scalar."""
        array = np.asarray(values, np.int32)
        return self._shared(array if shape is None else array.reshape(shape), ElementType.INT32)

    def value_like(self, like: int, value: float) -> int:
        """A constant scalar with the type and quantization of a tensor."""
        tensor = self.model.tensors[like]
        dtype = {ElementType.FLOAT32: np.float32, ElementType.UINT8: np.uint8, ElementType.INT8: np.int8}
        return self._shared(np.array(value, dtype.get(tensor.type, np.int32)), tensor.type, tensor.quantization)

    def floats(self, array: Array) -> int:
        return self._shared(array.astype(np.float32, copy=False), ElementType.FLOAT32)

    def emit(self, code: str, inputs: Sequence[int], outputs: Sequence[int], **options: Option) -> None:
        version = version_of(code, [self.model.tensors[i] for i in (*inputs, *outputs)], options)
        self.model.operators.append(Operator(code, version, tuple(inputs), tuple(outputs), options))

    # ------------------------------------------------------------------ tensors

    def _tensor(self, index: int, eased: bool) -> int:
        """The tensor of an operand in one form, converted from the other form if it is missing."""
        found = self._tensors.get((index, eased))
        if found is not None:
            return found
        operand = self.nnapi.operands[index]
        if operand.value is not None and not (eased and operand.kind.type is HALF):
            found = self._constant(operand, eased, index)
        elif operand.value is not None or (index, not eased) in self._tensors:
            source = self._tensor(index, not eased)
            found = self._new(index, eased)
            self.emit("DEQUANTIZE" if operand.kind.type is HALF else "QUANTIZE", [source], [found])
        else:
            raise RefusedOperationError("an operation before it was refused")
        self._tensors[index, eased] = found
        return found

    def _new(self, index: int, eased: bool = False) -> int:
        return self._add(self._described(self.kind(index), eased, self._unique(self._names.get(index, f"t{index}"))))

    def _add(self, tensor: Tensor) -> int:
        self.model.tensors.append(tensor)
        return len(self.model.tensors) - 1

    def _described(self, kind: OperandType, eased: bool, name: str) -> Tensor:
        element = TYPES.get(kind.type)
        if element is None:
            raise RefusedOperationError(f"it has no tensors of {kind.type.name}")
        if not kind.dims:
            raise RefusedOperationError(f"the rank of '{name}' is not known")
        if eased:
            element = ElementType.FLOAT32 if kind.type is HALF else ElementType.INT8
        return Tensor(name, element, kind.dims, _quantization(kind, eased))

    def _constant(self, operand: ModelOperand, eased: bool, index: int) -> int:
        assert operand.value is not None
        name = self._names.get(index, f"constant{index}")
        tensor = self._described(operand.kind.with_dims(operand.value.shape), eased, name)
        array = operand.value
        if eased:
            array = (array ^ np.uint8(SIGN)).view(np.int8)
        if array.nbytes <= SHARED_BYTES:
            return self._shared(array, tensor.type, tensor.quantization, name)
        tensor.data, tensor.name = array, self._unique(name)
        return self._add(tensor)

    def _shared(
        self,
        array: Array,
        type: ElementType,
        quantization: QuantizationParameters | None = None,
        name: str = "constant",
    ) -> int:
        """A small constant, shared by all its users."""
        key = (type, array.shape, quantization, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._add(Tensor(self._unique(name), type, array.shape, quantization, array))
        return self._constants[key]

    def _unique(self, name: str) -> str:
        count = self._used[name] = self._used.get(name, 0) + 1
        return name if count == 1 else f"{name};{count}"


SHARED_BYTES = 128
"""Constants up to this size in bytes are one shared tensor. Larger ones share only their bytes in the file."""


def _quantization(kind: OperandType, eased: bool) -> QuantizationParameters | None:
    if kind.channel_quant is not None:
        scales = kind.channel_quant.scales
        return QuantizationParameters(scales, (0,) * len(scales), kind.channel_quant.dim)
    if not kind.is_quantized and not kind.scale:
        return None
    return QuantizationParameters((kind.scale,), (kind.zero_point - (SIGN if eased else 0),))
