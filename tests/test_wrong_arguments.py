"""Wrong Python values for every argument of the public API: each is an error of ortconv that names the argument and its value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ortconv
from ortconv.compare import compare, subject
from ortconv.errors import InternalError, OrtconvError, UnsupportedError, UsageError
from ortconv.partition import Target, assign, partition
from ortconv.public import public
from tests.batches import slow_except

NAN = float("nan")
WRONG = (None, 3, -1, NAN, "", b"", [], [3], {"": 3}, np.zeros(2, np.complex64), Path("."), object())

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'

WORKING = ("build", "bundle", "check", "convert_all", "export_tflite", "init", "reduce", "tune")
"""Functions that start processes or write several files. Only arguments without a default are varied, with the first values."""


def calls(folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """A call of each public function, by name, that would work: the function and its arguments."""
    source, output = folder / "m.onnx", folder / "m.ort"
    onnx.save(onnx.parser.parse_model(MODEL), source)
    ortconv.convert(source, output, validate=False)
    session, model, one = ortconv.Session(source), ortconv.load(source), subject(str(source), ["numpy"])
    feeds, target = {"x": np.zeros(2, np.float32)}, Target("nnapi")
    return {
        "Session": (ortconv.Session, {"model": source}),
        "Session.run": (session.run, {"output_names": None, "input_feed": feeds}),
        "Session.profile": (session.profile, {"input_feed": feeds}),
        "analyze": (ortconv.analyze, {"source": source, "target": target}),
        "assign": (assign, {"graph": model.graph, "partitioning": partition(model.graph, target)}),
        "build": (ortconv.build, {"project": folder}),
        "bundle": (ortconv.bundle, {"source": source, "output": folder / "bundle"}),
        "check": (ortconv.check, {"model": source, "baseline": output}),
        "compare": (compare, {"subjects": [one, one]}),
        "convert": (ortconv.convert, {"source": source, "output": output, "validate": False}),
        "convert_all": (ortconv.convert_all, {"sources": [source]}),
        "diff": (ortconv.diff, {"a": source, "b": output}),
        "export": (ortconv.export, {"source": output, "output": folder / "n.onnx"}),
        "export_tflite": (ortconv.export_tflite, {"source": source, "output": folder / "m.tflite"}),
        "init": (ortconv.init, {"folder": folder / "none"}),
        "inspect": (ortconv.inspect, {"source": source}),
        "load": (ortconv.load, {"source": source}),
        "optimize": (ortconv.optimize, {"model": model}),
        "partition": (partition, {"graph": model.graph}),
        "reduce": (ortconv.reduce, {"source": source, "output": folder / "r.onnx", "check": "false"}),
        "subject": (subject, {"text": str(source), "backends": ["numpy"]}),
        "tune": (ortconv.tune, {"source": source}),
        "verify": (ortconv.verify, {"path": output}),
        "verify_manifest": (ortconv.verify_manifest, {"path": output}),
    }


PUBLIC = {
    name
    for name in ortconv.__all__
    if callable(made := getattr(ortconv, name)) and not (isinstance(made, type) and name != "Session")
}


def test_every_public_function_is_called(tmp_path: Path) -> None:
    assert calls(tmp_path).keys() >= PUBLIC


NAMES = [*sorted(PUBLIC), "Session.profile", "Session.run", "assign", "compare", "partition", "subject"]


@pytest.mark.parametrize("name", slow_except([name for name in NAMES if name not in ("diff", "tune")], NAMES))
def test_wrong_arguments(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, good = calls(tmp_path)[name]
    monkeypatch.chdir(tmp_path)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for parameter in parameters:
        if name in WORKING and parameter.default is not parameter.empty:
            continue
        for value in WRONG[:5] if name in WORKING else WRONG:
            try:
                function(**{**good, parameter.name: value})
            except OrtconvError as error:
                assert not isinstance(error, InternalError), (parameter.name, value)  # noqa: PT017


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda path: compare(3, 4), "subjects is 3", "Sequence[Subject]"),  # type: ignore[arg-type]
        (lambda path: compare([path]), "subjects is [", "Sequence[Subject]"),  # type: ignore[list-item]
        (lambda path: compare([]), "subjects is empty", "the first is the reference"),
        (lambda path: subject(None, ["numpy"]), "text is None", "str"),  # type: ignore[arg-type]
        (lambda path: ortconv.check(3, path), "model is 3", "str | Path"),  # type: ignore[arg-type]
        (lambda path: ortconv.verify(b"x"), "path is b'x'", "str | Path"),  # type: ignore[arg-type]
        (lambda path: ortconv.convert(path, 3), "output is 3", "str | Path"),  # type: ignore[arg-type]
        (lambda path: ortconv.load(path, 3), "fix_dims is 3", "Mapping[str, int] | None"),  # type: ignore[arg-type]
        (lambda path: ortconv.optimize(ortconv.load(path), target=[3]), "target is [3]", "Target('nnapi')"),  # type: ignore[list-item]
    ],
)  # fmt: skip
def test_messages(call: Callable[[Path], object], message: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    with pytest.raises(UsageError) as caught:
        call(path)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_bugs_pass() -> None:
    def broken(number: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        public(broken)(3)
    with pytest.raises(UsageError, match="number is '3'"):
        public(broken)("3")  # type: ignore[arg-type]


def test_memory_that_runs_out_is_an_error_of_ortconv() -> None:
    def full() -> None:
        raise MemoryError

    with pytest.raises(UnsupportedError, match="out of memory"):
        public(full)()
