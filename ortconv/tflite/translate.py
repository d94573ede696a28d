"""From a finished NNAPI model to a TfliteModel, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortconv.errors import UnsupportedError
from ortconv.nnapi import Model, Operation
from ortconv.nnapi.model import ModelOperation
from ortconv.nnapi.operand import Lifetime
from ortconv.tflite import arithmetic, images, movement, products, reductions
from ortconv.tflite.model import TfliteModel
from ortconv.tflite.table import TRANSLATIONS, TranslationRow, Use
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
    use = Use(operation.code, operation.use.main, _arguments(made.nnapi, operation), operation.outputs)
    _check_supported(row, use)
    made.begin(operation, row.either_sign)
    row.translate(made, use)
    made.end()


def _arguments(model: Model, operation: ModelOperation) -> dict[str, Any]:
    """The operands of an operation by the names of its slots, in the form that `Use` describes."""
    use = operation.use
    args = {slot.name: [] for slot in use.form.required if slot.variadic} | use.form.absent
    for slot, index in zip(use.slots, operation.inputs):
        operand = model.operands[index]
        if slot.variadic:
            args[slot.name].append(index)
        elif operand.lifetime is Lifetime.NO_VALUE:
            args[slot.name] = None
        elif not operand.kind.type.is_scalar:
            args[slot.name] = index
        elif operand.value is None:
            raise RefusedOperationError(f"its {slot.name} is not constant")
        else:
            args[slot.name] = operand.value.reshape(-1)[0].item()
    return args


def _check_supported(row: TranslationRow, use: Use) -> None:
    if use.main is not None and use.main not in row.types:
        raise RefusedOperationError(f"it has no {use.code.name} of {use.main.name}")
    if use.get("nchw"):
        raise RefusedOperationError("its images are NHWC")
