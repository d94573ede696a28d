"""Conversions against onnxruntime's own tool, on the same models.

python tests/bench/convert.py [MODEL.onnx ...] [--runs N]

CPU time, medians of runs taken in turn: of a further conversion in one process (warm), of a whole process without validation, and
of one with it; each over the tool's time, which validates nothing. The floor is a process that only imports numpy, click and
onnx's messages, lets onnx infer the types, and writes them. Peak memory of the process without validation. Last, how often the
optimizer tries a rule at a node: a number that does not depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from _processes import CONVERT, SAMPLES, TOOL, in_turn, medians, row, summary
from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

from ortconv import convert
from ortconv.models import load
from ortconv.optimizer.engine import apply
from ortconv.pipeline import optimize
from ortconv.process import take_over

FLOOR = """
import sys, click, numpy
from ortconv.onnxlib import infer_shapes
from ortconv.onnxproto import ModelProto
message = open(sys.argv[1], "rb").read()
ModelProto.FromString(message)
open(sys.argv[2], "wb").write(infer_shapes(message, data_prop=True))
"""


def warm(model: Path, folder: Path, runs: int) -> tuple[float, float]:
    """Seconds of a conversion in this process, which has done another one before, and those of the tool."""

    def ours() -> None:
        convert(model, folder / "ours.ort", validate=False)

    def theirs() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            convert_onnx_models_to_ort(model, folder / "theirs", optimization_styles=[OptimizationStyle.Fixed])

    ours(), theirs()
    seconds, their_seconds = medians([ours, theirs], runs, time.process_time)
    return seconds, their_seconds


def tries(model: Path) -> float:
    """How often a rule is tried, over the nodes of a model."""
    loaded = load(model)
    nodes = sum(1 for _ in loaded.graph.walk())
    with mock.patch("ortconv.optimizer.passes.apply", wraps=apply) as tried:
        optimize(loaded)
    return tried.call_count / max(1, nodes)


def compare(model: Path, runs: int) -> tuple[float, ...]:
    """One line of the table; the ratios of time and memory, and the rules tried per node."""
    with tempfile.TemporaryDirectory() as name:
        seconds, their_seconds = warm(model, Path(name), runs)
        commands = {
            "tool": [*TOOL, "--output_dir", name, str(model)],
            "ours": [*CONVERT, name, "--no-validate", str(model)],
            "validated": [*CONVERT, name, str(model)],
            "floor": [sys.executable, "-c", FLOOR, str(model), f"{name}/inferred.onnx"],
        }
        found = in_turn(commands, runs)
    tool, ours, validated = found["tool"], found["ours"], found["validated"]
    ratios = (
        seconds / their_seconds,
        ours.seconds / tool.seconds,
        validated.seconds / tool.seconds,
        found["floor"].seconds / tool.seconds,
        ours.memory / tool.memory,
    )
    count = tries(model)
    cells = (f"{their_seconds * 1e3:.1f} ms", f"{tool.seconds:.3f} s", f"{tool.memory:.0f} MB")
    row(model.stem, *cells, *(f"x{ratio:.2f}" for ratio in ratios), f"{count:.2f}")
    return (*ratios, count)


def main() -> None:
    parser = argparse.ArgumentParser(description="ortconv convert against onnxruntime's conversion tool.")
    parser.add_argument("models", nargs="*", type=Path, default=SAMPLES)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    take_over()
    logging.disable(logging.CRITICAL)
    row("model", "tool warm", "process", "memory", "warm", "process", "validated", "floor", "memory", "tries/node")
    found = list(zip(*(compare(model, options.runs) for model in options.models), strict=True))
    for what, ratios, goal in zip(("warm", "whole process", "with validation"), found, (0.5, 0.6, 2.0), strict=False):
        summary(what, ratios, goal)
    print(f"floor: geometric mean x{statistics.geometric_mean(found[3]):.2f}")
    print(f"rules tried per node: {max(found[-1]):.2f} at most")


if __name__ == "__main__":
    main()
