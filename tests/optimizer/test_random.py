"""Random models near the rules' patterns at every level: onnxruntime takes the result, which computes what the source computes.

Every seed is one model, the same on every machine. `pytest tests/optimizer/test_random.py --fuzz 20000` tries that many.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import golden
import pytest
import random_examples
from differential import DifferenceError, Tally, examine
from mutations import mutated
from typed_graphs import ImpossibleError

FEW, SOME = 40, 480
"""Models of a quick run and of a usual one, in blocks that run side by side."""
BLOCK = 40


def grown(rng: Random, tally: Tally | None = None) -> None:
    """Examine a model grown step by step."""
    try:
        found = random_examples.example(rng)
    except ImpossibleError:
        return
    examine(found.proto, random_examples.feeds(rng, found), tally)


def changed(rng: Random, tally: Tally | None = None) -> None:
    """Examine a golden case after some mutations."""
    sources = golden.repeatable()
    proto = mutated(sources[rng.randrange(len(sources))], rng, 1 + rng.randrange(3))
    examine(proto, [golden.feeds(proto, seed, special=seed == 1) for seed in range(2)], tally, executor=False)


@pytest.mark.parametrize(
    "first", [*range(0, FEW, BLOCK), *(pytest.param(i, marks=pytest.mark.slow) for i in range(FEW, SOME, BLOCK))]
)
def test_few(first: int) -> None:
    found = _differences(range(first, first + BLOCK), Tally())
    assert not found, "\n".join(found)


def test_many(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--fuzz")
    if not count:
        pytest.skip("only with --fuzz N")
    tally = Tally()
    found = _differences(range(count), tally)
    print(dict(tally.outcomes), *tally.rules.most_common(), sep="\n")
    assert not found, "\n".join(found)


def _differences(seeds: range, tally: Tally) -> list[str]:
    return [text for seed in seeds if (text := _difference(seed, tally))]


def _difference(seed: int, tally: Tally) -> str | None:
    try:
        (changed if seed % 4 == 3 else grown)(Random(seed), tally)
    except DifferenceError as error:
        return f"seed {seed}: {error}"
    return None


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
