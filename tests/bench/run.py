"""Runs of a model: the numpy backend against onnxruntime with all its optimizations, in one process.

python tests/bench/run.py [MODEL ...] [--runs N] [--threads N]

Prints medians of CPU time of runs taken in turn, and their ratio. With several threads it is the time on the clock, and
onnxruntime's threads do not spin between runs: they would take the other side's cores.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import onnxruntime
from _processes import SAMPLES, medians, row, summary

from ortconv.compare.feeds import first_run
from ortconv.process import take_over
from ortconv.runtime.session import Session


def theirs(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compare(model: Path, runs: int, threads: int) -> float:
    """One line of the table; the ratio."""
    ours = Session(model, threads=threads)
    feeds, _ = first_run(ours)
    sessions = (ours, theirs(model, threads))
    for session in sessions * 3:
        session.run(None, feeds)
    clock = time.process_time if threads == 1 else time.perf_counter
    run, their_run = medians([lambda s=s: s.run(None, feeds) for s in sessions], runs, clock)
    row(model.stem, f"{run * 1e3:.2f} ms", f"{their_run * 1e3:.2f} ms", f"x{run / their_run:.2f}")
    return run / their_run


def main() -> None:
    parser = argparse.ArgumentParser(description="The numpy backend against onnxruntime.")
    parser.add_argument("models", nargs="*", type=Path, default=SAMPLES)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    take_over()
    row("model", "numpy", "theirs", "")
    summary("a run", [compare(model, options.runs, options.threads) for model in options.models], 1.3)


if __name__ == "__main__":
    main()
