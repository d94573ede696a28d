"""Models of a reduction: their bytes in the format of the source, the check that they are valid, and computed inner values."""

from __future__ import annotations

import math

from ortconv.errors import OrtconvError
from ortconv.exporting.export import onnx_bytes
from ortconv.files import read_bytes, temporary_folder
from ortconv.ir.graph import Value
from ortconv.ir.model import Model
from ortconv.models import load
from ortconv.reduction.edits import Values
from ortconv.runtime.deadline import within

LARGEST_VALUE = 1 << 16
"""Limit on the elements of a captured value; unknown dimensions count as 1."""

SECONDS = 60.0
"""Time limit of the run, in seconds."""


def captured(model: Model) -> Values:
    """The smaller values of the main graph, computed on generated inputs; none if the model does not run on numpy."""
    from ortconv.inputs.candidates import first_run
    from ortconv.runtime.session import Session

    names = [v.name for node in model.graph for v in node.present_outputs if _is_small(v)]
    try:
        with within(SECONDS), Session(model, keep=names) as session:
            _, found = first_run(session, names)
    except OrtconvError:
        return {}
    return {name: value for name, value in zip(names, found, strict=True) if value is not None}


def _is_small(value: Value) -> bool:
    return value.shape is not None and math.prod(d if isinstance(d, int) else 1 for d in value.shape) <= LARGEST_VALUE


def model_bytes(model: Model, *, ort: bool) -> bytes:
    """A model as the content of an .onnx file, or of an .ort file. UnsupportedError for one that is too large."""
    if not ort:
        return onnx_bytes(model)
    from ortconv.ortformat.writer import save

    with temporary_folder() as folder:
        save(model, folder / "model.ort")
        return read_bytes(folder / "model.ort")


def check_valid(model: Model, data: bytes, *, ort: bool) -> None:
    """ModelError for a model that breaks the rules of its operators. An .ort file is checked as the ONNX model of its graph."""
    load(onnx_bytes(model) if ort else data, only_to_run=True)
