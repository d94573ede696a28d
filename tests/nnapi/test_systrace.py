"""System traces of phones: which marks count, for which layer and phase."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nnapi_models import chain, compiled, run

from ortconv.errors import UsageError
from ortconv.nnapi import Operation
from ortconv.nnapi.tracing import timing
from ortconv.nnapi.tracing.systrace import PhoneTrace, read_trace
from ortconv.nnapi.tracing.timing import executions, per_execution, summary, totals
from tests.batches import slow_except

HEAD = "<script>\n# tracer: nop\n#           TASK-PID    TGID   CPU#  ||||    TIMESTAMP  FUNCTION\n"
CREATE, COMPUTE = "[NN_LR_PE]ANeuralNetworksExecution_create", "[NN_LR_PE]ANeuralNetworksExecution_compute"
START, WAIT = "[NN_LR_PE]ANeuralNetworksExecution_startCompute", "[NN_LR_PE]ANeuralNetworksEvent_wait"
DRIVER = ("1 200 B HIDL::IDevice::getCapabilities::server", "2 200 E")


def lines(*marks: str) -> str:
    """Marks as systrace writes them, from "TIME THREAD B NAME" or "TIME THREAD E". Threads from 200 on are a driver's."""
    found = []
    for mark in marks:
        at, thread, kind, *name = mark.split(maxsplit=3)
        process = int(thread) // 100 * 100
        text = f"B|{process}|{name[0]}" if kind == "B" else f"E|{process}"
        found.append(
            f"  Binder:{process}_1-{thread}  ({process:5}) [002] ...1 {int(at):d}.000000: tracing_mark_write: {text}\n"
        )
    return HEAD + "".join(found)


def read(tmp_path: Path, *marks: str) -> PhoneTrace:
    path = tmp_path / "trace.html"
    path.write_text(lines(*marks) + "</script>")
    return read_trace(path)


def seconds(tmp_path: Path, *marks: str) -> dict[str, float]:
    """Seconds by layer and phase of a trace with one run, those that are not 0."""
    (found,) = read(tmp_path, *marks).runs
    return {f"{layer}_{p}": ms / 1e3 for layer, row in totals(found.trace).items() for p, ms in row.items() if ms}


