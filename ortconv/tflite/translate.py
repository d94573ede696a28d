"""From a finished NNAPI model to a TfliteModel, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortconv.errors import UnsupportedError
from ortconv.nnapi import Model, Operation
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.operand import Lifetime
from ortconv.nnapi.operations import row_of
from ortconv.nnapi.operations.table import OperationCall, Slot
from ortconv.tflite import arithmetic, images, movement, products, reductions
from ortconv.tflite.model import TfliteModel
from ortconv.tflite.table import TRANSLATIONS
from ortconv.tflite.translation import RefusedOperationError, Translation

FAMILIES = (arithmetic, images, movement, products, reductions)
"""The modules whose rows are in the table."""

MISSING: dict[Operation, str] = {
    Operation.TOPK_V2: "of equal elements it returns the first ones, NNAPI the last",
    Operation.INSTANCE_NORMALIZATION: "it has no such operator; MEAN, SUB, MUL, RSQRT and ADD compute the same",
    Operation.RANDOM_MULTINOMIAL: "it draws other numbers",
    Operation.RANK: "its rank is a tensor, NNAPI's a number",
    Operation.HASHTABLE_LOOKUP: "lookups in tables are not translated",
    Operation.LSH_PROJECTION: "projections are not translated",
    Operation.IF: "branches are not translated",
    Operation.WHILE: "loops are not translated",
} | dict.fromkeys(
    (Operation.LSTM, Operation.RNN, Operation.SVDF, Operation.UNIDIRECTIONAL_SEQUENCE_LSTM,
     Operation.UNIDIRECTIONAL_SEQUENCE_RNN, Operation.BIDIRECTIONAL_SEQUENCE_LSTM, Operation.BIDIRECTIONAL_SEQUENCE_RNN,
     Operation.QUANTIZED_LSTM, Operation.QUANTIZED_16BIT_LSTM),
    "it keeps the state in variables of the model, NNAPI in inputs and outputs",
)  # fmt: skip
"""The reasons why some operations cannot be translated."""


def translate(
    model: Model, names: Mapping[int, str], inputs: Sequence[str], outputs: Sequence[str], name: str = "main"
) -> TfliteModel:
    """The model for LiteRT. `names` are those of operands, `inputs` and `outputs` those of the signature.

    UnsupportedError names the first operation that cannot be translated.
    """
    made = Translation(model, names)
    for operation, reason in _translated(made):
        raise UnsupportedError(f"LiteRT cannot be given {operation.code.name}: {reason}")
    return made.finished(inputs, outputs, name)


def refused(model: Model) -> list[tuple[ModelOperation, str]]:
    """The operations of a model that cannot be translated, and why."""
    return _translated(Translation(model))


def _translated(made: Translation) -> list[tuple[ModelOperation, str]]:
    """Translate every operation of a model. Return those that are refused, each with the reason."""
    found = []
    for operation in made.nnapi.operations:
        try:
            _translate(made, operation)
        except RefusedOperationError as error:
            found.append((operation, str(error)))
    return found


def _translate(made: Translation, operation: ModelOperation) -> None:
    row = TRANSLATIONS.get(operation.code)
    if row is None:
        raise RefusedOperationError(MISSING.get(operation.code, "it has no such operator"))
    inputs = [_argument(made.nnapi, slot, index) for slot, index in zip(operation.use.slots, operation.inputs)]
    call = OperationCall(row_of(operation.code), operation.use, inputs, operation.outputs)
    if call.main is not None and call.main not in row.types:
        raise RefusedOperationError(f"it has no {call.operation.name} of {call.main.name}")
    if call.get("nchw"):
        raise RefusedOperationError("its images are NHWC")
    made.begin(operation, row.either_sign)
    row.translate(made, call)
    made.end()


def _argument(model: Model, slot: Slot, index: int) -> Any:
    """The number of a tensor or of a variadic slot's operand; the value of a scalar; None for an operand without a value."""
    operand = model.operands[index]
    if slot.variadic or not (operand.kind.type.is_scalar or operand.lifetime is Lifetime.NO_VALUE):
        return index
    if operand.value is None and operand.lifetime is not Lifetime.NO_VALUE:
        raise RefusedOperationError(f"its {slot.name} is not constant")
    return None if operand.value is None else operand.value.reshape(-1)[0].item()
