"""Random models near the rules' patterns at every level: onnxruntime takes the result, which computes what the source computes.

Every seed is one model, the same on every machine. `python -m tests.fuzz levels 0 20000` tries that many.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import random_examples
from golden import dump, optimize
from typed_graphs import ImpossibleError

from ortconv.errors import GraphError
from ortconv.ir.graph import Graph
from ortconv.onnxio.load import from_proto
from ortconv.optimizer.levels import passes_of
from tests.batches import slow_except
from tests.fuzz import graphs

FEW, SOME = 8, 480
"""Models of a quick run and of a usual one, in blocks that run side by side."""
BLOCK = 8


@pytest.mark.parametrize(
    "first", [*range(0, FEW, BLOCK), *(pytest.param(i, marks=pytest.mark.slow) for i in range(FEW, SOME, BLOCK))]
)
def test_few(first: int) -> None:
    outcomes = {seed: graphs.examine_levels(seed) for seed in range(first, first + BLOCK)}
    assert {seed: found.fault for seed, found in outcomes.items() if found.fault} == {}


@pytest.mark.parametrize("first", slow_except([0], range(0, 120, 10)))
def test_the_basic_level_leaves_nothing_to_do_and_adds_no_nodes(first: int) -> None:
    """A quantizer may get a copy for each reader."""

    def count(graph: Graph) -> int:
        return sum(node.op not in ("QuantizeLinear", "DequantizeLinear") for node in graph.walk())

    basic = passes_of("basic")
    for seed in range(first, first + 10):
        with suppress(ImpossibleError, GraphError):
            model = from_proto(random_examples.example(Random(seed)).proto)
            before = count(model.graph)
            optimize(model, basic)
            assert count(model.graph) <= before, seed
            once = dump(model)
            assert optimize(model, tuple(p for p in basic if not p.once)).trace == [], seed
            assert dump(model) == once, seed


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
