"""What `import ortconv` offers: names, typed settings, models in memory, outputs of any name, short reprs."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ortconv
from ortconv.errors import FormatError, MismatchError, UsageError
from ortconv.pipeline import Options
from ortconv.pipeline.settings import Settings
from tests import text_models

X = np.float32([[1, -2, 3]])


def proto(text: str = "g (float[batch,3] x) => (float[batch,3] y) { y = Relu(x) }") -> onnx.ModelProto:
    return text_models.parse(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(proto().SerializeToString())
    return path


@pytest.mark.slow
def test_public_names_need_no_import_of_their_own() -> None:
    code = (
        "import sys, ortconv; early = [m for m in ('numpy', 'onnx', 'onnxruntime') if m in sys.modules]; "
        "print(early, [n for n in ortconv.__all__ if not hasattr(ortconv, n)], set(dir(ortconv)) - set(ortconv.__all__))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.startswith("[] [] ")
    assert all(name.strip("'{}\n").startswith("__") for name in found.removeprefix("[] [] ").split(", "))


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'convrt'"):
        ortconv.convrt  # type: ignore[operator]  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ortconv.compare.nothing  # noqa: B018


def test_settings_are_the_fields_of_options() -> None:
    wider = {
        "tuple[str, ...]": "Sequence[str]",
        "tuple[str, ...] | None": "Sequence[str] | None",
        "Path | None": "str | Path | None",
    }
    stated = {name: getattr(kind, "__forward_arg__", kind) for name, kind in Settings.__annotations__.items()}
    assert stated == {f.name: wider.get(str(f.type), f.type) for f in fields(Options)}
    (loose,) = (p for p in inspect.signature(ortconv.convert).parameters.values() if p.kind is p.VAR_KEYWORD)
    assert "Unpack[Settings]" in str(loose.annotation)
    assert typing.is_typeddict(Settings)


MISTYPED = """
import ortconv
ortconv.convert("a", "b", optimisation_level="all")
ortconv.convert("a", "b", use_nnapi="yes")
ortconv.convert(3, "b")
ortconv.convert("a", "b", use_nnapi=True, disable_passes=["x"], fix_dims={"n": 1}, custom_op_library="x.so")
ortconv.convert(b"", "b")
ortconv.Session("a", backends="numpy").close()
ortconv.verify("a").findings
ortconv.nnapi.Model()
ortconv.compare.compare
"""


@pytest.mark.slow
def test_type_checkers_find_slips(tmp_path: Path) -> None:
    (tmp_path / "slips.py").write_text(MISTYPED)
    root = Path(ortconv.__file__).parent.parent
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml"), "slips.py"]
    found = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={"MYPYPATH": str(root), "PATH": ""}
    )
    lines = [line for line in found.stdout.splitlines() if ": error:" in line]
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5"], found.stdout + found.stderr


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a number where a flag is": ({"use_nnapi": 1}, "use_nnapi is 1: it must be True or False"),
    "a text where a flag is": ({"use_nnapi": "yes"}, "use_nnapi is 'yes'"),
    "a text where a list is": ({"disable_passes": "X"}, "disable_passes is 'X': it must be a list of texts"),
    "a size below 1": ({"fix_dims": {"batch": -1}}, "fix_dims is {'batch': -1}"),
    "a size that is no number": ({"fix_dims": {"batch": "1"}}, "fix_dims is {'batch': '1'}"),
    "a negative limit": ({"fold_limit": -1}, "fold_limit is -1: it must be at least 0"),
    "a flag where a number is": ({"fold_limit": True}, "fold_limit is True: it must be a whole number"),
    "no number": ({"error_budget": float("nan")}, "error_budget is nan: it must be at least 0"),
    "no nodes": ({"min_nodes": 0}, "min_nodes is 0: it must be at least 1"),
    "negative partitions": ({"max_partitions": -2}, "max_partitions is -2"),
    "a path where a device is": ({"device": "phone.toml"}, "device is 'phone.toml': it must be a device"),
    "a list where names are": ({"validate_with": [X]}, "validate_with is"),
    "an unknown level": ({"optimization_level": "most"}, "'most' is not one of"),
    "an unknown format": ({"coreml_format": "x"}, "'x' is not one of"),
    "a level that is no text": ({"optimization_level": None}, "optimization_level is None"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_are_refused(case: str, source: Path, tmp_path: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(UsageError) as found:
        ortconv.convert(source, tmp_path / "m.ort", **settings)
    assert message in str(found.value)
    assert not (tmp_path / "m.ort").exists()


def test_a_misspelled_setting(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no setting 'optimisation_level'; did you mean optimization_level"):
        ortconv.convert(source, tmp_path / "m.ort", optimisation_level="extended")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="options and settings exclude each other: use_nnapi"):
        ortconv.convert(source, tmp_path / "m.ort", options=Options(), use_nnapi=True)


def test_lists_and_texts_are_taken(source: Path, tmp_path: Path) -> None:
    options = Options.of(
        {"disable_passes": ["ConvBNFusion"], "fix_dims": {"batch": np.int64(2)}, "custom_op_library": "x.so"}
    )
    assert options.disable_passes == ("ConvBNFusion",)
    assert options.custom_op_library == Path("x.so")
    result = ortconv.convert(source, tmp_path / "m.ort", fix_dims={"batch": np.int64(2)})  # type: ignore[dict-item]
    assert ortconv.Session(result.files[0]).get_inputs()[0].shape == [2, 3]


MEMORY: dict[str, Callable[[Path], Any]] = {
    "a ModelProto": lambda path: onnx.load(path),
    "bytes": Path.read_bytes,
    "a bytearray": lambda path: bytearray(path.read_bytes()),
    "a path as text": str,
}


@pytest.mark.parametrize("kind", MEMORY)
def test_models_in_memory(kind: str, source: Path, tmp_path: Path) -> None:
    given = MEMORY[kind](source)
    result = ortconv.convert(given, tmp_path / "out.ort")
    assert (tmp_path / "out.ort").read_bytes() == _converted(source, tmp_path / "two.ort")
    assert result.source == (str(source) if kind == "a path as text" else f"<{type(given).__name__}>")
    (y,) = ortconv.Session(given).run(None, {"x": X})
    np.testing.assert_array_equal(y, [[1, 0, 3]])
    np.testing.assert_array_equal(ortconv.Session((tmp_path / "out.ort").read_bytes()).run(None, {"x": X})[0], y)


def _converted(source: Path, target: Path) -> bytes:
    ortconv.convert(source, target)
    return target.read_bytes()


def test_what_is_no_model_in_memory(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a model, but of type int"):
        ortconv.load(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a Model, but of type str"):
        ortconv.optimize("m.onnx")  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        ortconv.load(b"no model")
    with pytest.raises(UsageError, match=r"reads \.onnx models"):
        ortconv.convert(_converted(source, tmp_path / "m.ort"), tmp_path / "n.ort")


CALLS: dict[str, Callable[[bytes, Path], object]] = {
    "bundle": lambda model, folder: ortconv.bundle(model, folder / "b.zip", strip_weights=True),
    "convert": lambda model, folder: ortconv.convert(model, folder / "m.ort"),
    "diff": lambda model, folder: ortconv.diff(model, model),
    "export": lambda model, folder: ortconv.export(model, folder / "m.onnx"),
    "inspect": lambda model, folder: ortconv.inspect(model),
    "reduce": lambda model, folder: ortconv.reduce(model, folder / "m.onnx", lambda path: True),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_does_not_name_the_temporary_file_of_a_model_in_memory(name: str, tmp_path: Path) -> None:
    with pytest.raises(ortconv.ModelError, match=r"^<bytes>: ") as found:
        CALLS[name](b"no model", tmp_path)
    assert "tmp/ortconv-" not in str(found.value)


@pytest.mark.parametrize("output", ["out", "out/", "made/", "foo", "foo.bin", "a.b.ort"])
def test_outputs_of_any_name(output: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    result = ortconv.convert(source, output)
    expected = f"{output.rstrip('/')}/m.ort" if "/" in output or output == "out" else output
    assert Path(result.files[0]).as_posix() == expected
    for backend in ("numpy", "onnxruntime"):
        np.testing.assert_array_equal(ortconv.Session(expected, backend).run(None, {"x": X})[0], [[1, 0, 3]])


def test_an_output_named_as_a_source(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"o\.onnx: convert writes \.ort files"):
        ortconv.convert(source, tmp_path / "o.onnx")


def test_reports_name_the_output_and_not_its_draft(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **_: object) -> None:
        draft = next(g for g in given if isinstance(g, Path))
        raise MismatchError(f"{draft} is off", file=draft)

    monkeypatch.setattr("ortconv.validation.validate.validate", refuse)
    with pytest.raises(MismatchError) as found:
        ortconv.convert(source, tmp_path / "out.ort")
    assert str(found.value).count(str(tmp_path / "out.ort")) == 2


def test_reprs_are_short(source: Path, tmp_path: Path) -> None:
    result = ortconv.convert(source, tmp_path / "m.ort", details=True)
    session = ortconv.Session(source)
    assert repr(result).startswith(f"<Result {source} -> {tmp_path / 'm.ort'}")
    assert repr(session) == f"<Session of {source} on numpy>"
    subjects = [ortconv.compare.subject(str(p), ("numpy",)) for p in (source, tmp_path / "m.ort")]
    (_, (compared,)) = ortconv.compare.compare(subjects)
    found = [ortconv.inspect(source), ortconv.diff(source, tmp_path / "m.ort")]
    found.append(ortconv.check(tmp_path / "m.ort", tmp_path / "b.json", update=True))
    for one in (result, session, compared, ortconv.verify(tmp_path / "m.ort"), *found):
        assert len(repr(one).replace(str(tmp_path), "")) < 300


def test_stages_are_told_as_they_begin(source: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    result = ortconv.convert(source, tmp_path / "m.ort", started=stages.append)
    assert set(stages) == set(result.seconds)
    assert stages[0] == "load"
    assert "started" not in result.to_dict()


@pytest.mark.slow
def test_many_models(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.onnx", "sub/a.onnx"):
        (folder / name).write_bytes(proto().SerializeToString())
    (folder / "b.onnx").write_bytes(b"no model")
    good, bad, inner = sorted(ortconv.convert_all(folder, out, fix_dims={"batch": 2}), key=lambda done: done.source)
    assert isinstance(bad, ortconv.Failure)
    assert isinstance(bad.error, FormatError)
    assert bad.to_dict()["source"] == str(folder / "b.onnx")
    assert [Path(f) for r in (good, inner) for f in r.files] == [out / "a.ort", out / "sub" / "a.ort"]
    assert sorted(p.name for p in out.rglob("*.config")) == ["required_operators.config"]
    assert ortconv.load(out / "a.ort").graph.inputs[0].shape == (2, 3)


def test_a_list_of_models_is_written_beside_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.onnx" for name in "ab"]
    for path in paths:
        path.write_bytes(proto().SerializeToString())
    seen: list[str] = []
    results = ortconv.convert_all(paths, write_config=False, observer=lambda stage, model: seen.append(model.path))
    assert len(list(results)) == 2
    assert list(dict.fromkeys(filter(None, seen))) == list(map(str, paths))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "a.ort", "b.onnx", "b.ort"]


@pytest.mark.parametrize(
    ("sources", "settings", "message"),
    [
        ([], {}, "no .onnx file to convert"),
        (["m.onnx", "m.onnx"], {}, "would both become"),
        (["m.onnx"], {"optimization_level": "some"}, "optimization level 'some'"),
        (["m.onnx"], {"disable_passes": ["Nothing"]}, "'Nothing'"),
        (["m.onnx"], {"jobs": 0}, "jobs is 0"),
        (["m.onnx"], {"timeout": float("nan")}, "timeout is nan"),
        (["m.onnx"], {"memory": "4GiB"}, "memory is '4GiB'"),
        (["m.onnx"], {"memory": 4e9}, r"memory is 4000000000\.0"),
        (["m.onnx"], {"memory": -1}, "memory is -1"),
    ],
)
def test_what_is_wrong_with_all_models_is_said_before_the_first(
    sources: list[str], settings: dict[str, Any], message: str, source: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        ortconv.convert_all([source.parent / name for name in sources], **settings)


def test_a_dimension_that_no_model_has(source: Path) -> None:
    with pytest.raises(UsageError, match="no input of any model has a dimension of that name") as caught:
        ortconv.convert_all([source], fix_dims={"btach": 1})
    assert caught.value.hint == "did you mean batch?"
    assert not source.with_suffix(".ort").exists()
