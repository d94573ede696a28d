"""The backend nnapi on the command line: the flags of run and compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortconv.cli import main
from tests.cli.conftest import Printed


@pytest.fixture
def mnist(samples: Path, tmp_path: Path) -> str:
    path = tmp_path / "mnist.ort"
    assert main(["convert", str(samples / "mnist.onnx"), "-o", str(path), "--use_nnapi", "-q"]) == 0
    return str(path)


def test_run_shows_what_float16_does(mnist: str, printed: Printed) -> None:
    exact = printed("run", mnist)
    same = printed("run", mnist, "--backend", "nnapi")
    half = printed("run", mnist, "--backend", "nnapi", "--nnapi_flags", "fp16", "--plan")
    want, close, far = (next(iter(d["outputs"].values()))["max"] for d in (exact, same, half))
    assert abs(close - want) < 1e-5 < abs(far - want) < 1e-2
    assert half["backends"] == ["nnapi"]
    assert {(p["backend"], p["partition"]) for p in half["plan"]} == {("nnapi", 0)}


def test_flags_are_taken_as_the_documents_of_onnx_runtime_write_them(mnist: str, printed: Printed) -> None:
    names = "NNAPI_FLAG_USE_FP16|NNAPI_FLAG_USE_NCHW"
    found = [
        printed("run", mnist, "--backend", "nnapi", "--nnapi_flags", flags) for flags in (names, "fp16+nchw", "nchw")
    ]
    first, same, other = (next(iter(document["outputs"].values()))["max"] for document in found)
    assert first == same != other


def test_providers_that_a_file_stores_are_ignored(samples: Path, tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "mnist.ort"
    flags = ["--use_coreml", "--optimization_level", "extended", "-q"]
    assert main(["convert", str(samples / "mnist.onnx"), "-o", str(path), *flags]) == 0
    assert printed("partition", path)["nodes_taken"] == 8
    plan = printed("run", path, "--backend", "nnapi", "--plan")["plan"]
    assert {p["backend"] for p in plan} == {"nnapi"}


def test_run_on_devices_repeatedly_with_a_cache(mnist: str, tmp_path: Path, printed: Printed) -> None:
    flags = ["--nnapi-flags", "CPU_DISABLED", "--device", "gpu-fp16", "--nnapi-cache", str(tmp_path / "cache")]
    assert printed("run", mnist, "--backend", "nnapi,numpy", "--repeat", "3", *flags)["runs"] == 3
    assert list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--nnapi-flags", "fp16"], 2, "but not the backend nnapi"),
        (["--backend", "nnapi", "--nnapi-flags", "quick"], 2, "no NNAPI flag 'quick'"),
        (["--backend", "nnapi", "--nnapi-flags", "cpu_only,cpu_disabled"], 2, "exclude each other"),
        (["--backend", "nnapi", "--device", "none.toml"], 2, "profile cannot be read"),
        (
            ["--backend", "nnapi", "--device", "npu-int8", "--nnapi-flags", "CPU_DISABLED"],
            3,
            "none of the devices sim-npu",
        ),
    ],
)
def test_run_refuses(flags: list[str], code: int, message: str, mnist: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", mnist, *flags]) == code
    assert message in capsys.readouterr().err


def test_compare_flags_of_one_file(mnist: str, capsys: pytest.CaptureFixture[str]) -> None:
    models = [f"{mnist}@numpy", f"{mnist}@nnapi:nchw", f"{mnist}@nnapi:fp16+nchw"]
    capsys.readouterr()
    assert main(["compare", *models, "--json", "--fail-on", "max_abs>0.1"]) == 0
    exact, half = (m["outputs"][0]["max_abs"] for m in json.loads(capsys.readouterr().out)["models"])
    assert exact < 1e-5 < half < 1e-2
    assert main(["compare", f"{mnist}@numpy", f"{mnist}@numpy:fast"]) == 2
    assert "has no setting" in capsys.readouterr().err
