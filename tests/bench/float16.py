"""float16 against float32: size, error, latency in onnxruntime on this machine, and what accelerators take.

python tests/bench/float16.py MODEL ...

Prints a row of Markdown for each model. The latency is that of the float16 file over that of the float32 file, with its interval.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ortconv
from ortconv.partition import Target
from ortconv.pipeline.analysis import analyze
from ortconv.tuning.intervals import Interval

ONLY = {
    "level": ("all",), "style": ("Fixed",), "aware": ("none",), "platform": ("any",), "ort": ("default",), "float16": ("no", "yes"),
    "threads": ("1",), "direct": ("no",),
}  # fmt: skip
HEAD = "| model | size | nodes in float16 | Casts | error | latency | interval | NNAPI | CoreML |"


def coverage(model: Path, folder: Path, target: Target, **settings: Any) -> str:
    """Nodes that a target takes of the float32 and of the float16 file, each converted for the target."""
    found = []
    for narrow in (False, True):
        file = folder / "aware.ort"
        ortconv.convert(model, file, float16=narrow, validate=False, **settings)
        partitioning = analyze(file, target).partitioning
        found.append(f"{partitioning.taken} of {partitioning.total}")
    return " -> ".join(found)


def compare(model: Path) -> str:
    """The row of a model."""
    with TemporaryDirectory() as folder:
        found = ortconv.tune(model, only=ONLY, exhaustive=True, output_dir=folder)
        rows = {row.form.float16: row for row in found.rows}
        half, plain = rows["yes"], rows["no"]
        if half.error is not None or half.measured is None or plain.measured is None:
            return f"| {model.stem} | {half.error} |"
        done: Any = ortconv.convert(model, Path(folder, "again.ort"), float16=True, validate=False).float16
        place = Path(folder)
        cells = (
            model.stem,
            f"{half.measured.bytes / plain.measured.bytes:.2f}",
            f"{done.nodes} of {done.nodes + done.kept}",
            done.casts,
            f"{half.scaled:.1e}",
            *_ratio(half.measured.latency, plain.measured.latency),
            coverage(model, place, Target("nnapi"), use_nnapi=True),
            coverage(
                model, place, Target("coreml", coreml_format="MLProgram"), use_coreml=True, coreml_format="MLProgram"
            ),
        )
    return f"| {' | '.join(map(str, cells))} |"


def _ratio(half: Interval, plain: Interval) -> tuple[str, str]:
    assert None not in (half.low, half.high)
    return f"{half.ratio / plain.ratio:.2f}", f"{half.low / plain.ratio:.2f} to {half.high / plain.ratio:.2f}"  # type: ignore[operator]


def main() -> None:
    parser = argparse.ArgumentParser(description="float16 against float32.")
    parser.add_argument("models", nargs="+", type=Path)
    options = parser.parse_args()
    print(HEAD, "|---" * HEAD.count(" | ") + "|---|", sep="\n", flush=True)
    for model in options.models:
        print(compare(model), flush=True)
    print("load average at the end:", os.getloadavg()[0])


if __name__ == "__main__":
    main()
