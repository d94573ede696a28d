"""A converted model between two simulated devices and the CPU: what each fault of a device does to it."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from nnapi_models import device

from ortconv import Session
from ortconv.backends.nnapi.backend import NnapiOptions, RecordingBackend
from ortconv.errors import BackendError
from ortconv.ir.tensor import Array
from ortconv.models import load
from ortconv.nnapi.properties import PartitioningMode, override
from ortconv.nnapi.simulated import SimulatedDevice
from ortconv.pipeline import optimize

FEEDS = {"Input3": np.random.default_rng(3).standard_normal((1, 1, 28, 28)).astype(np.float32)}
RUNS = 4
CONVOLUTIONS = 2
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "compiles not": {"compile": "OP_FAILED"},
    "executes not": {"execute": "OP_FAILED"},
    "executes twice": {"execute": "OP_FAILED", "good_executions": 2},
    "is busy": {"execute": "RESOURCE_EXHAUSTED_TRANSIENT"},
    "dies": {"dies_after": 3},
    "is slow": {"slow_s": 0.005},
}
SAID = {
    "compiles not": "OP_FAILED: .* fails to compile",
    "executes not": "OP_FAILED: .* fails to execute",
    "executes twice": "OP_FAILED: .* fails to execute",
    "is busy": "RESOURCE_EXHAUSTED_TRANSIENT",
    "dies": "OP_FAILED: .* is dead",  # DEAD_OBJECT does not pass through the events of executions in the background
}


def devices(fault: str, faulty: str = "convolver") -> tuple[SimulatedDevice, SimulatedDevice]:
    """One for the convolutions, one for the pools; the rest is for the CPU."""
    given = {faulty: {"faults": FAULTS[fault]}}
    return (
        device("convolver", "CONV_2D", **given.get("convolver", {})),
        device("pooler", "MAX_POOL_2D", **given.get("pooler", {})),
    )


def session(samples: Path, *accelerators: SimulatedDevice, **flags: bool) -> tuple[Session, RecordingBackend]:
    backend = RecordingBackend(NnapiOptions(devices=accelerators, **flags))  # type: ignore[arg-type]
    model = load(samples / "mnist.onnx")
    optimize(model, "basic")
    return Session(model, [backend]), backend


def run(one: Session) -> Array:
    found: Array = one.run(None, FEEDS)[0]
    return found


@pytest.fixture(scope="module")
def expected(samples: Path) -> Array:
    """By the CPU device alone; it is near what onnxruntime says."""
    result = run(session(samples, cpu_only=True)[0])
    theirs = onnxruntime.InferenceSession(str(samples / "mnist.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(result, theirs.run(None, FEEDS)[0], rtol=1e-4, atol=1e-4)
    return result


def steps(backend: RecordingBackend) -> list[str]:
    ((_, program),) = backend.compiled
    plan = program.compilation.plan
    return [step.device.name for step in getattr(plan, "model_steps", [plan])]


def test_the_model_is_split(samples: Path, expected: Array) -> None:
    one, backend = session(samples, *devices("none"))
    cpu = "nnapi-reference"
    assert steps(backend) == [cpu, "convolver", "pooler", "convolver", "pooler", cpu]
    assert np.array_equal(run(one), expected)


@pytest.mark.parametrize("faulty", ["convolver", "pooler"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_changes_the_results(samples: Path, expected: Array, fault: str, faulty: str) -> None:
    one, _ = session(samples, *devices(fault, faulty))
    assert all(np.array_equal(run(one), expected) for _ in range(RUNS))


def test_a_device_that_compiles_not_leaves_the_whole_model_to_the_cpu(
    samples: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with override(vlog="compilation"):
        _, backend = session(samples, *devices("compiles not"))
    assert "CompilationBuilder::finish with CPU fallback" in caplog.messages
    assert steps(backend) == ["nnapi-reference"]


@pytest.mark.parametrize(
    ("fault", "saved"), [("executes not", RUNS * CONVOLUTIONS), ("executes twice", 6), ("dies", 5)]
)
def test_the_cpu_saves_each_step_that_fails(
    samples: Path, fault: str, saved: int, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = session(samples, *devices(fault))
    caplog.set_level(logging.INFO)
    with override(vlog="execution,model"):
        for _ in range(RUNS):
            run_with_messages(one)
    assert caplog.messages.count("cpuFallbackPartial") == saved
    assert "cpuFallbackFull" not in caplog.messages


def run_with_messages(one: Session) -> Array:
    """Flags of messages are read when a model is created."""
    from ortconv import nnapi

    nnapi.Model()
    return run(one)


@pytest.mark.parametrize(("fault", "saved"), [("executes not", RUNS), ("executes twice", 2), ("dies", 1)])
def test_where_one_device_has_it_all_the_cpu_repeats_the_whole_model(
    samples: Path, expected: Array, fault: str, saved: int, caplog: pytest.LogCaptureFixture
) -> None:
    one, backend = session(samples, device("all", faults=FAULTS[fault]))
    assert steps(backend) == ["all"]
    caplog.set_level(logging.INFO)
    with override(vlog="execution"):
        assert all(np.array_equal(run_with_messages(one), expected) for _ in range(RUNS))
    assert caplog.messages.count("cpuFallbackFull") == saved
    assert "cpuFallbackPartial" not in caplog.messages


@pytest.mark.parametrize("fault", SAID)
def test_an_error_where_fallback_is_disabled(samples: Path, fault: str) -> None:
    def attempt() -> None:
        one, _ = session(samples, *devices(fault))
        for _ in range(RUNS):
            run(one)

    with override(partition=PartitioningMode.WITHOUT_FALLBACK), pytest.raises(BackendError, match=SAID[fault]):
        attempt()


@pytest.mark.parametrize("fault", SAID)
def test_an_error_where_the_cpu_is_disabled(samples: Path, fault: str) -> None:
    def attempt() -> None:
        one, _ = session(samples, device("all", faults=FAULTS[fault]), cpu_disabled=True)
        for _ in range(RUNS):
            run(one)

    with pytest.raises(BackendError, match=SAID[fault]):
        attempt()


def test_what_no_named_device_takes_is_refused(samples: Path) -> None:
    with pytest.raises(BackendError, match="runs on none of the devices convolver, pooler"):
        session(samples, *devices("none"), cpu_disabled=True)


@pytest.mark.parametrize("burst", [False, True])
def test_threads_outlive_a_device_that_dies_under_them(samples: Path, expected: Array, burst: bool) -> None:
    convolver = device("convolver", "CONV_2D", faults={"dies_after": 50})
    one, _ = session(samples, convolver, device("pooler", "MAX_POOL_2D"), burst=burst)
    with ThreadPoolExecutor(8) as pool:
        equal = list(pool.map(lambda _: np.array_equal(run(one), expected), range(64)))
    assert equal == [True] * 64
