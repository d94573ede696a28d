"""ortconv devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from nnapi_models import chain

from ortconv import nnapi
from ortconv.cli import main
from ortconv.nnapi import Operand, Operation
from ortconv.nnapi.inventory import operations
from tests.batches import slow_except
from tests.cli.conftest import Printed

PROFILE = """
name = "example"
version = "2.1"
type = "GPU"
feature_level = 3
[accept]
operations = ["ADD", "EXP", "ELU"]
types = ["TENSOR_FLOAT32"]
[performance]
TENSOR_FLOAT32 = { exec_time = 0.25, power_usage = 0.5 }
[costs]
launch_us = 40.0
[faults]
execute = "OP_FAILED"
good_executions = 2
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "example.toml"
    path.write_text(PROFILE)
    return path


def test_the_cpu_comes_first_then_the_profiles(profile: Path, printed: Printed) -> None:
    found = printed("devices", "--device", profile)["devices"]
    assert [d["profile"] for d in found] == [None, *nnapi.bundled_profiles(), str(profile)]
    assert (found[0]["name"], found[0]["type"], found[0]["feature_level"]) == ("nnapi-reference", "CPU", 8)


def test_what_a_profile_says(profile: Path, printed: Printed) -> None:
    found = printed("devices", "show", "example", "--device", profile)["device"]
    assert (found["version"], found["type"], found["feature_level"], found["api_level"]) == ("2.1", "GPU", 3, 29)
    assert found["operations"] == {"ADD": ["TENSOR_FLOAT32"], "EXP": ["TENSOR_FLOAT32"]}
    assert found["supported_operations"] == 2
    assert found["performance"]["TENSOR_FLOAT32"] == {"exec_time": 0.25, "power_usage": 0.5}
    assert found["performance"]["TENSOR_INT32"] is None
    assert found["costs"] == {"launch_us": 40.0, "copy_gb_per_s": 0.0}
    assert found["faults"] == {"execute": "OP_FAILED", "good_executions": 2}


@pytest.mark.parametrize("before", slow_except([False], (True, False)))
def test_a_device_by_name_profile_or_file(profile: Path, capsys: pytest.CaptureFixture[str], before: bool) -> None:
    options = ["--device", str(profile)]
    for name in ("example", str(profile), "sim-npu", "npu-int8"):
        assert main(["devices", *(options if before else []), "show", name, *([] if before else options)]) == 0
        assert capsys.readouterr().out.startswith(("example", "sim-npu"))
    assert main(["devices", "show", str(profile)]) == 0
    assert "execute OP_FAILED, good_executions 2" in capsys.readouterr().out


def test_a_device_that_never_gets_work(tmp_path: Path, printed: Printed, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plain.toml"
    path.write_text('name = "plain"')
    assert printed("devices", "show", path)["device"]["gets_work"] is False
    assert printed("devices", "show", "npu-int8")["device"]["gets_work"] is True
    assert main(["devices", "show", str(path)]) == 0
    assert "no work while the CPU is among the devices" in capsys.readouterr().out


def test_as_a_table(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--device", str(profile)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(nnapi.bundled_profiles()) + 1
    assert lines[-1].split() == [*f"example {profile} GPU 2.1 3 2 0.25 / 0.5 never never".split()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "none"], "there is no device 'none'"),
        (["--device", "none.toml"], "cannot be read"),
        (["--vlog", "compilation,nonsense"], "there is no flag 'nonsense'"),
    ],
)
def test_what_is_not_there(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_two_devices_of_one_name(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.toml"
    other.write_text("name = 'example'")
    assert main(["devices", "--device", str(profile), "--device", str(other)]) == 2
    assert "there is a device 'example' already" in capsys.readouterr().err


def test_messages_of_the_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--vlog", "manager"]) == 0
    assert "I/Manager: Found interface sim-gpu (version = 1.0)" in capsys.readouterr().err.splitlines()
    assert main(["devices"]) == 0
    assert capsys.readouterr().err == ""


UNARY = [Operation.ABS, Operation.RELU, Operation.EXP, Operation.ADD, Operation.FLOOR]


@pytest.mark.parametrize("name", nnapi.bundled_profiles())
def test_the_inventory_is_what_a_device_answers(name: str) -> None:
    device = nnapi.load_device(name)
    model = chain(*UNARY)
    with nnapi.registered(device):
        answers = nnapi.get_supported_operations_for_devices(model, [device])
    taken = operations(device)
    assert answers == [Operand.TENSOR_FLOAT32 in taken.get(code, []) for code in UNARY]


def test_properties_fit_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortconv.cli.render.room", lambda: 60)
    assert main(["devices", "show", "npu-int8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= 60
