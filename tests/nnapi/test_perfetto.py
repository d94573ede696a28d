"""System traces of Perfetto: the marks in them are those of the text."""

from __future__ import annotations

import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from test_systrace import CASES

from ortconv.cli import main
from ortconv.errors import FormatError, UsageError
from ortconv.nnapi.tracing.perfetto import is_perfetto
from ortconv.nnapi.tracing.systrace import read_trace
from ortconv.nnapi.tracing.timing import totals


def number(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(at: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return number(at << 3) + number(value)
    return number(at << 3 | 2) + number(len(value)) + value


def event(mark: str) -> bytes:
    """An event from "TIME THREAD B NAME" or "TIME THREAD E", with fields that do not matter."""
    at, thread, kind, *name = mark.split(maxsplit=3)
    process = int(thread) // 100 * 100
    text = f"B|{process}|{name[0]}\n" if kind == "B" else f"E|{process}\n"
    printed = field(1, 1 << 63) + field(2, text.encode())
    return field(1, int(at) * 10**9) + field(2, int(thread)) + number(5 << 3 | 5) + bytes(4) + field(3, printed)


SWITCH = field(1, 7) + field(2, 1) + field(4, field(1, b"swapper"))
"""An event of the scheduler."""


def packet(*events: bytes, lost: bool = False) -> bytes:
    bundle = field(1, 3) + b"".join(field(2, one) for one in events) + (field(3, 1) if lost else b"")
    return field(1, field(8, 10**15) + field(1, bundle))


def trace(*marks: str, deflated: bool = False) -> bytes:
    """A trace with a packet for each thread, those of later threads first."""
    by_thread: dict[str, list[bytes]] = {}
    for mark in marks:
        by_thread.setdefault(mark.split()[1], []).append(event(mark))
    packets = packet(SWITCH) + b"".join(
        packet(*by_thread[thread], SWITCH) for thread in sorted(by_thread, reverse=True)
    )
    return field(1, field(50, zlib.compress(packets))) if deflated else field(1, field(6, b"clocks")) + packets


def written(tmp_path: Path, content: bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_marks_are_those_of_the_text(case: str, deflated: bool, tmp_path: Path) -> None:
    marks, expected = CASES[case]
    (found,) = read_trace(written(tmp_path, trace(*marks, deflated=deflated))).runs
    rows = totals(found.trace).items()
    assert {f"{layer}_{phase}": ms / 1e3 for layer, row in rows for phase, ms in row.items() if ms} == expected


MARKS = ("1 100 B [NN_LR_PE]f", "2 100 E")


def test_lost_events_are_counted(tmp_path: Path) -> None:
    content = trace(*MARKS) + packet(lost=True) + packet() + packet(lost=True)
    assert read_trace(written(tmp_path, content)).lost == 2


def test_a_trace_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no marks of NNAPI"):
        read_trace(written(tmp_path, packet(SWITCH)))


DAMAGED = {
    "a field that is cut": (trace(*MARKS) + field(1, number(1 << 3 | 2) + b"\x7fabc"), "ends within a field"),
    "an unknown wire type": (trace(*MARKS) + field(1, number(9 << 3 | 3)), "unknown wire type 3"),
    "a number that is cut": (trace(*MARKS) + field(1, b"\xff\xff"), "ends within a number"),
    "no deflated data": (field(1, field(50, b"nothing")), "deflated packets cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_traces(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, message = DAMAGED[name]
    path = written(tmp_path, content)
    with pytest.raises(FormatError, match=message):
        read_trace(path)
    assert main(["nnapi", "trace", str(path)]) == 3
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_is_an_error_or_a_trace(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    content = bytearray(trace(*CASES["a layer below"][0], deflated=bool(seed % 2)))
    for _ in range(1 + seed % 3):
        content[rng.integers(1, len(content))] = rng.integers(256)
    path = written(tmp_path, bytes(content[: rng.integers(len(content) // 2, len(content) + 1)]))
    with suppress(FormatError, UsageError):
        assert read_trace(path).runs


@pytest.mark.parametrize(
    ("content", "expected"),
    [(trace(*MARKS), True), (b"\n# tracer: nop\n#\n", False), (b"\n", False), (b"", False), (b"<html>", False)],
)
def test_text_is_not_taken_for_packets(content: bytes, expected: bool) -> None:
    assert is_perfetto(content) == expected
