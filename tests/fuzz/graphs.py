"""Random graphs near the patterns of rewrites: each is converted with the full proof, and its result is compared in onnxruntime."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ortconv
from ortconv.batch import work
from ortconv.compare.difference import difference
from ortconv.compare.tolerance import limit
from ortconv.errors import InternalError, OrtconvError
from ortconv.watch import risky
from tests.fuzz.campaign import Outcome

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "optimizer"))

import golden
import random_examples
from mutations import mutated
from typed_graphs import ImpossibleError as ImpossibleError

TIMES = 20
"""An output may differ by this multiple of its tolerance, and of the difference between two runs of the source."""

Feeds = dict[str, Any]
Outputs = list[Any]


def warm_up() -> None:
    """Import and read what all examinations need."""
    work.warm_up()
    golden.repeatable()


def made(seed: int) -> tuple[onnx.ModelProto, list[Feeds]]:
    """A model and sets of inputs: grown step by step, or a changed golden case. Raises ImpossibleError if there is none."""
    rng = Random(seed)
    if seed % 4 == 3:
        proto = mutated(rng.choice(golden.repeatable()), rng, 1 + rng.randrange(3))
        return proto, [golden.feeds(proto, number, special=number == 1) for number in range(2)]
    found = random_examples.example(rng)
    return found.proto, random_examples.feeds(rng, found)


def examine(seed: int) -> Outcome:
    """A fault is a model that is refused though onnxruntime runs it, or whose result differs in onnxruntime.

    A model that runs with optimizations, but fails without, is not valid. One that only loads with optimizations lacks a kernel.
    """
    try:
        proto, feeds = made(seed)
    except ImpossibleError:
        return Outcome("no model")
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "model.onnx", Path(folder) / "model.ort"
        source.write_bytes(proto.SerializeToString())
        expected = _expected(_outputs(source, feeds, False), _outputs(source, feeds, True))
        try:
            ortconv.convert(source, result)
        except InternalError as error:
            return Outcome("bug", str(error))
        except OrtconvError as error:
            return Outcome("refused", str(error)) if any(expected) else Outcome("refused by both")
        if not any(expected):
            return Outcome("only ours runs")
        got = _outputs(result, feeds, True) or [None] * len(feeds)
    for one, (want, outputs) in enumerate(zip(expected, got, strict=False)):
        if want and (fault := "does not run" if outputs is None else _differs(proto, feeds[one], *want, outputs)):
            return Outcome("differs", f"inputs {one}: {fault}")
    return Outcome("right")


def _expected(
    plain: list[Outputs | None] | None, own: list[Outputs | None] | None
) -> list[tuple[Outputs, Outputs] | None]:
    """The outputs of the source without and with optimizations, for each set of inputs on which it is valid."""
    if own is None:
        return []
    return [(a, b) if a is not None and b is not None else None for a, b in zip(plain or own, own, strict=True)]


def _outputs(path: Path, feeds: list[Feeds], optimized: bool) -> list[Outputs | None] | None:
    """onnxruntime's outputs for each set of inputs, None where it fails; None if the file does not load."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        with risky(
            f"onnxruntime {'optimizes' if optimized else 'opens'} {path.name}"
        ):  # the second attempt skips a deadly call
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    except Exception:
        return None
    return [_run(session, one) for one in feeds]


def _run(session: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs | None:
    try:
        return list(session.run(None, feeds))
    except Exception:
        return None


def _differs(proto: onnx.ModelProto, feeds: Feeds, plain: Outputs, own: Outputs, got: Outputs) -> str:
    """A description of the first output that differs by more than rounding explains; empty if there is none.

    Integers made from infinities or NaN are undefined.
    """
    graph = ortconv.load(proto.SerializeToString()).graph
    allowed = limit(graph, [v.dtype for v in graph.outputs])
    for name, a, b, c in zip(proto.graph.output, plain, own, got, strict=True):
        is_integer = isinstance(a, np.ndarray) and a.dtype.kind in "iu"
        floats = [x for x in ((*feeds.values(),) if is_integer else (a, b, c)) if np.asarray(x).dtype.kind == "f"]
        spread, found = difference(a, b), min(difference(a, c), difference(b, c), key=_size)
        if all(np.isfinite(x).all() for x in floats) and _size(found) > TIMES * (allowed + _size(spread)):
            return f"{name.name}: {found.mismatch or f'scaled {found.scaled:.3g}, allowed {allowed:.3g}'}"
    return ""


def _size(found: Any) -> float:
    return float("inf") if found.mismatch is not None else float(found.scaled)
