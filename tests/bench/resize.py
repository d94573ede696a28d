"""Resize with channels last in onnxruntime: its time over that of a Resize with channels first between two Transposes.

python tests/bench/resize.py [--rounds N]

One thread; CPU time, tenth percentiles of runs in turn. "*" marks the forms that ortconv puts in place of the three nodes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from _latency import seconds, session
from _processes import row

from ortconv import convert, load

CHANNELS = (2, 3, 4, 6, 8, 16, 32, 64)
PIXELS = (8, 32, 96)
SCALES = (2.0, 1.5, 0.5)
KINDS = {
    "linear": 'mode = "linear"',
    "linear, antialias": 'mode = "linear", antialias = 1',
    "nearest, half_pixel": 'mode = "nearest"',
    "nearest, asymmetric": 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
    "cubic, antialias": 'mode = "cubic", antialias = 1',
}

FIRST = """t = Transpose <perm = [0, 3, 1, 2]> (x) r = Resize <{attributes}> (t, , scales)
    y = Transpose <perm = [0, 2, 3, 1]> (r)"""
LAST = "y = Resize <{attributes}> (x, , scales)"


def model(body: str, size: int, channels: int, scales: str, made: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[1,{size},{size},{channels}] x)
        => (float[1,{made},{made},{channels}] y) <float[4] scales = {{{scales}}}> {{ {body} }}"""
    )


def ratio(attributes: str, size: int, channels: int, scale: float, rounds: int) -> str:
    """The time with channels last over that between Transposes, marked if ortconv chooses it."""
    forms = ((FIRST, f"1, 1, {scale}, {scale}"), (LAST, f"1, {scale}, {scale}, 1"))
    first, last = (
        model(body.format(attributes=attributes), size, channels, scales, int(size * scale)) for body, scales in forms
    )
    feeds = {"x": np.random.default_rng(0).standard_normal((1, size, size, channels), np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        chosen = Path(folder, "chosen.ort")
        convert(first, chosen, validate=False)
        mark = " *" if len(load(chosen).graph) == 1 else ""
    before, after = seconds([session(first), session(last)], feeds, rounds)
    return f"{after / before:.2f}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Resize with channels last over Resize between Transposes.")
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    for kind, attributes in KINDS.items():
        for scale in SCALES:
            row(f"{kind}, scale {scale}", *(f"{c} channels" for c in CHANNELS))
            for size in PIXELS:
                row(f"{size} x {size}", *(ratio(attributes, size, c, scale, rounds) for c in CHANNELS))


if __name__ == "__main__":
    main()
