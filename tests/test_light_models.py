"""The light models of the onnx package: well-known networks whose weights are filled in by the graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import ortconv

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("light_*.onnx")), ids=lambda path: path.stem)
def test_convert(path: Path, tmp_path: Path) -> None:
    """Equal weights make equal sums. Which of them a Softmax finds to be the largest depends on rounding."""
    result = ortconv.convert(path, tmp_path / "x.ort", use_nnapi=True)
    assert result.validation is not None
    assert result.validation.skipped is None
