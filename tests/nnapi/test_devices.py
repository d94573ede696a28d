"""Devices: discovery, profiles, what they are asked, faults and fallback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnapi_models import Builder, chain, compiled, counting_to, device, run, tensor

from ortconv import nnapi
from ortconv.errors import UsageError
from ortconv.nnapi import DeviceType, FeatureLevel, Operand, Operation
from ortconv.nnapi.properties import PartitioningMode, override
from ortconv.nnapi.simulated import SimulatedDevice, metered
from tests.batches import batched

X = np.arange(4, dtype=np.float32)

pytestmark = pytest.mark.usefixtures("no_devices")


def test_the_cpu_is_there() -> None:
    assert nnapi.get_device_count() == 1
    cpu = nnapi.get_device(0)
    assert cpu is nnapi.get_device("nnapi-reference")
    assert (cpu.name, cpu.type, cpu.feature_level) == ("nnapi-reference", DeviceType.CPU, FeatureLevel.LEVEL_8)
    assert (cpu.extensions, cpu.cache_files) == ((), (0, 0))
    assert {cpu.capabilities.of(kind, relaxed).exec_time for kind in Operand for relaxed in (False, True)} == {1.0}
    cpu.wait()


def test_the_cpu_comes_last() -> None:
    nnapi.register_device(device("a"))
    nnapi.register_device(device("b"))
    assert [one.name for one in nnapi.get_devices()] == ["a", "b", "nnapi-reference"]
    with override(enabled_devices="^b"):
        assert [one.name for one in nnapi.get_devices()] == ["b", "nnapi-reference"]
    with override(cpu_only=True):
        assert [one.name for one in nnapi.get_devices()] == ["nnapi-reference"]


@pytest.mark.parametrize("which", ["x", 1, -1])
def test_devices_that_are_not_there(which: str | int) -> None:
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        nnapi.get_device(which)


def test_a_name_is_taken_once() -> None:
    nnapi.register_device(device("a"))
    for name in ("a", "nnapi-reference"):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            nnapi.register_device(device(name))


def test_a_device_knows_no_more_than_the_runtime() -> None:
    one = device("a", feature_level=7)
    assert one.feature_level is FeatureLevel.LEVEL_7
    with override(feature_level=FeatureLevel.LEVEL_3):
        assert one.feature_level is FeatureLevel.LEVEL_3


@pytest.mark.parametrize("name", nnapi.bundled_profiles())
def test_the_profiles_that_come_along(name: str) -> None:
    one = nnapi.load_device(name)
    assert one.capabilities.of(Operand.TENSOR_FLOAT32, True).exec_time < 100
    assert nnapi.load_device(one.name).name == one.name


NAMED = "name = 'x'\n"


@batched
@pytest.mark.parametrize(
    "text",
    [
        "",
        "name = ''",
        "name =",
        NAMED + "speed = 3",
        NAMED + "type = 'TPU'",
        NAMED + "feature_level = 9",
        NAMED + "[faults]\nexplode = true",
        NAMED + "[faults]\ncompile = 'NO'",
        NAMED + "[faults]\ncompile = 3",
        NAMED + "[faults]\nslow_s = 'long'",
        NAMED + "[faults]\nslow_s = -1.0",
        NAMED + "[faults]\ndies_after = 1.5",
        NAMED + "faults = 3",
        NAMED + "[costs]\nlaunch_us = inf",
        NAMED + "[cache]\nmodel_files = true",
        NAMED + "[accept]\noperations = 'ADD'",
        NAMED + "[accept]\noperations = ['CONV']",
        NAMED + "[accept]\ntypes = ['F']",
        NAMED + "[performance]\ndefault = 3",
        NAMED + "[performance]\ndefault = {exec_time = 0.0, power_usage = 1.0}",
        NAMED + "[performance]\nFLOAT64 = {exec_time = 1.0, power_usage = 1.0}",
    ],
)
def test_profiles_that_say_what_cannot_be(tmp_path: Path, text: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        nnapi.load_device(path)
    assert str(path) in str(refused.value)


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        nnapi.load_device(tmp_path / "none.toml")


def supported(model: nnapi.Model, *devices: nnapi.Device) -> list[bool]:
    with nnapi.registered(*devices):
        return nnapi.get_supported_operations_for_devices(model, devices)


def test_supported_operations_in_the_order_of_the_client() -> None:
    b = Builder()
    kind = tensor(2)
    x, late = b.operand(kind), b.operand(kind)
    out = b.operation(Operation.RELU, [late], kind)
    b.model.add_operation(Operation.TANH, [x], [late])
    model = b.finish([x], [out])
    assert supported(model, device("a", "RELU")) == [True, False]
    assert supported(model, device("a", "TANH")) == [False, True]
    assert supported(model, device("a", "RELU"), device("b", "TANH")) == [True, True]


def test_devices_that_cannot_be_asked() -> None:
    model, one = chain(Operation.RELU), device("a")
    nnapi.register_device(one)
    for devices in ([], [one, one], [device("b")]):
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            nnapi.get_supported_operations_for_devices(model, devices)
        with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
            nnapi.Compilation(model, devices)
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        nnapi.get_supported_operations_for_devices(nnapi.Model(), [one])


class Recorder(SimulatedDevice):
    """Remembers the models that it is asked about."""

    def supported_operations(self, model: nnapi.Model) -> list[bool]:
        self.asked = model
        return super().supported_operations(model)


def test_an_older_device_is_asked_about_what_it_knows() -> None:
    one = Recorder({"name": "old", "feature_level": 1})
    model = chain(Operation.RELU, Operation.EXP, Operation.FLOOR, Operation.SUB)
    assert supported(model, one) == [True, False, True, False]
    assert [operation.code.name for operation in one.asked.operations] == ["FLOOR", "RELU"]
    assert (len(one.asked.inputs), len(one.asked.outputs)) == (2, 2)
    assert one.asked.level is FeatureLevel.LEVEL_1


def test_an_older_device_knows_nothing_of_it() -> None:
    assert supported(chain(Operation.EXP), device("old", feature_level=1)) == [False]


def test_a_wrong_answer_supports_nothing() -> None:
    class Wrong(SimulatedDevice):
        def supported_operations(self, model: nnapi.Model) -> list[bool]:
            return [True]

    assert supported(chain(Operation.RELU, Operation.TANH), Wrong({"name": "w"})) == [False, False]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "compiles not": ({"compile": "OP_FAILED"}, "OP_FAILED"),
    "executes not": ({"execute": "OP_FAILED"}, "OP_FAILED"),
    "executes once": ({"execute": "OP_FAILED", "good_executions": 1}, "OP_FAILED"),
    "dies": ({"dies_after": 1}, "DEAD_OBJECT"),
    "is busy": ({"execute": "RESOURCE_EXHAUSTED_TRANSIENT"}, "RESOURCE_EXHAUSTED_TRANSIENT"),
}
SPLIT = (Operation.ADD, Operation.MUL, Operation.RELU, Operation.ADD)
MODELS = {"whole": (Operation.ADD,), "split": SPLIT}


def two_devices(faulty: str, fault: str) -> list[SimulatedDevice]:
    """One for ADD, one for MUL; the rest is for the CPU."""
    return [device(name, name, faults=FAULTS[fault][0] if name == faulty else {}) for name in ("ADD", "MUL")]


@batched
@pytest.mark.parametrize("faulty", ["ADD", "MUL"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_cpu_steps_in(fault: str, model: str, faulty: str) -> None:
    expected = run(compiled(chain(*MODELS[model])), X)
    with nnapi.registered(*two_devices(faulty, fault)):
        compilation = compiled(chain(*MODELS[model]))
        for _ in range(3):
            assert np.array_equal(run(compilation, X), expected)


@batched
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("faulty", ["ADD", "MUL"])
@pytest.mark.parametrize("fault", FAULTS)
def test_nobody_steps_in(fault: str, faulty: str, named: bool) -> None:
    """With named devices, or when fallback is turned off."""

    def attempt() -> None:
        compilation = compiled(chain(*SPLIT), nnapi.get_devices() if named else None)
        for _ in range(3):
            run(compilation, X)

    with (
        nnapi.registered(*two_devices(faulty, fault)),
        override(partition=PartitioningMode.WITHOUT_FALLBACK),
        pytest.raises(nnapi.NnapiError) as failed,
    ):
        attempt()
    assert failed.value.code.name == FAULTS[fault][1]


def test_a_dead_device_takes_nothing_more() -> None:
    with nnapi.registered(*two_devices("ADD", "dies")):
        compilation = compiled(chain(*SPLIT))
        for _ in range(2):
            run(compilation, X)
        assert [one.name for one in compiled(chain(*SPLIT)).plan.devices] == ["nnapi-reference", "MUL"]


def test_without_partitioning_the_cpu_does_all() -> None:
    with nnapi.registered(device("a")), override(partition=PartitioningMode.OFF):
        plan = compiled(chain(Operation.ADD)).plan
        assert [one.name for one in plan.devices] == ["nnapi-reference"]


@pytest.mark.parametrize("code", ["BAD_DATA", "UNEXPECTED_NULL"])
def test_the_faults_of_the_client_are_his(code: str) -> None:
    with nnapi.registered(device("a", faults={"compile": code})), pytest.raises(nnapi.NnapiError, match=code):
        compiled(chain(Operation.ADD))


def test_only_the_step_that_fails_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with nnapi.registered(device("a", "ADD", faults={"execute": "OP_FAILED"})), override(vlog="execution"):
        run(compiled(chain(Operation.ADD, Operation.RELU)), X)
    assert "cpuFallbackPartial" in caplog.messages
    assert "cpuFallbackFull" not in caplog.messages


def test_then_the_whole_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with nnapi.registered(device("a", faults={"execute": "OP_FAILED"})), override(vlog="execution"):
        run(compiled(chain(Operation.ADD)), X)
    assert "cpuFallbackFull" in caplog.messages


def test_half_precision_where_it_is_allowed() -> None:
    x = np.array([1.0, 1.0003, 3000.7, 1e-9], np.float32)
    gpu = device("gpu", fp16=True)
    with nnapi.registered(gpu):
        exact = run(compiled(chain(Operation.RELU), [gpu]), x)
        relaxed = run(compiled(chain(Operation.RELU, relaxed=True), [gpu]), x)
    assert np.array_equal(exact, x)
    assert np.array_equal(relaxed, x.astype(np.float16).astype(np.float32))
    on_cpu = run(compiled(chain(Operation.RELU, relaxed=True), [nnapi.get_device("nnapi-reference")]), x)
    assert np.array_equal(on_cpu, x)


def test_durations() -> None:
    one = device("a", costs={"launch_us": 100.0, "copy_gb_per_s": 1.0})
    with nnapi.registered(one):
        compilation = compiled(chain(Operation.RELU), [one])
    execution = nnapi.Execution(compilation)
    execution.set_measure_timing(True)
    execution.set_input(0, X)
    execution.set_output(0, np.zeros(4, np.float32))
    execution.compute()
    hardware, driver = execution.get_duration(0), execution.get_duration(1)
    assert driver - hardware == 100_000 + 32
    assert [execution.get_duration(code) for code in (2, 3)] == [hardware, driver]


def test_executions_are_metered_on_request() -> None:
    one = device("a", "ADD", costs={"launch_us": 100.0}, faults={"slow_s": 0.002})
    with nnapi.registered(one):
        compilation = compiled(chain(Operation.ADD, Operation.RELU, Operation.ADD))
    run(compilation, X)
    with metered([one, nnapi.get_device("nnapi-reference")]) as executions:
        run(compilation, X)
    run(compilation, X)
    assert len(executions) == 2
    for one in executions:
        assert one.seconds > one.computing + 0.002
        assert one.on_hardware == pytest.approx(one.computing / 2)
        assert one.overhead == pytest.approx(0.0021)


@pytest.mark.usefixtures("clock")
def test_deadlines_of_a_slow_device() -> None:
    one = device("a", faults={"slow_s": 5.0})
    with nnapi.registered(one):
        execution = nnapi.Execution(compiled(chain(Operation.RELU), [one]))
    execution.set_timeout(1_000_000)
    execution.set_input(0, X)
    execution.set_output(0, np.zeros(4, np.float32))
    with pytest.raises(nnapi.NnapiError, match="MISSED_DEADLINE_TRANSIENT"):
        execution.compute()


@pytest.mark.usefixtures("clock")
def test_a_loop_that_is_cut_off_is_not_run_again() -> None:
    with nnapi.registered(device("a", "ADD")):
        execution = nnapi.Execution(compiled(counting_to(np.inf)))
    execution.set_loop_timeout(1_000_000)
    execution.set_input(0, np.zeros(1, np.float32))
    execution.set_output(0, np.zeros(1, np.float32))
    with pytest.raises(nnapi.NnapiError, match="MISSED_DEADLINE_TRANSIENT"):
        execution.compute()


SETTERS: list[tuple[Callable[[nnapi.Compilation], None], str | None]] = [
    (lambda c: c.set_preference(3), "BAD_DATA"),
    (lambda c: c.set_preference(2), None),
    (lambda c: c.set_priority(95), "BAD_DATA"),
    (lambda c: c.set_priority(110), None),
    (lambda c: c.set_timeout(10**9), None),
    (lambda c: c.set_caching("/tmp", b"short"), "BAD_DATA"),
    (lambda c: c.set_caching("/nowhere", bytes(32)), None),
]


@pytest.mark.parametrize(("setter", "code"), SETTERS)
def test_settings_of_a_compilation(setter: Callable[[nnapi.Compilation], None], code: str | None) -> None:
    compilation = nnapi.Compilation(chain(Operation.RELU), nnapi.get_devices())
    if code is None:
        setter(compilation)
    else:
        with pytest.raises(nnapi.NnapiError, match=code):
            setter(compilation)
    compilation.finish()
    for call in (setter, lambda c: c.finish()):
        with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
            call(compilation)


def test_a_timeout_needs_one_named_device() -> None:
    with nnapi.registered(device("a")):
        for devices in (None, nnapi.get_devices()):
            with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
                nnapi.Compilation(chain(Operation.RELU), devices).set_timeout(1)


def test_a_compilation_out_of_time() -> None:
    compilation = nnapi.Compilation(chain(Operation.RELU), nnapi.get_devices())
    compilation.set_timeout(1)
    with pytest.raises(nnapi.NnapiError, match="MISSED_DEADLINE_PERSISTENT"):
        compilation.finish()
    with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
        nnapi.Execution(compilation)


def test_a_compilation_that_is_not_finished() -> None:
    compilation = nnapi.Compilation(chain(Operation.RELU))
    for make in (nnapi.Execution, nnapi.Burst):
        with pytest.raises(nnapi.NnapiError, match="BAD_STATE"):
            make(compilation)


def test_preferred_alignment_and_padding() -> None:
    one = device("a", memory={"alignment": 128, "padding": 32})
    with nnapi.registered(one):
        compilation = compiled(chain(Operation.RELU), [one])
    assert compilation.get_preferred_memory_alignment_for_input(0) == 128
    assert compilation.get_preferred_memory_padding_for_output(0) == 32
    with pytest.raises(nnapi.NnapiError, match="BAD_DATA"):
        compilation.get_preferred_memory_alignment_for_output(1)


def test_messages_are_selected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with override(vlog="model,nonsense:manager"):
        chain(Operation.RELU)
    assert "Unknown trace flag: nonsense" in caplog.messages
    assert "ModelBuilder::finish: 1 operations" in caplog.messages
    caplog.clear()
    with override(vlog=""):
        chain(Operation.RELU)
    assert caplog.messages == []
