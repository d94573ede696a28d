"""Models: operands, operations, and the rules for combining them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ortconv.ir.tensor import Array
from ortconv.nnapi import extension, validation
from ortconv.nnapi.arguments import Values, elements
from ortconv.nnapi.codes import FeatureLevel, Operand, Operation
from ortconv.nnapi.errors import bad_data, bad_state
from ortconv.nnapi.handle import Handle, api
from ortconv.nnapi.memory import DeviceMemory, Memory
from ortconv.nnapi.operand import ChannelQuant, Lifetime, OperandType, single
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.operations.table import OperationUse
from ortconv.nnapi.properties import properties
from ortconv.nnapi.tracing import vlog

COPY_LIMIT = 128  # bytes; longer values are read when the model is finished


@dataclass(slots=True)
class ModelOperand:
    kind: OperandType
    lifetime: Lifetime = Lifetime.TEMPORARY
    value: Array | None = None
    """The elements of a constant, in the shape of the operand."""
    model: Model | None = None
    extension_data: bytes | None = None
    """Data of an operand with an extension's type, such as its quantization. Their meaning is defined by the extension."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelOperation:
    """One operation of a model. Operations are compared by identity."""

    code: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    level: FeatureLevel
    use: OperationUse
    """The form of the operation that the operands match."""


