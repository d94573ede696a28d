"""From a finished NNAPI model to a TfliteModel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortconv.errors import UnsupportedError
from ortconv.nnapi import Model
from ortconv.nnapi.model import ModelOperation
from ortconv.tflite import arithmetic, images, movement, products, reductions
from ortconv.tflite.model import TfliteModel
from ortconv.tflite.translation import Translation

FAMILIES = (arithmetic, images, movement, products, reductions)
"""The modules whose rows are in the table."""


def translate(
    model: Model, names: Mapping[int, str], inputs: Sequence[str], outputs: Sequence[str], name: str = "main"
) -> TfliteModel:
    """The model for LiteRT. `names` are those of operands, `inputs` and `outputs` those of the signature.

    UnsupportedError names the first operation that cannot be translated.
    """
    made = Translation(model, names)
    for operation, reason in made.refused:
        raise UnsupportedError(f"LiteRT cannot be given {operation.code.name}: {reason}")
    return made.finished(inputs, outputs, name)


def refused(model: Model) -> list[tuple[ModelOperation, str]]:
    """The operations of a model that cannot be translated, and why."""
    return Translation(model).refused
