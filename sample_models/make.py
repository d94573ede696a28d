"""Writes the sample models beside this file; the same bytes on every run.

python sample_models/make.py            all of them; trains the digit model (about half a minute; needs scikit-learn)
python sample_models/make.py --check    rebuilds all but the trained weights and compares with the files that are here
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import bert
import control_flow
import mnist
import mobilenet_v2
import numpy as np
import qdq_cnn
from builder import Array, weights_of

HERE = Path(__file__).resolve().parent
MNIST, MNIST_TEST = HERE / "mnist.onnx", HERE / "mnist_test.npz"
LEAST_ACCURACY = 0.97
MODELS: dict[str, Callable[[], bytes]] = {
    "mobilenet_v2_small.onnx": mobilenet_v2.build,
    "bert_tiny.onnx": bert.build,
    "qdq_cnn.onnx": qdq_cnn.build,
    "if_branch.onnx": control_flow.if_branch,
    "loop_accumulate.onnx": control_flow.loop_accumulate,
}


def test_set_bytes(pixels: Array, labels: Array) -> bytes:
    """Uncompressed, because compressed bytes depend on the zlib version."""
    buffer = io.BytesIO()
    np.savez(buffer, images=pixels, labels=labels)
    return buffer.getvalue()


def too_wrong(accuracy: float) -> str | None:
    """Why this accuracy is not enough, or None."""
    if accuracy > LEAST_ACCURACY:
        return None
    return f"{MNIST.name} is right on {accuracy:.1%} of its test images; more than {LEAST_ACCURACY:.0%} are required"


def write() -> None:
    for name, build in MODELS.items():
        (HERE / name).write_bytes(build())
    weights, pixels, labels = mnist.train()
    accuracy = mnist.accuracy(weights, pixels, labels)
    if reason := too_wrong(accuracy):
        sys.exit(reason)
    MNIST.write_bytes(mnist.build(weights))
    MNIST_TEST.write_bytes(test_set_bytes(pixels, labels))
    for path in sorted(HERE.glob("*.onnx")):
        print(f"{path.name:28}{path.stat().st_size:>9,} bytes")
    print(f"test accuracy of {MNIST.name}: {accuracy:.1%} of {len(labels)} images")


def differences() -> list[str]:
    """What is wrong with the files that are here, one sentence each."""
    weights = weights_of(MNIST)
    pixels, labels = mnist.read_test_set(MNIST_TEST)
    builders: dict[str, Callable[[], bytes]] = {**MODELS, MNIST.name: lambda: mnist.build(weights)}
    found = [
        f"{name} differs from what make.py builds"
        for name, build in builders.items()
        if (HERE / name).read_bytes() != build()
    ]
    if reason := too_wrong(mnist.accuracy(weights, pixels, labels)):
        found.append(reason)
    if contents(MNIST_TEST.read_bytes()) != contents(test_set_bytes(pixels, labels)):
        found.append(f"{MNIST_TEST.name} differs from what make.py writes")
    return found


def contents(archive: bytes) -> dict[str, bytes]:
    """The files of a zip archive, whose own bytes depend on the zlib at hand."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the sample models, or check them.")
    parser.add_argument("--check", action="store_true", help="compare the files that are here; no training")
    if not parser.parse_args().check:
        write()
        return 0
    found = differences()
    print("\n".join(found) or "all sample models are what make.py builds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