class Model(Handle):
    """A graph of operations. Build it, `finish` it, compile it. A finished model cannot be changed: changes raise BAD_STATE."""

    @api("PP")
    def __init__(self) -> None:
        self.operands: list[ModelOperand] = []
        self.operations: list[ModelOperation] = []
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()
        self.relaxed = False
        self.finished = False
        self.valid = True
        self.warnings: list[str] = []
        """Violations of the API's documentation that `add_operation` accepts. A device may fail because of them."""
        self.client_order: list[int] = []
        """For each operation in execution order, its position in the order of `add_operation`."""
        self._borrowed: set[int] = set()  # constants that are arrays of the caller until `finish`
        vlog.select(properties().vlog)

    @api("PP")
    def add_operand(self, kind: OperandType) -> int:
        """Add an operand and return its index. Raises BAD_DATA for a type that is not valid."""
        self._must_be_open()
        validation.check_type(kind, len(self.operands))
        self.operands.append(ModelOperand(kind))
        return len(self.operands) - 1

    @api("PP")
    def set_operand_symm_per_channel_quant_params(self, index: int, channel_dim: int, scales: Sequence[float]) -> None:
        self._must_be_open()
        operand = self._operand(index)
        kind = operand.kind
        quant = ChannelQuant(channel_dim, tuple(map(single, scales)))
        kind = OperandType(kind.type, kind.dims, kind.scale, kind.zero_point, quant)
        validation.check_channel_quant(kind, index)
        operand.kind = kind

    @api("PP")
    def set_operand_value(self, index: int, value: Values | None) -> None:
        """Set a constant to an array or numbers; None omits an optional operand. An array of more than 128 bytes is
        read by `finish`: do not change it before.
        """
        self._must_be_open()
        operand = self._operand(index)
        if value is None:
            operand.lifetime, operand.value = Lifetime.NO_VALUE, None
            self._borrowed.discard(index)
            return
        array = elements("value", value, operand.kind.type.dtype)
        constant = validation.as_elements(array, operand.kind, index)
        short = constant.nbytes <= COPY_LIMIT
        operand.value = constant.copy() if short else constant
        operand.lifetime = Lifetime.COPY if short else Lifetime.REFERENCE
        (self._borrowed.discard if short else self._borrowed.add)(index)

    @api("PP")
    def set_operand_value_from_memory(self, index: int, memory: Memory, offset: int, length: int) -> None:
        """Set a constant to a region of a memory, without copying it."""
        self._must_be_open()
        operand = self._operand(index)
        if isinstance(memory, DeviceMemory):
            raise bad_data("a memory made from a descriptor holds no constants", operand=index)
        if length == 0:
            raise bad_data("a constant has at least one byte", operand=index)
        operand.value = validation.as_elements(memory.region(offset, length), operand.kind, index)
        operand.lifetime = Lifetime.REFERENCE
        self._borrowed.discard(index)

    @api("PP")
    def set_operand_value_from_model(self, index: int, model: Model) -> None:
        """Set an operand of IF or WHILE to another finished model."""
        self._must_be_open()
        operand = self._operand(index)
        if not model.finished or not model.valid:
            raise bad_state("a model that is referred to must be finished and valid")
        if operand.kind.type is not Operand.MODEL:
            raise bad_data(f"{operand.kind.type.name} cannot hold a model", operand=index)
        operand.model, operand.lifetime = model, Lifetime.SUBGRAPH

    @api("PP")
    def get_extension_operand_type(self, name: str, code: int) -> int:
        """The code of an extension's type, for `OperandType`."""
        return extension.code_of(name, code)

    @api("PP")
    def get_extension_operation_type(self, name: str, code: int) -> int:
        """The code of an extension's operation, for `add_operation`."""
        return extension.code_of(name, code)

    @api("PP")
    def set_operand_extension_data(self, index: int, data: bytes | None) -> None:
        """Set data of an operand with an extension's type; None removes them."""
        self._must_be_open()
        operand = self._operand(index)
        if not operand.kind.type.is_extension:
            raise bad_data(f"{operand.kind.type.name} is not a type of an extension", operand=index)
        if data is not None and not data:
            raise bad_data("the data is empty; None says that there is none", operand=index)
        operand.extension_data = data

    @api("PP")
    def add_operation(self, code: Operation, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Add an operation. Raises BAD_DATA if the operands do not match it. Scales and zero points that violate the
        API's documentation are listed in `warnings`: Android leaves them to the device that executes.
        """
        self._must_be_open()
        operands = [self._operand(index) for index in (*inputs, *outputs)]
        kinds = [operand.kind for operand in operands]
        row, ends = row_of(code), (kinds[: len(inputs)], kinds[len(inputs) :])
        use = row.validate(*ends)
        validation.check_control_flow(code, operands[: len(inputs)], operands[len(inputs) :])
        for objection in row.quantization_objections(use, *ends):
            self.warnings.append(f"operation {len(self.operations)} ({code.name}): {objection}")
            vlog.warning("ModelBuilder", "{}", self.warnings[-1])
        self.operations.append(ModelOperation(code, tuple(inputs), tuple(outputs), use.level, use))

    @api("PP")
    def identify_inputs_and_outputs(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Set the inputs and outputs of the model, once. Raises BAD_DATA for an operand that is listed twice or has a value."""
        self._must_be_open()
        for indexes, lifetime in ((inputs, Lifetime.INPUT), (outputs, Lifetime.OUTPUT)):
            for index in indexes:
                operand = self._operand(index)
                if operand.lifetime is not Lifetime.TEMPORARY:
                    raise bad_data(f"is already {operand.lifetime.name}, cannot be {lifetime.name}", operand=index)
                operand.lifetime = lifetime
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    @api("PP")
    def relax_computation_float32_to_float16(self, allow: bool) -> None:
        """Set whether devices may compute float32 with the range and precision of float16."""
        self._must_be_open()
        self.relaxed = allow

    @api("PP")
    def finish(self) -> None:
        """Check the whole model and sort its operations into execution order. A refused model cannot be used again."""
        self._must_be_open()
        self.finished, self.valid = True, False
        for operand in (self.operands[index] for index in self._borrowed):
            operand.value = None if operand.value is None else operand.value.copy()
        self.client_order = validation.run_order(self)
        self.operations = [self.operations[at] for at in self.client_order]
        validation.check_model(self)
        self.operations = [self._trimmed(operation) for operation in self.operations]
        limit = properties().feature_level
        if self.level > limit:
            raise bad_data(f"the model needs feature level {self.level}, the runtime has {limit}")
        self.valid = True
        vlog.message(vlog.MODEL, "ModelBuilder", "ModelBuilder::finish: {} operations", len(self.operations))

    def _trimmed(self, operation: ModelOperation) -> ModelOperation:
        """The operation without trailing operands that equal their defaults, so that older devices can support it."""
        use = operation.use
        count = len(operation.inputs)
        for names in use.trailing():
            tail = operation.inputs[count - len(names) : count]
            if not all(self._equals(index, use.form.absent[name]) for name, index in zip(names, tail)):
                break
            count -= len(names)
        if count == len(operation.inputs):
            return operation
        inputs = operation.inputs[:count]
        use = row_of(operation.code).validate(self.kinds(inputs), self.kinds(operation.outputs))
        return replace(operation, inputs=inputs, level=use.level, use=use)

    def _equals(self, index: int, default: object) -> bool:
        operand = self.operands[index]
        if operand.lifetime is not Lifetime.COPY or operand.value is None or not operand.kind.type.is_scalar:
            return False
        return bool(operand.value.item() == default)

    @property
    def level(self) -> FeatureLevel:
        own = (validation.operation_level(one, self.operands) for one in self.operations)
        inner = (operand.model.level for operand in self.operands if operand.model is not None)
        return max([FeatureLevel.LEVEL_1, *own, *inner])

    @property
    def input_types(self) -> list[OperandType]:
        return self.kinds(self.inputs)

    @property
    def output_types(self) -> list[OperandType]:
        return self.kinds(self.outputs)

    def argument_type(self, index: int, is_output: bool) -> OperandType:
        """The type of an input or output. Raises BAD_DATA if there is none with this index."""
        kinds = self.output_types if is_output else self.input_types
        if not 0 <= index < len(kinds):
            raise bad_data(f"there are {len(kinds)} arguments, not one {index}")
        return kinds[index]

    def inner_models(self, operation: ModelOperation) -> list[Model]:
        """The models that an operation refers to, in the order of its inputs."""
        referenced = (self.operands[index].model for index in operation.inputs)
        return [model for model in referenced if model is not None]

    def kinds(self, indices: Iterable[int]) -> list[OperandType]:
        return [self.operands[index].kind for index in indices]

    def _operand(self, index: int) -> ModelOperand:
        if not 0 <= index < len(self.operands):
            raise bad_data(f"there is no such operand; there are {len(self.operands)}", operand=index)
        return self.operands[index]

    def _must_be_open(self) -> None:
        if self.finished:
            raise bad_state("the model is finished" if self.valid else "the model was refused")
