"""The command that builds ONNX Runtime with the operators of a config only."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortconv
from ortconv.choices import BUILD_PLATFORMS
from ortconv.cli import main
from ortconv.errors import UsageError
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.opconfig import RequiredOperators
from ortconv.ortformat.reduced_build import PLATFORMS, reduced_build
from tests.batches import batched

PLAIN = "ai.onnx;13;Elu,Relu"


@batched
@pytest.mark.parametrize(
    ("config", "settings", "expected", "absent"),
    [
        (PLAIN, {}, ["--minimal_build --disable_exceptions", "--include_ops_by_config=x.config", "--disable_ml_ops"],
         ["extended", "custom_ops", "--enable_reduced", "--disable_types", "--use_"]),
        (PLAIN, {"platform": "android", "use_nnapi": True, "android_api": 29},
         ["--minimal_build extended --disable", "--use_nnapi", "--android_api=29", "--android_abi=arm64-v8a"], []),
        (PLAIN, {"platform": "ios", "use_coreml": True}, ["--minimal_build extended", "--use_coreml", "--build_apple_framework"],
         ["--build_shared_lib"]),
        ('ai.onnx;13;Relu{"inputs": {"0": ["float"]}}', {}, ["--enable_reduced_operator_type_support"], []),
        ("!globally_allowed_types;float\nai.onnx;13;Relu", {}, ["--enable_reduced_operator_type_support"], []),
        ("ai.onnx.ml;1;Scaler", {}, [], ["--disable_ml_ops"]),
        ("!no_ops_specified_means_all_ops_are_required", {}, [], ["--disable_ml_ops"]),
        ("my.domain;1;Mine\nai.onnx;13;Relu", {}, ["--minimal_build custom_ops"], []),
        ("my.domain;1;Mine", {"platform": "android", "use_nnapi": True}, ["--minimal_build extended custom_ops"], []),
        ("com.microsoft;1;FusedConv", {"platform": "windows"}, [".\\build.bat "], ["custom_ops", "./build.sh"]),
    ],
)  # fmt: skip
def test_flags(config, settings, expected, absent):
    found = reduced_build("x.config", RequiredOperators.parse(config), **({"platform": "linux"} | settings))
    text = " ".join(found.command) + " "
    assert [flag for flag in expected if flag not in text] == []
    assert [flag for flag in absent if flag in text] == []


def test_kernels_are_counted():
    def kept(config: str) -> int:
        return reduced_build("c", RequiredOperators.parse(config), platform="linux").kernels

    everything = reduced_build(
        "c", RequiredOperators.parse("!no_ops_specified_means_all_ops_are_required"), platform="linux"
    )
    assert everything.kernels == everything.all_kernels > 500
    assert kept("ai.onnx;13;Elu") == kept("ai.onnx;6;Elu") == 1
    assert kept("ai.onnx;13;Elu,Relu\nai.onnx;14;Relu") == 3
    assert kept("ai.onnx;13;Elu\ncom.microsoft;1;FusedConv") == 2
    assert kept("my.domain;1;Mine") == 0


def test_models_say_more(samples: Path, tmp_path: Path) -> None:
    ortconv.convert(samples / "qdq_cnn.onnx", tmp_path / "r.ort", optimization_style="Runtime", validate=False)
    required, models = RequiredOperators.parse(PLAIN), [ortconv.load(tmp_path / "r.ort")]
    assert models[0].saved
    command = " ".join(reduced_build("c", required, platform="linux", models=models).command)
    assert "--minimal_build extended --disable" in command
    assert command.endswith("--disable_types float8 optional sparsetensor")


def test_constants_in_sparse_form_need_sparse_tensors() -> None:
    value, place = np.array([3.0], np.float32), np.array([1])
    constant = helper.make_sparse_tensor(numpy_helper.from_array(value, "c"), numpy_helper.from_array(place, "i"), [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Relu", ["c"], ["y"])], "g", [], [y], sparse_initializer=[constant])
    command = reduced_build(
        "c", RequiredOperators.parse(PLAIN), platform="linux", models=[from_proto(helper.make_model(graph))]
    )
    assert command.command[-3:] == ["--disable_types", "float8", "optional"]


def test_wrong_platforms() -> None:
    assert tuple(PLATFORMS) == BUILD_PLATFORMS
    for settings in (
        {"platform": "phone"},
        {"platform": "ios", "use_nnapi": True},
        {"platform": "linux", "use_coreml": True},
    ):
        with pytest.raises(UsageError):
            reduced_build("c", RequiredOperators.parse(PLAIN), **settings)


@pytest.mark.skipif(os.name != "posix", reason="runs a shell of POSIX")
def test_the_command_is_one_for_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "my ops.config"
    config.write_text(PLAIN)
    assert main(["ops", "build-command", str(config), "--platform", "linux"]) == 0
    shown = capsys.readouterr()
    script = shown.out.replace("./build.sh", "printf '%s\\n'")
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert main(["ops", "build-command", str(config), "--platform", "linux", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert ran.stdout.splitlines() == document["command"][1:]
    assert f"--include_ops_by_config={config}" in document["command"]
    assert f"note: {document['kernels']} of the {document['all_kernels']} CPU kernels" in shown.err


def test_the_command_is_one_for_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "my ops.config"
    config.write_text(PLAIN)
    for module in ("wording", "ortformat.reduced_build"):
        monkeypatch.setattr(f"ortconv.{module}.os", SimpleNamespace(name="nt"))
    assert main(["ops", "build-command", str(config), "--platform", "android"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(r".\build.bat --config=MinSizeRel ")
    assert f'"--include_ops_by_config={config}"' in line
