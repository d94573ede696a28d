"""Model files of both formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ortconv.ir.model import Model


def load(path: str | Path, fix_dims: Mapping[str, int] | None = None, *, only_to_run: bool = False) -> Model:
    """The model of an .onnx or .ort file, told apart by the file's name.

    `fix_dims` gives numbers for symbolic dimensions of an .onnx model. Operator sets before 7, which ONNX Runtime has few kernels
    for and no rewrite expects, are refused unless the model is `only_to_run`.
    """
    path = Path(path)
    if path.suffix.lower() == ".ort":
        from ortconv.ortformat.reader import load as load_ort

        return load_ort(path)
    from ortconv.onnxio.check import OLDEST_OPSET
    from ortconv.onnxio.load import load as load_onnx

    return load_onnx(path, fix_dims, 1 if only_to_run else OLDEST_OPSET)


def find_models(path: Path) -> list[Path]:
    """The .onnx files below a directory, sorted, but no hidden ones and none that a conversion wrote; or the one file itself."""
    if not path.is_dir():
        return [path]
    found = (p for p in path.rglob("*") if p.suffix.lower() == ".onnx" and not p.name.startswith("."))
    return sorted(p for p in found if not p.name.lower().endswith(".optimized.onnx"))
