"""Latency of whole models in onnxruntime: ortconv's file over that of onnxruntime's own tool.

python tests/bench/latency.py [MODEL.onnx ...] [--rounds N] [--level LEVEL] [--dim NAME=SIZE ...]

One thread; CPU time, tenth percentiles of runs in turn. --dim gives a size to a symbolic dimension in the inputs of the runs, such
as the past of a decoder; the converted files keep the dimension.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from _latency import seconds, session
from _processes import SAMPLES, row, summary
from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

from ortconv import convert
from ortconv.inputs.candidates import first_run
from ortconv.models import load
from ortconv.process import take_over
from ortconv.runtime.session import Session


def compare(model: Path, dims: Mapping[str, int], level: str, rounds: int) -> float:
    """One line of the table; the ratio."""
    source = load(model, dims)
    feeds, _ = first_run(Session(source))
    # A file of onnxruntime's tool may require inputs whose default values it folded.
    feeds |= {name: v.const.numpy() for name, v in source.graph.initializers.items() if v.const is not None}
    with tempfile.TemporaryDirectory() as name:
        folder, ours = Path(name), Path(name, "ours.ort")
        convert(model, ours, validate=False, optimization_level=level)
        with contextlib.redirect_stdout(io.StringIO()):
            convert_onnx_models_to_ort(model, folder, optimization_styles=[OptimizationStyle.Fixed])
        paths = (folder / f"{model.stem}.ort", ours)
        theirs, own = seconds([session(path) for path in paths], feeds, rounds)
        counts = [sum(1 for _ in load(path).graph.walk()) for path in paths]
    row(model.stem, *map(str, counts), f"{theirs * 1e3:.2f} ms", f"{own * 1e3:.2f} ms", f"x{own / theirs:.2f}")
    return own / theirs


def size(text: str) -> tuple[str, int]:
    name, number = text.split("=")
    return name, int(number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of converted models in onnxruntime.")
    parser.add_argument("models", nargs="*", type=Path, default=SAMPLES)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--level", default="all")
    parser.add_argument("--dim", dest="dims", action="append", type=size, default=[], metavar="NAME=SIZE")
    options = parser.parse_args()
    take_over()
    logging.disable(logging.CRITICAL)
    row("model", "their nodes", "our nodes", "theirs", "ours", "")
    ratios = [compare(model, dict(options.dims), options.level, options.rounds) for model in options.models]
    summary("latency", ratios, 1)


if __name__ == "__main__":
    main()
