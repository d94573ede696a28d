"""Parts of models: the operations about which an older device can be asked, and the models of partitioned steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from ortconv.nnapi.device import Device
from ortconv.nnapi.driver_guard import driver
from ortconv.nnapi.errors import NnapiError
from ortconv.nnapi.model import Model, ModelOperation
from ortconv.nnapi.operand import CONSTANT, Lifetime
from ortconv.nnapi.tracing import vlog
from ortconv.nnapi.validation import operation_level


@dataclass(slots=True)
class ModelPart:
    """Operations of a model as a model of their own. The part's inputs and outputs are listed as operands of the whole."""

    whole: Model
    operations: list[ModelOperation]

    def boundary(self) -> tuple[list[int], list[int]]:
        """(inputs, outputs): the operands that the part reads from outside, and those that others read from it. Inputs
        are in this order: inputs of the whole, temporaries, outputs of the whole. Outputs: outputs of the whole, then
        temporaries.
        """
        made = dict.fromkeys(chain.from_iterable(one.outputs for one in self.operations))
        read = dict.fromkeys(chain.from_iterable(one.inputs for one in self.operations))
        mine = set(self.operations)
        others = {index for one in self.whole.operations if one not in mine for index in one.inputs}
        fed = [i for life in (Lifetime.INPUT, Lifetime.TEMPORARY, Lifetime.OUTPUT) for i in self._lives(read, life)]
        inputs = [index for index in fed if index not in made]
        passed_on = [index for index in self._lives(made, Lifetime.TEMPORARY) if index in others]
        return inputs, self._lives(made, Lifetime.OUTPUT) + passed_on

    def _lives(self, indexes: Iterable[int], lifetime: Lifetime) -> list[int]:
        return [index for index in indexes if self.whole.operands[index].lifetime is lifetime]

    def model(self, inputs: list[int], outputs: list[int]) -> Model:
        """The part as a finished model."""
        part = Model()
        places: dict[int, int] = {}

        def place(index: int) -> int:
            if index not in places:
                places[index] = len(part.operands)
                operand = self.whole.operands[index]
                lifetime = operand.lifetime if operand.lifetime in CONSTANT else Lifetime.TEMPORARY
                part.operands.append(replace(operand, lifetime=lifetime))
            return places[index]

        for one in self.operations:
            operands = tuple(map(place, one.inputs)), tuple(map(place, one.outputs))
            part.operations.append(ModelOperation(one.code, *operands, one.level, one.use))
        part.identify_inputs_and_outputs([place(index) for index in inputs], [place(index) for index in outputs])
        part.relax_computation_float32_to_float16(self.whole.relaxed)
        part.finish()
        return part


def needs_runtime(model: Model, operation: ModelOperation) -> bool:
    """True if only the CPU can run the operation: control flow with an operand of unknown size, in this model or inside."""
    if not operation.code.is_control_flow:
        return False
    kinds = model.kinds((*operation.inputs, *operation.outputs))
    for inner in model.inner_models(operation):
        kinds += [*inner.input_types, *inner.output_types]
    return any(kind.type.is_tensor and not kind.is_known for kind in kinds)


def supported_by(device: Device, model: Model) -> list[bool]:
    """For each operation in execution order, True if a device supports it. It is asked only about operations of its level."""
    nothing = [False] * len(model.operations)
    allowed = [_fits(device, model, one) for one in model.operations]
    try:
        if all(allowed):
            answer = _answer(device, model)
            return answer if len(answer) == len(nothing) else nothing
        answers = iter(_answer_on_part(device, model, [one for one, fits in zip(model.operations, allowed) if fits]))
        return [fits and next(answers) for fits in allowed]
    except NnapiError as error:
        vlog.error("Manager", "Device {} cannot say what it supports: {}", device.name, error)
        return nothing


def _answer_on_part(device: Device, model: Model, kept: list[ModelOperation]) -> list[bool]:
    """For some operations of a model, True if the device supports it; False for all if they do not make a model."""
    part = ModelPart(model, kept)
    inputs, outputs = part.boundary()
    if not outputs or any(map(model.inner_models, kept)):
        return [False] * len(kept)
    sliced = part.model(inputs, outputs)
    result, answer = [False] * len(kept), _answer(device, sliced)
    if len(answer) == len(kept):
        for place, supported in zip(sliced.client_order, answer):
            result[place] = supported
    return result


def _answer(device: Device, model: Model) -> list[bool]:
    with driver(device, "supported_operations"):
        return [bool(one) for one in device.supported_operations(model)]


def _fits(device: Device, model: Model, operation: ModelOperation) -> bool:
    if device.is_reference:
        return True
    if needs_runtime(model, operation):
        return False
    levels = [operation_level(operation, model.operands), *(one.level for one in model.inner_models(operation))]
    return max(levels) <= device.feature_level
