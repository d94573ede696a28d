"""NNAPI devices of other packages: the example is installed by pip and found by its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ortconv.errors import UsageError
from ortconv.nnapi import loading
from tests.conformance_records import write_records
from tests.conftest import ROOT, SAMPLES
from tests.plugin_backend import wheel_writer

EXAMPLE = ROOT / "examples" / "nnapi_device"

FIBONACCI = """
import numpy as np
from ortconv import nnapi

device = nnapi.load_device("example-dsp")
with nnapi.registered(device), nnapi.Model() as model:
    numbers = model.get_extension_operand_type("com.example.fibonacci", 0)
    count = model.add_operand(nnapi.OperandType(nnapi.Operand.TENSOR_FLOAT32, [1]))
    out = model.add_operand(nnapi.OperandType(numbers, [8]))
    code = model.get_extension_operation_type("com.example.fibonacci", 0)
    model.add_operation(code, [count], [out])
    model.identify_inputs_and_outputs([count], [out])
    model.finish()
    with nnapi.Compilation(model, [device]) as compilation:
        compilation.finish()
        result = np.zeros(8, np.uint64)
        with nnapi.Execution(compilation) as execution:
            execution.set_input(0, np.float32([8]))
            execution.set_output(0, result)
            execution.compute()
print(result.tolist())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, installed without a network."""
    made, target = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel_writer, "HERE", EXAMPLE)
        wheel = made / wheel_writer.build_wheel(str(made))
    with zipfile.ZipFile(wheel) as content:  # as pip does with a wheel of Python modules
        content.extractall(target)
    return target


def python(*arguments: object, site: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(ROOT)])
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})


def ortconv(*arguments: object, site: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "ortconv", *arguments, site=site)


def test_the_example_names_what_it_installs(site: Path) -> None:
    assert (site / "ortconv_example_dsp.py").is_file()
    assert 'include = ["ortconv_example_dsp.py"]' in (EXAMPLE / "pyproject.toml").read_text("utf-8")


def test_the_device_is_listed_by_its_name(site: Path) -> None:
    done = ortconv("devices", "--json", site=site)
    assert done.returncode == 0, done.stderr
    (found,) = (one for one in json.loads(done.stdout)["devices"] if one["name"] == "example-dsp")
    assert (found["profile"], found["feature_level"], found["supported_operations"]) == ("example-dsp", 4, 3)


@pytest.mark.slow
def test_the_device_runs_a_model(site: Path) -> None:
    model = SAMPLES / "mobilenet_v2_small.onnx"
    done = ortconv(
        "nnapi", "benchmark", model, "--nnapi-flags", "", "--device", "example-dsp", "--repeat", 1, "--json", site=site
    )
    assert done.returncode == 0, done.stderr
    (row,) = (row for row in json.loads(done.stdout)["rows"] if row["name"] == "example-dsp")
    assert row["operations"]["example-dsp"] > 0
    assert row["scaled"] < 1e-5


@pytest.mark.slow
def test_the_device_passes_conformance(site: Path, tmp_path: Path) -> None:
    done = ortconv("nnapi", "conformance", "--device", "example-dsp", "--specs", write_records(tmp_path), site=site)
    assert done.returncode == 0, done.stderr
    assert "none of 5 records fails" in done.stdout


@pytest.mark.slow
def test_the_extension_computes(site: Path) -> None:
    done = python("-c", FIBONACCI, site=site)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 1, 2, 3, 5, 8, 13, 21]


@pytest.mark.slow
def test_without_the_package_there_is_no_such_device(tmp_path: Path) -> None:
    done = ortconv("devices", "show", "example-dsp", site=tmp_path)
    assert done.returncode == 2
    done = ortconv("nnapi", "benchmark", SAMPLES / "mnist.onnx", "--device", "example-dsp", site=tmp_path)
    assert done.returncode == 2
    assert "there is no such file, and no such device" in done.stderr


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("missing_package:Dsp", "cannot be loaded"),
        ("ortconv.nnapi.driver:Missing", "cannot be loaded"),
        ("pathlib:Path", "is a PosixPath, not a Device" if os.name == "posix" else "is a WindowsPath, not a Device"),
    ],
)
def test_entry_points_that_are_wrong(value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("own", value, loading.GROUP)
    monkeypatch.setattr(loading, "_entry_points", lambda: {"own": point})
    assert loading.installed_devices() == ["own"]
    with pytest.raises(UsageError, match=message):
        loading.load_device("own")


@pytest.mark.parametrize("name", ["x" * 5000, ""])
def test_names_of_no_file(name: str) -> None:
    with pytest.raises(UsageError):
        loading.load_device(name)
