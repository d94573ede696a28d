"""Random models near the rules' patterns at every level: onnxruntime takes the result, which computes what the source computes.

Every seed is one model, the same on every machine. `python -m tests.fuzz levels 0 20000` tries that many.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import graphs

FEW, SOME = 40, 480
"""Models of a quick run and of a usual one, in blocks that run side by side."""
BLOCK = 40


@pytest.mark.parametrize(
    "first", [*range(0, FEW, BLOCK), *(pytest.param(i, marks=pytest.mark.slow) for i in range(FEW, SOME, BLOCK))]
)
def test_few(first: int) -> None:
    outcomes = {seed: graphs.examine_levels(seed) for seed in range(first, first + BLOCK)}
    assert {seed: found.fault for seed, found in outcomes.items() if found.fault} == {}


DIGEST = """
import hashlib, random_examples
from random import Random
from typed_graphs import ImpossibleError
from ortconv.onnxio.load import from_proto
from ortconv.ortformat.writer import serialize
from ortconv.pipeline import optimize

digest = hashlib.sha256()
for seed in range(24):
    try:
        model = from_proto(random_examples.example(Random(seed)).proto)
    except ImpossibleError:
        continue
    optimize(model)
    digest.update(b"".join(serialize(model)))
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_same_bytes_in_every_process() -> None:
    here = Path(__file__).parent
    paths = f"{here.parent.parent}:{here}"
    found = Counter(
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONPATH": paths, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert len(found) == 1
