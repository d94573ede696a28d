"""Runs of a model: the numpy backend against onnxruntime with all its optimizations, in one process.

python tests/bench/run.py [MODEL ...] [--runs N] [--threads N]

Prints medians of CPU time of runs taken in turn, their ratio, and the same for loading a model and running it once. With several
threads it is the time on the clock, and onnxruntime's threads do not spin between runs: they would take the other side's cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

from ortconv.compare.feeds import first_run
from ortconv.runtime.session import Session

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"


def theirs(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def in_turn(functions: list[Callable[[], Any]], runs: int, clock: Callable[[], float]) -> list[float]:
    """Medians of seconds."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(runs):
        for function, own in zip(functions, times, strict=True):
            start = clock()
            function()
            own.append(clock() - start)
    return [statistics.median(own) for own in times]


def compare(model: Path, runs: int, threads: int) -> tuple[float, float]:
    """One line of the table; the ratios of a run and of a first run."""
    feeds, _ = first_run(Session(model))
    clock = time.process_time if threads == 1 else time.perf_counter
    loaders: list[Callable[[], Any]] = [lambda: Session(model, threads=threads), lambda: theirs(model, threads)]
    sessions = [load() for load in loaders]
    for _ in range(3):
        for session in sessions:
            session.run(None, feeds)
    run, their_run = in_turn([lambda s=s: s.run(None, feeds) for s in sessions], runs, clock)
    first, their_first = in_turn([lambda m=m: m().run(None, feeds) for m in loaders], max(3, runs // 10), clock)
    print(
        f"{model.stem:36}{run * 1e3:9.2f} ms {their_run * 1e3:9.2f} ms   x{run / their_run:.2f}"
        f"   {first * 1e3:9.1f} ms {their_first * 1e3:9.1f} ms   x{first / their_first:.2f}",
        flush=True,
    )
    return run / their_run, first / their_first


def main() -> None:
    parser = argparse.ArgumentParser(description="The numpy backend against onnxruntime.")
    parser.add_argument("models", nargs="*", type=Path, default=sorted(SAMPLES.glob("*.onnx")))
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(f"{'model':36}{'numpy':>12} {'theirs':>12}   ratio   {'numpy first':>12} {'theirs':>12}   ratio")
    ratios = [compare(model, options.runs, options.threads) for model in options.models]
    run, first = (statistics.geometric_mean(r) for r in zip(*ratios, strict=True))
    print(f"geometric means: x{run:.2f} for a run, x{first:.2f} for loading and the first run")


if __name__ == "__main__":
    main()
