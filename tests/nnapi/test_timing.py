"""Marks and the summary of times."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from nnapi_models import bound, chain, compiled, run

from ortconv import nnapi
from ortconv.nnapi import Operation
from ortconv.nnapi.memory import PROT_READ
from ortconv.nnapi.simulated import SimulatedDevice
from ortconv.nnapi.tracing import timing
from ortconv.nnapi.tracing.timing import Span, Trace, ndk_name, summary, table, totals

X = np.arange(4, dtype=np.float32)


def span(layer: str, phase: str, start: float, end: float, *inside: tuple[str, str]) -> Span:
    return Span(layer, phase, "f", 1, start, end, inside)


def test_the_calls_of_the_api_mark_themselves() -> None:
    with timing.tracing() as trace:
        run(compiled(chain(Operation.RELU)), X)
    names = [one.name for one in trace.spans]
    assert names[:3] == [
        "ANeuralNetworksModel_create",
        "ANeuralNetworksModel_addOperand",
        "ANeuralNetworksModel_addOperand",
    ]
    assert names.count("ANeuralNetworksExecution_compute") == 1
    phases = {one.name: (one.layer, one.phase) for one in trace.spans}
    assert phases["ANeuralNetworksCompilation_finish"] == ("LR", "PC")
    assert phases["ANeuralNetworksExecution_setInput"] == ("LR", "PIO")
    assert phases["ANeuralNetworksExecution_free"] == ("LR", "PT")
    executed = [one for one in trace.spans if one.layer == "LC" and one.phase == "PE"]
    assert [one.inside for one in executed] == [(("LR", "PE"),)]


def test_freeing_is_termination(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(16))
    with timing.tracing() as trace:
        model = chain(Operation.RELU)
        with compiled(model) as compilation, nnapi.Burst(compilation), nnapi.Execution(compilation) as execution:
            execution.set_input(0, X)
            execution.set_output(0, X.copy())
            execution.start_compute().close()
            with nnapi.MemoryDesc() as desc:
                desc.add_input_role(compilation, 0, 1.0)
                desc.finish()
                nnapi.Memory.from_desc(desc).close()
        with path.open("rb") as file:
            nnapi.Memory.from_fd(16, PROT_READ, file.fileno()).close()
        model.close()
    freed = [one.name.removeprefix("ANeuralNetworks") for one in trace.spans if one.phase == "PT"]
    objects = ("Event", "Memory", "MemoryDesc", "Execution", "Burst", "Compilation", "Memory", "Model")
    assert freed == [f"{one}_free" for one in objects]
    assert summary(trace)["total"]["PT"] == pytest.approx(
        sum(one.seconds for one in trace.spans if one.phase == "PT") * 1e3
    )


def test_nothing_is_kept_without_a_trace() -> None:
    with timing.tracing() as trace:
        pass
    run(compiled(chain(Operation.RELU)), X)
    assert trace.spans == []


@pytest.mark.parametrize(
    ("qualified", "name"),
    [
        ("Execution.set_input", "ANeuralNetworksExecution_setInput"),
        ("Model.__init__", "ANeuralNetworksModel_create"),
        ("Event.close", "ANeuralNetworksEvent_free"),
        ("get_device_count", "ANeuralNetworks_getDeviceCount"),
    ],
)
def test_names(qualified: str, name: str) -> None:
    assert ndk_name(qualified) == name


def test_background_work_is_marked_in_its_own_thread() -> None:
    with nnapi.registered(SimulatedDevice({"name": "npu"})):
        compilation = compiled(chain(Operation.RELU), [nnapi.get_device("npu")])
    execution = bound(compilation, [X], [X.copy()])
    with timing.tracing() as trace:
        execution.start_compute().wait()
    threads = {one.layer: one.thread for one in trace.spans if one.phase == "PE"}
    assert threads["LR"] == threading.get_native_id() != threads["LD"]


def test_times_are_those_of_the_layer_alone() -> None:
    trace = Trace(
        [
            span("LD", "PE", 2, 7, ("LA", "PE"), ("LR", "PE")),
            span("LR", "PR", 7, 8, ("LA", "PE"), ("LR", "PE")),
            span("LR", "PE", 1, 9, ("LA", "PE")),
            span("LR", "PIO", 0, 1, ("LA", "PE")),
            span("LA", "PE", 0, 10),
        ]
    )
    assert totals(trace)["LR"] == {"PE": 9000, "PR": 1000, "PIO": 1000}
    rows = summary(trace)
    assert [rows[layer]["PE"] for layer in ("LA", "LR", "LD", "LC", "total")] == [1000, 4000, 5000, 0, 10000]
    assert [rows["LR"][part] for part in ("PIO", "compute", "PR")] == [1000, 2000, 1000]
    assert summary(trace, self_times=False)["total"]["PE"] == 10000


def test_driver_and_cpu_share_a_run() -> None:
    trace = Trace([span("LD", "PE", 1, 2, ("LR", "PE")), span("LC", "PE", 2, 4, ("LR", "PE")), span("LR", "PE", 0, 5)])
    rows = summary(trace)
    assert [rows[layer]["PE"] for layer in ("LR", "LD", "LC", "total")] == [2000, 1000, 2000, 5000]


def test_marks_within_their_like_are_details() -> None:
    trace = Trace([span("LR", "PC", 1, 2, ("LR", "PC")), span("LR", "PC", 0, 3)])
    assert summary(trace)["LR"]["PC"] == 3000


def test_the_table() -> None:
    trace = Trace([span("LC", "PE", 0.25, 0.75, ("LR", "PE")), span("LR", "PE", 0, 1), span("LR", "PC", 1, 1.5)])
    lines = table(summary(trace)).splitlines()
    assert lines[0] == "NNAPI timing summary (self-times, ms wall-clock)"
    assert [line.split()[0] for line in lines[3:]] == ["Application", "Runtime", "IPC", "Driver", "CPU", "Total", "*"]
    assert lines[4].split() == ["Runtime", "-", "-", "500.00", "-", "500.00", "-", "500.00", "-", "1000.00"]
    assert lines[7].split() == ["CPU", "-", "-", "-", "n/a", "n/a", "n/a", "500.00", "-", "500.00"]
    assert "CPU" not in table(summary(Trace([span("LR", "PE", 0, 1)])))


def test_marks_are_written_in_the_order_of_time() -> None:
    lines = Trace([span("LD", "PE", 1e-6, 2e-6), span("LR", "PE", 0, 3e-6)]).ftrace().splitlines()[4:]
    marks = ["B|1|[NN_LR_PE]f", "B|1|[NN_LD_PE]f", "E|1", "E|1"]
    ends = [f" .... 0.00000{at}: tracing_mark_write: {mark}" for at, mark in enumerate(marks)]
    assert all(line.endswith(end) for line, end in zip(lines, ends, strict=True))
