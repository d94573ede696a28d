"""A partition as a .tflite file."""

from __future__ import annotations

from dataclasses import dataclass

from ortconv import __version__
from ortconv.backends.nnapi.lower import Lowered
from ortconv.errors import BackendError, UnsupportedError
from ortconv.ortformat.emit import Segment
from ortconv.runtime.backend import Region
from ortconv.tflite.model import TfliteModel
from ortconv.tflite.translate import translate
from ortconv.tflite.writer import serialize


@dataclass(frozen=True, slots=True)
class Exported:
    """A partition as a LiteRT model: its nodes, the model, and the bytes of its file."""

    region: Region
    lowered: Lowered
    model: TfliteModel
    segments: list[Segment]


def export(region: Region, lowered: Lowered) -> Exported:
    """Convert a lowered partition. Raises BackendError if LiteRT cannot represent it."""
    outputs: dict[int, str] = {}
    for value, place in zip(lowered.outputs, lowered.places, strict=True):
        if place is not None:
            outputs.setdefault(place.output, value.name)
    names = [outputs[i] for i in range(len(outputs))]
    try:
        model = translate(
            lowered.model, lowered.names, [v.name for v in lowered.inputs], names, region.graph.name or "main"
        )
        segments = serialize(model, f"ortconv {__version__}")
    except UnsupportedError as error:
        raise BackendError(error.message, backend="litert", hint=error.hint) from error
    return Exported(region, lowered, model, segments)