CASES: dict[str, tuple[list[str], dict[str, float]]] = {
    "one mark": (["1 100 B [NN_LR_PP]f", "4 100 E"], {"LR_PP": 3}),
    "a layer below": (
        ["1 100 B [NN_LA_PP]a", "2 100 B [NN_LR_PP]f", "4 100 E", "9 100 E"],
        {"LA_PP": 8, "LR_PP": 2},
    ),
    "a switch of phase": (
        ["1 100 B [NN_LC_PTR]f", "3 100 B [SW][NN_LC_PCO]f", "8 100 E", "9 100 E"],
        {"LC_PTR": 2, "LC_PCO": 5, "LC_PE": 7},
    ),
    "parts count for the execution once": (
        ["1 100 B [NN_LR_PE]f", "2 100 B [NN_LC_PCO]g", "3 100 B [NN_LC_PCO]h", "4 100 E", "6 100 E", "9 100 E"],
        {"LR_PE": 8, "LC_PCO": 4, "LC_PE": 4},
    ),
    "initialization within another phase": (
        ["1 100 B [NN_LR_PC]f", "2 100 B [NN_LI_PI]g", "5 100 E", "9 100 E"],
        {"LR_PC": 5, "LI_PI": 3},
    ),
    "termination within the application's compilation": (
        ["1 100 B [NN_LA_PC]a", "2 100 B [NN_LR_PC]f", "4 100 E", "5 100 B [NN_LR_PT]g", "6 100 B [NN_LR_PT]h", "7 100 E",
         "8 100 E", "9 100 E"],
        {"LA_PC": 5, "LR_PC": 2, "LR_PT": 3},
    ),
    "time that a layer takes back": (
        ["1 100 B [NN_LI_PC]f", "2 100 B [NN_LI_PC]g", "3 100 B [SUB][NN_LR_PC]h", "5 100 E", "8 100 E", "9 100 E"],
        {"LI_PC": 6, "LR_PC": 2},
    ),
    "a utility has the phase around it": (
        ["1 100 B [NN_LR_PP]f", "2 100 B [NN_LU_PU]u", "3 100 B [NN_LR_PP]g", "4 100 E", "5 100 E", "9 100 E"],
        {"LR_PP": 8},
    ),
    "calls between processes": (
        ["1 100 B [NN_LR_PC]f", "2 100 B HIDL::IDevice::prepareModel_1_3::client",
         "3 200 B HIDL::IDevice::prepareModel_1_3::server",
         "6 200 E", "7 100 E", "9 100 E"],
        {"LR_PC": 8, "LI_PC": 5, "LD_PC": 3},
    ),
    "calls of AIDL": (
        ["1 100 B [NN_LI_PE]f", "2 100 B AIDL::ndk::IPreparedModel::executeSynchronously::client",
         "3 200 B AIDL::ndk::IDevice::getType::server", "4 200 E",
         "5 200 B AIDL::ndk::IPreparedModel::executeSynchronously::server", "7 200 E", "8 100 E", "9 100 E"],
        {"LI_PE": 8, "LD_PI": 1, "LD_PE": 2},
    ),
    "callbacks do not count": (
        [*DRIVER, "3 200 B HIDL::IPreparedModelCallback::notify_1_3::client", "4 200 E"],
        {"LD_PI": 1},
    ),
    "the process tells driver from CPU": (
        [*DRIVER, "3 200 B [NN_LC_PE]f", "5 200 E", "6 100 B [NN_LD_PE]g", "9 100 E"],
        {"LD_PI": 1, "LD_PE": 2, "LC_PE": 3},
    ),
    "a driver in the program's own process": (["3 100 B [NN_LD_PE]f", "5 100 E"], {"LD_PE": 2}),
    "an execution lasts until its event": (
        [f"1 100 B {START}", "2 100 E", "3 101 B [NN_LR_PE]run", "5 101 E", f"6 100 B {WAIT}", "8 100 E"],
        {"LR_PE": 7},
    ),
    "executions that overlap": (
        [f"1 100 B {START}", "2 100 E", f"3 100 B {START}", "4 100 E", f"5 100 B {WAIT}", "6 100 E", f"7 100 B {WAIT}", "9 100 E"],
        {"LR_PE": 8},
    ),
    "a driver calls back from a thread without other marks": (
        [*DRIVER, "3 200 B HIDL::IPreparedModel::execute::server", "4 200 E",
         "8 201 B HIDL::IExecutionCallback::notify::client", "9 201 E"],
        {"LD_PI": 1, "LD_PE": 5},
    ),
    "an execution whose event nobody waits for": ([f"1 100 B {START}", "2 100 E"], {"LR_PE": 1}),
    "a driver executes until it calls back": (
        [*DRIVER, "3 200 B HIDL::IPreparedModel::execute_1_2::server", "4 200 E", "5 201 B [NN_LD_PE]run",
         "8 201 B HIDL::IExecutionCallback::notify_1_2::client", "9 201 E", "10 201 E"],
        {"LD_PI": 1, "LD_PE": 5},
    ),
}  # fmt: skip
"""Marks, and the seconds by layer and phase."""


@pytest.mark.parametrize("case", CASES)
def test_which_marks_count(case: str, tmp_path: Path) -> None:
    marks, expected = CASES[case]
    assert seconds(tmp_path, *marks) == pytest.approx(expected)


def test_other_lines_change_nothing(tmp_path: Path) -> None:
    marks = ["1 100 B [NN_LA_PE]a", "2 100 B [NN_LR_PE]f", "6 100 E", "9 100 E"]
    mixed = lines(
        "1 100 E",
        "1 300 B HIDL::IServiceManager::get::client",
        "1 300 E",
        marks[0],
        "1 100 B draw",
        marks[1],
        "3 100 B HIDL::IComposer::flip::client",
        "4 100 E",
        marks[2],
        "7 100 E",
        marks[3],
        "9 100 E",
    )
    path = tmp_path / "trace"
    cut = "   task-100  (  100) [001] ...1 9.500000: tracing_mark_write: B|1"
    path.write_bytes(b"\xff\x00\n" + b"x" * 200_000 + b"\n" + mixed.replace("\n", "\r\n").encode() + cut.encode())
    (found,) = read_trace(path).runs
    assert totals(found.trace) == totals(read(tmp_path, *marks).runs[0].trace)
    assert found.unfinished == 0


