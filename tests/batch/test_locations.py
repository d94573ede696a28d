"""Models and results on file systems of fsspec."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest

import ortconv
from ortconv.batch import journal
from ortconv.batch.locations import common_folder, location, write_far
from ortconv.cli import main
from ortconv.errors import UsageError
from ortconv.models import is_source
from tests.batch_models import folder_of, good

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'ortconv[dask]'")


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Any]:
    """The file system memory:// with models: two small ones, a damaged one, and one with weights in another file."""
    folder_of(tmp_path / "near", 3, ["corrupt"])
    onnx.save(
        onnx.load_from_string(good(7)),
        tmp_path / "near" / "deep.onnx",
        save_as_external_data=True,
        location="deep.data",
        size_threshold=0,
    )
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "near") + "/", "/in/", recursive=True)
    yield system
    system.rm("/", recursive=True)


def converted(
    executor: Any, resume: bool | None = None, **settings: Any
) -> tuple[ortconv.batch.Conversions, list[Any]]:
    batch = ortconv.convert_all(
        "memory://in", "memory://out", executor=executor, resume=resume, validate=False, **settings
    )
    return batch, sorted(batch, key=lambda one: one.source)


def test_sources_and_results_far_away(far: Any, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        batch, (deep, bad, *others) = converted(threads, save_optimized_onnx_model=True)
    near = ortconv.convert_all(tmp_path / "near", tmp_path / "out", validate=False, save_optimized_onnx_model=True)
    assert sum(isinstance(one, ortconv.Result) for one in near) == 3
    assert deep.source == "memory://in/deep.onnx"
    assert deep.files == ["memory://out/deep.ort", "memory://out/deep.optimized.onnx"]
    assert isinstance(bad, ortconv.Failure)
    assert str(bad.error).startswith("memory://in/m0000.onnx: not a valid")
    assert all(isinstance(one, ortconv.Result) for one in others)
    names = {Path(name).name for name in far.find("/out")}
    assert names == {path.name for path in (tmp_path / "out").iterdir()}
    for name in names:
        expected = (tmp_path / "out" / name).read_bytes().replace(bytes(tmp_path / "out"), b"memory://out")
        assert far.cat_file(f"/out/{name}") == expected
    assert batch.config == "memory://out/required_operators.config"


def test_a_journal_far_away(far: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        assert [getattr(one, "unchanged", None) for one in converted(threads, True)[1]] == [False, None, False, False]
        assert [getattr(one, "unchanged", None) for one in converted(threads, True)[1]] == [True, None, True, True]
        assert len(far.cat_file(f"/out/{journal.NAME}").splitlines()) == 3
        far.pipe_file("/in/deep.data", bytes(len(far.cat_file("/in/deep.data"))))
        far.rm_file("/out/m0001.ort")
        again = [one.source for one in converted(threads, True)[1] if not getattr(one, "unchanged", False)]
        assert again == [f"memory://in/{name}.onnx" for name in ("deep", "m0000", "m0001")]
        assert all(one.unchanged for one in converted(threads, True)[1] if isinstance(one, ortconv.Result))


def test_dimensions_of_models_far_away(far: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(UsageError, match="no input of any model has a dimension"):
            converted(threads, fix_dims={"btach": 1})
        assert len(converted(threads, fix_dims={"batch": 1})[1]) == 4


def test_a_single_model_far_away(far: Any, tmp_path: Path) -> None:
    (result,) = ortconv.convert_all(["memory://in/m0001.onnx"], tmp_path / "one", validate=False)
    assert isinstance(result, ortconv.Result)
    assert result.files == [str(tmp_path / "one" / "m0001.ort")]
    (result,) = ortconv.convert_all([tmp_path / "near" / "m0001.onnx"], "memory://one", validate=False)
    assert far.cat_file("/one/m0001.ort") == (tmp_path / "one" / "m0001.ort").read_bytes()


def test_other_processes_do_not_reach_this_memory(far: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="in the memory of this process"):
        ortconv.convert_all("memory://in", "memory://out")
    assert main(["convert", "memory://in", "--output-dir", "memory://out"]) == 2
    assert "in the memory of this process" in capsys.readouterr().err


def test_a_file_url_is_a_path(far: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near, out = tmp_path / "near", tmp_path / "out"
    assert main(["convert", f"file://{near}", "--output-dir", f"file://{out}", "--no-validate", "-q"]) == 7
    assert (out / "m0001.ort").exists()
    assert (out / journal.NAME).exists()


@pytest.mark.parametrize("url", ["nothing://in", "memory://empty"])
def test_a_folder_that_is_not_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", url, "--output-dir", "out"]) == 2
    assert url in capsys.readouterr().err


def test_no_file_far_away_is_half_written(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_far("memory://out/x.config", "text")
    assert far.cat_file("/out/x.config") == b"text"
    monkeypatch.setattr(type(far), "mv", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_far("memory://out/y.config", "text")
    assert far.find("/out") == ["/out/x.config"]


def test_the_folder_of_several() -> None:
    assert [is_source(path) for path in ("a/x.onnx", ".a/x.onnx", "a/.x.onnx", "a/x.optimized.onnx")] == [
        True,
        *[False] * 3,
    ]
    assert common_folder(["s3://b/a/x.onnx", "s3://b/a/c/y.onnx"]) == "s3://b/a"
    assert common_folder([Path("a/x"), Path("a/b/y")]) == Path("a")
    with pytest.raises(UsageError, match="no folder in common"):
        common_folder(["s3://b/x", "gs://b/x"])
    assert location("s3://b/a/") == "s3://b/a"
    assert location("file:///a/b") == Path("/a/b")
