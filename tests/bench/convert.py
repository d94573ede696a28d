"""Whole processes: `ortconv convert --no-validate` against onnxruntime's own conversion tool, on the same models.

python tests/bench/convert.py [MODEL.onnx ...] [--runs N]

Prints wall seconds (medians of runs taken in turn), their ratio, and the ratio of peak memory; then how often the optimizer tries a
rule at a node, over the nodes of the model: a number that does not depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ortconv.models import load
from ortconv.optimizer.engine import Context
from ortconv.pipeline import optimize

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
OURS = [sys.executable, "-m", "ortconv", "convert", "--no-validate", "--quiet", "--output-dir"]
THEIRS = [
    sys.executable,
    "-m",
    "onnxruntime.tools.convert_onnx_models_to_ort",
    "--optimization_style",
    "Fixed",
    "--output_dir",
]


def measure(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak memory in MB of one process."""
    start = time.perf_counter()
    silence = os.open(os.devnull, os.O_WRONLY)
    streams = [(os.POSIX_SPAWN_DUP2, silence, 1), (os.POSIX_SPAWN_DUP2, silence, 2)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=streams)
    _, status, usage = os.wait4(pid, 0)
    os.close(silence)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def compare(model: Path, runs: int) -> tuple[float, float]:
    """One line of the table; the ratios of time and memory."""
    rows: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for _ in range(runs):
        for name, command in (("ours", OURS), ("theirs", THEIRS)):
            with tempfile.TemporaryDirectory() as folder:
                rows[name].append(measure([*command, folder, str(model)]))
    (seconds, memory), (their_seconds, their_memory) = (
        map(statistics.median, zip(*rows[n])) for n in ("ours", "theirs")
    )
    print(
        f"{model.stem:36}{seconds:7.2f} s {their_seconds:7.2f} s   x{seconds / their_seconds:.2f}"
        f"   {memory:6.0f} MB {their_memory:6.0f} MB   x{memory / their_memory:.2f}",
        flush=True,
    )
    return seconds / their_seconds, memory / their_memory


def tries(model: Path) -> float:
    """How often a rule is tried, over the nodes of a model."""
    loaded, context = load(model), Context()
    nodes = sum(1 for _ in loaded.graph.walk())
    optimize(loaded, context=context)
    return context.tried / max(1, nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description="ortconv convert against onnxruntime's conversion tool.")
    parser.add_argument("models", nargs="*", type=Path, default=sorted(SAMPLES.glob("*.onnx")))
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(f"{'model':36}{'ortconv':>9} {'theirs':>9}   ratio {'ortconv':>9} {'theirs':>9}   ratio")
    ratios = [compare(model, options.runs) for model in options.models]
    times = statistics.geometric_mean([t for t, _ in ratios])
    print(
        f"time: geometric mean x{times:.2f}, worst x{max(t for t, _ in ratios):.2f}; memory: worst x{max(m for _, m in ratios):.2f}"
    )

    for model in options.models:
        print(f"{model.stem:36}{tries(model):7.2f} rules tried per node")


if __name__ == "__main__":
    main()
