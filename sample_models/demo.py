"""The whole job on the digit model: convert it for NNAPI, run the result on every backend, compare both with the source.

python sample_models/demo.py [--out DIR]
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ortconv

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "mnist.onnx"
if SOURCE.is_relative_to(Path.cwd()):
    SOURCE = SOURCE.relative_to(Path.cwd())
BACKENDS = "numpy", "onnxruntime", "nnapi"
LARGEST_DIFFERENCE = 1e-5  # of the largest score
LEAST_ACCURACY = 0.97

Array = np.ndarray[Any, np.dtype[Any]]


def command(*arguments: str | Path) -> None:
    """Shows an ortconv command line and runs it."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ ortconv {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "ortconv", *words], check=True)


def scores(model: Path, backend: str, images: Array) -> Array:
    """[N, 10]: the model has batch 1, so one run per image."""
    session = ortconv.Session(str(model), backends=[backend])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: image[None]})[0] for image in images])


def compare(model: Path, images: Array, labels: Array) -> bool:
    """One line per model and backend; True if all agree with the source and are right often enough."""
    reference = scores(SOURCE, "onnxruntime", images)
    rows = [(SOURCE, "onnxruntime", reference)]
    rows += [(model, backend, scores(model, backend, images)) for backend in BACKENDS]
    print(f"\n{'model':28}{'backend':14}{'right':>12}{'largest difference from the source':>38}")
    good = True
    for path, backend, got in rows:
        right = int((got.argmax(axis=1) == labels).sum())
        difference = float(np.abs(got - reference).max() / np.abs(reference).max())
        good = good and difference <= LARGEST_DIFFERENCE and right >= LEAST_ACCURACY * len(labels)
        print(f"{path.name:28}{backend:14}{f'{right} of {len(labels)}':>12}{difference:>38.1e}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description="Convert the digit model, run it on every backend, compare.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the results go")
    out = parser.parse_args().out
    with np.load(HERE / "mnist_test.npz") as test:
        images, labels = test["images"].astype(np.float32), test["labels"]

    command("convert", SOURCE, "--use-nnapi", "--optimization-level", "extended", "-o", out)
    model, feeds = out / "mnist.extended.ort", out / "mnist_feeds.npz"
    np.savez(feeds, Input3=images[:1])
    for backend in BACKENDS:
        command("run", model, "--inputs", feeds, "--save", out / f"mnist_{backend}.npz", "--backend", backend)

    if compare(model, images, labels):
        print("\nThe converted model computes what its source computes.")
        return 0
    print("\nThe converted model differs from its source, or is wrong too often.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
