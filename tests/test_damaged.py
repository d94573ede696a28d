"""Damaged files that once ended in exceptions of Python, named after where these were raised: each is refused, or runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ortconv import Session, convert, load
from ortconv.backends.nnapi.backend import Nnapi
from ortconv.cli import main
from ortconv.errors import OrtconvError
from ortconv.runtime.session import NodeArg
from tests.batches import slow_except

FILES = sorted(Path(__file__).with_name("damaged").iterdir())
ORT_FILES = [p for p in FILES if p.suffix == ".ort"]
KINDS = {
    "float": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "uint8": np.uint8,
    "int8": np.int8,
    "bool": np.bool_,
}
TARGETS = [{}, {"use_nnapi": True}, {"use_coreml": True}]


def ones(arg: NodeArg) -> np.ndarray:
    shape = [n if isinstance(n, int) else 2 for n in arg.shape or ()]
    if len(shape) > 8 or np.prod([float(n) for n in shape]) > 1e6:
        pytest.skip("the input is too large to be fed")
    return np.ones(shape, KINDS.get(arg.type[7:-1], np.float32))


def outcome(work: Callable[[], object]) -> object:
    """What the work gives, or an error of ours."""
    try:
        return work()
    except OrtconvError as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "nnapi"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_session(path: Path, backend: str) -> None:
    def run() -> None:
        session = Session(path, [Nnapi() if backend == "nnapi" else backend])
        session.run(None, {arg.name: ones(arg) for arg in session.get_inputs()})

    found = outcome(run)
    assert found is None or (isinstance(found, OrtconvError) and found.exit_code in (2, 3) and str(found))


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".onnx"], ids=lambda p: p.name)
def test_convert(path: Path, tmp_path: Path) -> None:
    """Refused with the node; or, where only a run shows what is wrong, not called right."""

    def converted(target: dict[str, bool]) -> object:
        return outcome(lambda: convert(path, tmp_path / "x.ort", validate_budget="4s", **target))

    loaded = outcome(lambda: load(path))
    for found in [loaded] if isinstance(loaded, OrtconvError) else map(converted, TARGETS):
        if isinstance(found, OrtconvError):
            assert found.exit_code == 3
            assert found.node or "'" in found.message or "could not be checked" in found.message
        else:
            assert found.validation.skipped  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", slow_except(ORT_FILES[::2], ORT_FILES), ids=lambda p: p.name)
def test_verify(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(path)]) in (0, 3)
    assert "bug" not in capsys.readouterr().err