def test_lines_without_processes(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    rows = (
        "1.5: tracing_mark_write: B|774|[NN_LR_PC][validate]",
        "2.5: tracing_mark_write: E|774",
        "3.0: sched_switch: x",
    )
    path.write_text("".join(f"   <...>-5149  {tgid} [000] ...1  {row}\n" for row in rows for tgid in ["(-----)"]))
    (dashed,) = read_trace(path).runs
    path.write_text("".join(f"   <...>-5149  [000] {row}\n" for row in rows))
    (left_out,) = read_trace(path).runs
    assert [(one.name, one.seconds) for one in dashed.trace.spans] == [("validate", 1.0)]
    assert left_out.trace.spans == dashed.trace.spans


def test_runs_begin_with_the_marks_of_the_program(tmp_path: Path) -> None:
    marks = ["1 100 B [NN_LA_PO]first", "2 100 B [NN_LR_PC]f", "4 100 E", "8 100 E"]
    again = ["11 100 B [NN_LA_PO]second", "12 100 B [NN_LR_PC]f", "13 100 E", "14 100 B [NN_LR_PE]f"]
    found = read(tmp_path, *marks, *again).runs
    assert [(one.name, one.unfinished, totals(one.trace)["LR"]["PC"]) for one in found] == [
        ("first", 0, 2000),
        ("second", 2, 1000),
    ]
    rows = summary(found[0].trace)
    assert (rows["LA"]["total"], rows["LR"]["total"], rows["total"]["total"]) == (5000, 2000, 7000)
    assert summary(found[0].trace, self_times=False)["LA"]["total"] == 7000


def test_layers_without_time_of_their_own(tmp_path: Path) -> None:
    (found,) = read(tmp_path, "1 100 B [NN_LA_PE]a", "2 100 B [NN_LI_PE]f", "4 100 E", "9 100 E").runs
    rows = summary(found.trace)
    assert [rows[layer]["PE"] for layer in ("LA", "LR", "LI", "total")] == [6000, 0, 2000, 8000]


def test_the_benchmark_counts_where_there_is_a_warm_up(tmp_path: Path) -> None:
    warm = ["1 100 B [NN_LA_PWU]w", f"2 100 B {CREATE}", "3 100 E", f"4 100 B {COMPUTE}", "5 100 E", "6 100 E"]
    timed = ["11 100 B [NN_LA_PBM]b", f"12 100 B {COMPUTE}", "14 100 E", f"15 100 B {COMPUTE}", "19 100 E", "20 100 E"]
    (both,) = read(tmp_path, *warm, *timed).runs
    assert executions(both.trace) == 3
    assert executions(both.benchmark) == 2
    rows = per_execution(summary(both.benchmark), 2)
    assert rows["LR"] == {"PIO": 0, "compute": 3000, "PR": 0, "PE": 3000, "percentage": 100}
    (one,) = read(tmp_path, *warm).runs
    assert one.benchmark is one.trace


def test_lost_events_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(lines("1 100 B [NN_LR_PE]f", "2 100 E") + "CPU:2 [LOST 345 EVENTS]\nCPU:3 [LOST 5 EVENTS]\n")
    assert read_trace(path).lost == 350


@pytest.mark.parametrize("content", ["", "no trace\n", lines("1 100 B HIDL::IServiceManager::get::client", "2 100 E")])
def test_a_file_without_marks_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(UsageError, match="no marks of NNAPI") as raised:
        read_trace(path)
    assert "category nnapi" in (raised.value.hint or "")


def test_traces_of_the_runtime_here_read_back(tmp_path: Path) -> None:
    with timing.tracing() as trace:
        run(compiled(chain(Operation.RELU)), np.arange(4, dtype=np.float32))
    path = tmp_path / "trace"
    path.write_text(trace.ftrace())
    (found,) = read_trace(path).runs
    assert len(found.trace.spans) == len(trace.spans)
    again, expected = summary(found.trace), summary(trace)
    assert {layer: row.keys() for layer, row in again.items()} == {layer: row.keys() for layer, row in expected.items()}
    assert again["LR"]["total"] == pytest.approx(expected["LR"]["total"], abs=0.1)
    assert executions(found.trace) == 1


@pytest.mark.parametrize("seed", slow_except(range(5), range(20)))
def test_damaged_traces_are_read_all_the_same(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    marks = [mark for marks, _ in CASES.values() for mark in marks]
    rows = [row + "\n" for row in lines(*marks).splitlines()]
    for _ in range(30):
        at, other = rng.integers(len(rows), size=2)
        match rng.integers(4):
            case 0:
                rows[at] = rows[at][: rng.integers(len(rows[at]) + 1)]
            case 1:
                rows[at], rows[other] = rows[other], rows[at]
            case 2:
                rows.insert(at, rows[other])
            case _:
                rows.pop(at)
    path = tmp_path / "trace"
    path.write_text("".join(rows))
    for one in read_trace(path).runs:
        assert all(value is None or value >= 0 for row in summary(one.trace).values() for value in row.values())
