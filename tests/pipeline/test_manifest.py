"""Manifests and stamps: what they hold, that they are the same every time, and that verify finds every deviation."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
import pytest

import ortconv
from ortconv.cli import SETTINGS, cli, command_of, main
from ortconv.cli.values import options_of
from ortconv.errors import FormatError, UnsafeInputError
from ortconv.partition.profile import DeviceProfile
from ortconv.pipeline.arguments import arguments, read_arguments
from ortconv.pipeline.manifest import read_manifest, verify_manifest
from tests.conftest import ROOT, SAMPLES
from tests.json_schema import faults


@pytest.fixture
def model(samples: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(samples / "mnist.onnx", tmp_path / "mnist.onnx"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_describes_the_conversion(model: Path) -> None:
    out = model.parent / "out"
    result = ortconv.convert(model, out / "mnist.ort", use_nnapi=True, manifest=True, save_optimized_onnx_model=True)
    assert [Path(file).name for file in result.files] == [
        "mnist.ort",
        "mnist.required_operators.config",
        "mnist.optimized.onnx",
        "mnist.manifest.json",
    ]
    document = json.loads((out / "mnist.manifest.json").read_text())
    schema = json.loads((ROOT / "docs/schemas/manifest.json").read_text())
    assert list(faults(document, schema)) == []
    assert document["source"] == {
        "file": "../mnist.onnx",
        "bytes": model.stat().st_size,
        "sha256": sha256(model),
        "external": {},
    }
    assert {name: one["sha256"] for name, one in document["files"].items()} == {
        Path(file).name: sha256(Path(file)) for file in result.files[:-1]
    }
    assert document["options"] == ["--use-nnapi", "--save-optimized-onnx-model"]
    assert document["rewrites"] == {"ConvAddFusion": 2, "ConstantFolding": 1, "MatMulAddFusion": 1}
    assert document["partitions"] == {"NNAPI": 8}
    assert document["values"]["Plus30_Output_0"] == "Convolution28_out"
    assert set(document["values"].values()) <= {
        v.name for node in ortconv.load(out / "mnist.ort").graph for v in node.outputs
    }
    assert document["onnxruntime"] == "1.13"
    assert document["required"][0] == "ai.onnx;1;Conv"
    assert [engine["name"] for engine in document["validation"]["engines"]] == ["numpy", "onnxruntime"]


def test_the_same_work_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    files = ("mnist.ort", "mnist.manifest.json")
    for name in "ab":
        (tmp_path / name).mkdir()
        shutil.copy(model, tmp_path / name)
        ortconv.convert(
            tmp_path / name / "mnist.onnx", tmp_path / name / "mnist.ort", stamp=True, manifest=True, write_config=False
        )
    assert [(tmp_path / "a" / file).read_bytes() for file in files] == [
        (tmp_path / "b" / file).read_bytes() for file in files
    ]


def test_a_stamp_is_in_the_metadata(model: Path, tmp_path: Path) -> None:
    def metadata(path: Path) -> dict[str, str]:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found: dict[str, str] = session.get_modelmeta().custom_metadata_map
        return found

    stamped, plain = tmp_path / "stamped.ort", tmp_path / "plain.ort"
    ortconv.convert(model, stamped, stamp=True, disable_passes=["ConvAddFusion"])
    assert json.loads(metadata(stamped)["ortconv"]) == {
        "version": ortconv.__version__,
        "source": sha256(model),
        "options": ["--disable-pass=ConvAddFusion"],
    }
    ortconv.export(stamped, tmp_path / "exported.onnx")
    ortconv.convert(tmp_path / "exported.onnx", plain)
    assert metadata(plain) == {}


def change(path: Path, edit: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def other_stamp(folder: Path) -> None:
    """An .ort file whose digest is right and whose stamp is that of other options."""
    ortconv.convert(folder / "mnist.onnx", folder / "mnist.ort", stamp=True, optimization_level="all", fold_limit=2000)
    wanted = {"bytes": (folder / "mnist.ort").stat().st_size, "sha256": sha256(folder / "mnist.ort")}
    change(folder / "mnist.manifest.json", lambda d: d["files"].update({"mnist.ort": wanted}))


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda f: (f / "mnist.ort").unlink(), "mnist.ort is missing"),
        (lambda f: (f / "mnist.ort").write_bytes(b"short"), "mnist.ort has 5 bytes, not"),
        (lambda f: (f / "mnist.ort").write_bytes(b"x" * (f / "mnist.ort").stat().st_size), "mnist.ort has another content"),
        (lambda f: (f / "mnist.required_operators.config").write_text(""), "mnist.required_operators.config has 0 bytes"),
        (lambda f: (f / "mnist.onnx").write_bytes(b"other"), "the source mnist.onnx has changed since: convert it again"),
        (other_stamp, "mnist.ort: its stamp is not that of this manifest"),
    ],
)  # fmt: skip
def test_deviations_are_found(
    damage: Callable[[Path], None], finding: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ortconv.convert(model, model.with_suffix(".ort"), stamp=True, manifest=True)
    path = model.with_name("mnist.manifest.json")
    assert main(["verify", str(path)]) == 0
    assert "2 files by ortconv" in capsys.readouterr().out
    damage(model.parent)
    assert finding in verify_manifest(path).findings[0]
    assert main(["verify", str(path), "-q"]) == 3
    assert finding in capsys.readouterr().err


def test_weights_of_the_source_belong_to_it(tmp_path: Path) -> None:
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [1, 64]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.bin", size_threshold=0)
    ortconv.convert(tmp_path / "m.onnx", tmp_path / "m.ort", manifest=True)
    path = tmp_path / "m.manifest.json"
    assert list(read_manifest(path).source.external) == ["m.bin"]
    assert verify_manifest(path).findings == []
    (tmp_path / "m.bin").write_bytes(np.zeros((64, 64), np.float32).tobytes())
    assert verify_manifest(path).findings == ["m.bin has another content: its SHA-256 differs"]
    (tmp_path / "m.onnx").unlink()
    assert verify_manifest(path).notes == ["the source m.onnx is not here"]


def test_what_is_no_manifest_is_refused(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "x.manifest.json"
    for text in ("", "[]", "{}", '{"version": 2}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(FormatError, match="no manifest of version 1"):
            verify_manifest(path)
    ortconv.convert(model, tmp_path / "x.ort", manifest=True)
    change(path, lambda d: d["files"].update({"../mnist.onnx": {"bytes": 1, "sha256": ""}}))
    with pytest.raises(UnsafeInputError):
        verify_manifest(path)


@pytest.mark.slow
def test_directories(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["convert", str(model.parent), "-o", str(model.parent / "out"), "--manifest", "--resume", "--jobs", "1"]
    assert main(command) == 0
    assert main(["verify", str(model.parent / "out")]) == 0
    assert "mnist.manifest.json: 1 file as described" in capsys.readouterr().out
    assert main(command) == 0
    assert "1 unchanged" in capsys.readouterr().err
    (model.parent / "out/mnist.manifest.json").unlink()
    assert main(command) == 0
    assert "unchanged" not in capsys.readouterr().err
    assert (model.parent / "out/mnist.manifest.json").exists()


# --------------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"optimization_level": "all", "min_nodes": 1, "details": True, "write_config": False}, []),
        ({"optimization_level": "basic", "use_nnapi": True}, ["--optimization-level=basic", "--use-nnapi"]),
        ({"validate": False}, ["--no-validate"]),
        ({"fix_dims": {"batch": 1, "n=m": 2}}, ["--fix-dim=batch=1", "--fix-dim=n=m=2"]),
        ({"enable_passes": ["GeluApproximation"], "disable_passes": ["A", "B"]},
         ["--enable-pass=GeluApproximation", "--disable-pass=A", "--disable-pass=B"]),
        ({"use_nnapi": True, "nnapi_partitioning_stop_ops": ["Resize", "Where"]},
         ["--use-nnapi", "--nnapi-partitioning-stop-ops=Resize,Where"]),
        ({"use_nnapi": True, "nnapi_partitioning_stop_ops": []}, ["--use-nnapi", "--nnapi-partitioning-stop-ops="]),
        ({"coreml_static_inputs": True, "coreml_on_subgraphs": True},
         ["--coreml-only-static-input-shapes", "--coreml-enable-on-subgraph"]),
        ({"fold_limit": 1000, "target_ort": "1.18"}, ["--fold-limit=1000", "--target-ort=1.18"]),
        ({"fail_on": ["size>1.1x,nodes>3", "scaled>1e-3"]}, ["--fail-on=size>1.1x,nodes>3", "--fail-on=scaled>1e-3"]),
        ({"float16": True, "error_budget": 0.1, "keep_float32": ["Conv"]},
         ["--float16", "--error-budget=0.1", "--keep-float32=Conv"]),
    ],
)  # fmt: skip
def test_options_as_arguments(settings: dict[str, Any], expected: list[str]) -> None:
    options = ortconv.Options.of(settings)
    assert arguments(options) == expected
    if not {"details", "write_config"} & settings.keys():
        assert arguments(parsed(expected)) == expected
        assert read_arguments(expected) == options


def parsed(given: list[str]) -> ortconv.Options:
    """The options that the command line makes of arguments."""
    command = command_of("convert")
    arguments = [str(SAMPLES / "mnist.onnx"), *given]
    with command.make_context("convert", arguments, parent=click.Context(cli, **SETTINGS)) as context:
        flags = dict(context.params)
        return options_of(flags, optimization_style=flags.pop("styles")[-1])


def test_files_are_named_by_their_digests(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF")
    feeds = {"x": np.zeros(3, np.float32)}
    given = arguments(ortconv.Options(device=DeviceProfile(), validate_with=feeds, custom_op_library=library))
    assert [text.partition("=")[0] for text in given] == ["--device", "--validate-with", "--custom-op-library"]
    assert given[2] == f"--custom-op-library={sha256(library)}"
    assert given == arguments(
        ortconv.Options(device=DeviceProfile(), validate_with=(feeds,), custom_op_library=library)
    )


@pytest.mark.parametrize(
    "text",
    [
        "--pipeline=ab12",
        "--device=ab12",
        "--of-another-release=1",
        "--maximize-offload",
        "--fix-dim=n=x",
        "--fold-limit=",
        "--details",
    ],
)
def test_arguments_that_cannot_be_repeated(text: str) -> None:
    assert read_arguments([text]) is None


def test_every_flag_is_one_of_convert() -> None:
    flags = {flag for param in command_of("convert").params for flag in (*param.opts, *param.secondary_opts)}
    changed: dict[str, Any] = {"validate": False, "coreml_static_inputs": True, "coreml_on_subgraphs": True}
    for name in ("fix_dims", "enable_passes", "disable_passes", "only_passes"):
        changed[name] = {"n": 1} if name == "fix_dims" else ["A"]
    for text in arguments(ortconv.Options.of(changed)):
        assert text.partition("=")[0] in flags
