"""What the benchmarks share: the cost of whole processes, models to measure, tables."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "sample_models").glob("*.onnx"))
ORTCONV = [sys.executable, "-m", "ortconv"]
CONVERT = [*ORTCONV, "convert", "--quiet", "--output-dir"]
TOOL = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort", "--optimization_style", "Fixed"]


WATCH = """
import os, sys
silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
"""Starts a process and prints what it took. It is small itself: the peak memory of a process includes that of its parent."""


class Cost(NamedTuple):
    """What a process took: seconds of the CPU, peak memory in MB, exit code."""

    seconds: float
    memory: float
    code: int = 0


def cost(command: Sequence[str], *, may_fail: bool = False) -> Cost:
    """The cost of a process, whose output is thrown away."""
    done = subprocess.run([sys.executable, "-S", "-c", WATCH, *command], stdout=subprocess.PIPE, check=True)
    seconds, memory, code = map(float, done.stdout.split())
    if code and not may_fail:
        sys.exit(f"failed: {' '.join(command)}")
    return Cost(seconds, memory / 1024, int(code))


def in_turn(commands: Mapping[str, Sequence[str]], runs: int) -> dict[str, Cost]:
    """The medians of several processes that run in turn, so that a load on the machine hits all of them."""
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            found[name].append(cost(command))
    return {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in found.items()}


def medians(functions: Sequence[Callable[[], object]], runs: int, clock: Callable[[], float]) -> list[float]:
    """The medians of the seconds that functions take, called in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(runs):
        for function, own in zip(functions, times, strict=True):
            start = clock()
            function()
            own.append(clock() - start)
    return [statistics.median(own) for own in times]


def row(*cells: str) -> None:
    """Print a line of a table, whose first column has names."""
    print(f"{cells[0][:34]:34}" + "".join(f"{cell:>13}" for cell in cells[1:]), flush=True)


def summary(what: str, ratios: Sequence[float], goal: float) -> None:
    """Print what ratios come to."""
    mean = statistics.geometric_mean(ratios)
    print(f"{what}: geometric mean x{mean:.2f}, worst x{max(ratios):.2f}; goal x{goal:g}", flush=True)
