"""Models: operands, operations, and the rules for putting them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.codes import FeatureLevel, Operation
from ortconv.nnapi.errors import bad_data, bad_state
from ortconv.nnapi.memory import Memory
from ortconv.nnapi.operand import ChannelQuant, OperandType
from ortconv.nnapi.operations import row_of

COPY_LIMIT = 128  # bytes; longer values are read when the model is finished


class Lifetime(Enum):
    TEMPORARY = auto()
    INPUT = auto()
    OUTPUT = auto()
    COPY = auto()
    REFERENCE = auto()
    NO_VALUE = auto()
    SUBGRAPH = auto()


@dataclass(slots=True)
class ModelOperand:
    kind: OperandType
    lifetime: Lifetime = Lifetime.TEMPORARY
    value: Array | None = None
    """Of a constant: elements in the shape of the operand."""
    model: Model | None = None


@dataclass(frozen=True, slots=True)
class ModelOperation:
    code: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    level: FeatureLevel


class Model:
    """A graph of operations. Build it, `finish` it, compile it."""

    def __init__(self) -> None:
        self.operands: list[ModelOperand] = []
        self.operations: list[ModelOperation] = []
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()
        self.relaxed = False
        self.finished = False
        self.valid = True

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def add_operand(self, kind: OperandType) -> int:
        self._must_be_open()
        self.operands.append(ModelOperand(kind))
        return len(self.operands) - 1

    def set_operand_symm_per_channel_quant_params(self, index: int, channel_dim: int, scales: Sequence[float]) -> None:
        self._must_be_open()
        operand = self.operands[index]
        kind = operand.kind
        quant = ChannelQuant(channel_dim, tuple(float(np.float32(one)) for one in scales))
        operand.kind = OperandType(kind.type, kind.dims, kind.scale, kind.zero_point, quant)

    def set_operand_value(self, index: int, value: Array | None) -> None:
        self._must_be_open()
        operand = self.operands[index]
        if value is None:
            operand.lifetime = Lifetime.NO_VALUE
            return
        operand.value = np.array(value, operand.kind.type.dtype).reshape(operand.kind.dims)
        operand.lifetime = Lifetime.COPY

    def set_operand_value_from_memory(self, index: int, memory: Memory, offset: int, length: int) -> None:
        self._must_be_open()
        operand = self.operands[index]
        operand.value = memory.region(offset, length).view(operand.kind.type.dtype).reshape(operand.kind.dims)
        operand.lifetime = Lifetime.REFERENCE

    def set_operand_value_from_model(self, index: int, model: Model) -> None:
        self._must_be_open()
        self.operands[index].model = model
        self.operands[index].lifetime = Lifetime.SUBGRAPH

    def add_operation(self, code: Operation, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._must_be_open()
        kinds = [self.operands[index].kind for index in (*inputs, *outputs)]
        level = row_of(code).validate(kinds[: len(inputs)], kinds[len(inputs) :])
        self.operations.append(ModelOperation(code, tuple(inputs), tuple(outputs), level))

    def identify_inputs_and_outputs(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._must_be_open()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        for indexes, lifetime in ((inputs, Lifetime.INPUT), (outputs, Lifetime.OUTPUT)):
            for index in indexes:
                if self.operands[index].lifetime is not Lifetime.TEMPORARY:
                    raise bad_data("is already an input, an output or a constant", operand=index)
                self.operands[index].lifetime = lifetime

    def relax_computation_float32_to_float16(self, allow: bool) -> None:
        self._must_be_open()
        self.relaxed = allow

    def finish(self) -> None:
        self._must_be_open()
        self.finished = True

    def _must_be_open(self) -> None:
        if self.finished:
            raise bad_state("the model is finished")
