"""First answers: loading a model and running it once, against onnxruntime.

python tests/bench/first.py [MODEL ...] [--runs N]

CPU time, medians of runs taken in turn: of loading and a first run in one process, and of a whole process, `ortconv run` against a
script of three lines. Both get the same inputs, and use one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from _processes import ORTCONV, SAMPLES, in_turn, medians, row, summary

from ortconv.inputs.candidates import first_run
from ortconv.process import take_over
from ortconv.runtime.session import Session

SCRIPT = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
onnxruntime.InferenceSession(sys.argv[1], options).run(None, dict(numpy.load(sys.argv[2])))
"""


def theirs(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compare(model: Path, runs: int) -> tuple[float, float]:
    """One line of the table; the ratios of a first answer and of a process."""
    feeds, _ = first_run(Session(model))
    both = [lambda: Session(model).run(None, feeds), lambda: theirs(model).run(None, feeds)]
    first, their_first = medians(both, runs, time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "feeds.npz"
        np.savez(path, **feeds)
        commands = {
            "ours": [*ORTCONV, "run", "--quiet", str(model), "--inputs", str(path)],
            "theirs": [sys.executable, "-c", SCRIPT, str(model), str(path)],
        }
        found = in_turn(commands, runs)
    process, their_process = found["ours"].seconds, found["theirs"].seconds
    cells = (f"{first * 1e3:.1f} ms", f"{their_first * 1e3:.1f} ms", f"x{first / their_first:.2f}")
    ends = (f"{process * 1e3:.0f} ms", f"{their_process * 1e3:.0f} ms", f"x{process / their_process:.2f}")
    row(model.stem, *cells, *ends)
    return first / their_first, process / their_process


def main() -> None:
    parser = argparse.ArgumentParser(description="Loading and a first run, against onnxruntime.")
    parser.add_argument("models", nargs="*", type=Path, default=SAMPLES)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    take_over()
    row("model", "first", "theirs", "", "process", "theirs", "")
    ratios = zip(*(compare(model, options.runs) for model in options.models), strict=True)
    for what, found, goal in zip(("load and first run", "whole process"), ratios, (1.3, 1.2), strict=True):
        summary(what, found, goal)


if __name__ == "__main__":
    main()
