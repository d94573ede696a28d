"""Models as the bytes of a file, in the format of the source."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from ortconv.exporting.export import onnx_bytes
from ortconv.files import read_bytes
from ortconv.ir.model import Model
from ortconv.models import load


def model_bytes(model: Model, *, ort: bool) -> bytes:
    """A model as the content of an .onnx file, or of an .ort file. UnsupportedError for one that is too large."""
    if not ort:
        return onnx_bytes(model)
    from ortconv.ortformat.writer import save

    with TemporaryDirectory(prefix="ortconv-") as folder:
        save(model, Path(folder) / "model.ort")
        return read_bytes(Path(folder) / "model.ort")


def check_valid(model: Model, data: bytes, *, ort: bool) -> None:
    """ModelError for a model that breaks the rules of its operators. An .ort file is checked as the ONNX model of its graph."""
    load(onnx_bytes(model) if ort else data, only_to_run=True)
