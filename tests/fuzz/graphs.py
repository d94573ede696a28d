"""Random graphs near the patterns of rewrites: each is converted with the full proof, and its result is compared in onnxruntime."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ortconv
from ortconv.backends.onnxruntime_app import SAVED
from ortconv.batch import work
from ortconv.choices import ERROR_BUDGET
from ortconv.compare.gap import Gap, strict_gap
from ortconv.compare.tolerance import limit
from ortconv.errors import InternalError, OrtconvError
from ortconv.onnxio.messages import walk
from ortconv.watch import risky
from tests.fuzz.campaign import Outcome

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "optimizer"))

import differential
import golden
import random_examples
from mutations import mutated
from typed_graphs import ImpossibleError as ImpossibleError

TIMES = 20
"""An output may differ by this multiple of its tolerance, and of the difference between two runs of the source."""

TINY = 1e-6

Settings = dict[str, Any]

SETTINGS: tuple[Settings, ...] = (
    {"use_nnapi": True},
    {"optimization_style": "Runtime"},
    {"use_nnapi": True, "maximize_offload": True, "optimization_level": "extended"},
    {"target_ort": "1.15"},
    {"use_coreml": True, "maximize_offload": True},
    {"float16": True},
    {"use_nnapi": True, "optimization_style": "Runtime", "nnapi_feature_level": 28},
    {"target_ort": "1.32", "target_platform": "arm"},
    {"optimization_level": "basic"},
)

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


def examine_levels(seed: int) -> Outcome:
    """A fault is a result of the optimizer, at any level, that onnxruntime refuses or that differs from the source there."""
    try:
        proto, feeds = made(seed)
        differential.examine(proto, feeds, executor=seed % 4 != 3)
    except ImpossibleError:
        return Outcome("impossible")
    except differential.DifferenceError as error:
        return Outcome("differs", str(error))
    return Outcome("right")


def examine(seed: int) -> Outcome:
    """A fault is a model that is refused though onnxruntime runs it, or whose result differs in onnxruntime.

    A model that runs with optimizations, but fails without, is not valid. One that only loads with optimizations lacks a kernel.
    """
    return _examine(seed, {})


def examine_settings(seed: int) -> Outcome:
    """As `examine`, with one of SETTINGS. For NNAPI, the result also runs on the simulated device."""
    return _examine(seed, SETTINGS[seed // 4 % len(SETTINGS)])


def _examine(seed: int, settings: Settings) -> Outcome:
    try:
        proto, feeds = made(seed)
    except ImpossibleError:
        return Outcome("no model")
    feeds = [one for one in feeds if _is_defined(proto, one) and (_is_finite(one) or not settings.get("float16"))]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "model.onnx", Path(folder) / "model.ort"
        source.write_bytes(proto.SerializeToString())
        plain, own = _outputs(source, feeds, optimized=False), _outputs(source, feeds)
        moved = _outputs(source, [_moved(one) for one in feeds], optimized=plain is None)
        expected = [_complete(outputs) for outputs in zip(plain or own or (), own or (), moved or ())]
        if (refusal := _refusal(source, result, settings, expected)) is not None:
            return refusal
        if not any(expected):
            return Outcome("only ours runs")
        runs = {"onnxruntime": _outputs(result, feeds)}
        if settings.get("optimization_style") == "Runtime":
            runs["onnxruntime with saved optimizations"] = _outputs(result, feeds, saved=True)
        valid = [one for one, wanted in zip(feeds, expected, strict=False) if wanted]
        fault = _nnapi_fault(proto, result, valid) if settings.get("use_nnapi") else ""
    budget = ERROR_BUDGET if settings.get("float16") else 0.0
    for place, got in runs.items():
        for one, (wanted, outputs) in enumerate(zip(expected, got or [None] * len(feeds), strict=False)):
            found = "does not run" if outputs is None else wanted and _differs(proto, wanted, outputs, budget)
            if wanted and found:
                fault = f"inputs {one} on {place}: {found}"
    return Outcome("differs", f"{settings or ''} {fault}") if fault else Outcome("right")


def _nnapi_fault(proto: onnx.ModelProto, path: Path, feeds: list[Feeds]) -> str:
    """The difference between the simulated device and the numpy backend for finite inputs; empty if there is none.

    Bytes may differ by one: NNAPI rounds halves away from zero, ONNX to even numbers.
    """
    with ortconv.Session(path, "numpy") as plain, ortconv.Session(path, ["nnapi", "numpy"]) as device:
        for one in filter(_is_finite, feeds):
            wanted, got = _run(plain, one), _run(device, one)
            if wanted is not None and got is None:
                return "nnapi: does not run"
            if wanted is not None and got is not None:
                found = _differs(proto, [wanted, wanted], [w if _is_next(w, g) else g for w, g in zip(wanted, got)])
                if found:
                    return f"nnapi: {found}"
    return ""


def _is_next(wanted: Any, got: Any) -> bool:
    """True for bytes that differ by one at most."""
    arrays = isinstance(wanted, np.ndarray) and isinstance(got, np.ndarray)
    if not arrays or wanted.dtype.itemsize > 1 or wanted.dtype.kind not in "iu" or wanted.shape != got.shape:
        return False
    return bool((abs(wanted.astype(np.int16) - got) <= 1).all())


def _refusal(source: Path, result: Path, settings: Settings, expected: Sequence[object]) -> Outcome | None:
    """The outcome of a conversion that fails. `expected` are the outputs of the source."""
    try:
        ortconv.convert(source, result, **settings)
    except InternalError as error:
        return Outcome("bug", str(error))
    except OrtconvError as error:
        if "target_ort" in settings and f"the target is {settings['target_ort']}" in str(error):
            return Outcome("refused for its target")
        return Outcome("refused", str(error)) if any(expected) else Outcome("refused by both")
    return None


def _is_finite(feeds: Feeds) -> bool:
    return all(x.dtype.kind != "f" or np.isfinite(x).all() for x in feeds.values())


def _is_defined(proto: onnx.ModelProto, feeds: Feeds) -> bool:
    """False for infinities and NaN that may be cast to integers, and for inputs that are empty without need."""
    casts = any("Cast" in node.op_type for node in walk(proto.graph.node))
    if casts and not _is_finite(feeds):
        return False
    shapes = {v.name: v.type.tensor_type.shape.dim for v in proto.graph.input}
    return not any(
        size == 0 and not dim.HasField("dim_value")
        for name, x in feeds.items()
        for size, dim in zip(x.shape, shapes.get(name, ()), strict=False)
    )


def _complete(outputs: Sequence[Outputs | None]) -> list[Outputs] | None:
    """The outputs of all runs; None if one of them failed."""
    found = [one for one in outputs if one is not None]
    return found if len(found) == len(outputs) else None


def _moved(feeds: Feeds) -> Feeds:
    """The inputs with errors of the size of rounding."""
    return {name: x * x.dtype.type(1 + 2.0**-20) if x.dtype.kind == "f" else x for name, x in feeds.items()}


def _outputs(
    path: Path, feeds: list[Feeds], *, optimized: bool = True, saved: bool = False
) -> list[Outputs | None] | None:
    """onnxruntime's outputs for each set of inputs, None where it fails; None if the file does not load.

    With `saved`, it applies the optimizations that the file contains.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(SAVED, str(int(saved)))
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    call = f"onnxruntime runs {path.name} {'with' if optimized else 'without'} optimizations"
    try:
        with risky(call):  # a second attempt at this seed skips the call that killed the first one
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            return [_run(session, one) for one in feeds]
    except Exception:
        return None


def _run(session: onnxruntime.InferenceSession | ortconv.Session, feeds: Feeds) -> Outputs | None:
    try:
        return list(session.run(None, feeds))
    except Exception:
        return None


def _differs(proto: onnx.ModelProto, wanted: Sequence[Outputs], got: Outputs, budget: float = 0.0) -> str:
    """A description of the first output that differs from all wanted ones by more than these differ, and by more than a budget;
    empty if there is none.
    """
    graph = ortconv.load(proto.SerializeToString()).graph
    allowed = max(limit(graph, [v.dtype for v in graph.outputs]), budget)
    for name, result, *others in zip(proto.graph.output, got, *wanted, strict=True):
        floats = [x for x in (result, *others) if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        spread = max(_size(strict_gap(others[0], other)) for other in others)
        found = min(_size(strict_gap(other, result)) for other in others)
        if all(np.isfinite(x).all() for x in floats) and found > TIMES * (allowed + spread):
            return f"{name.name}: scaled {found:.3g}, allowed {allowed:.3g}"
    return ""


def _size(found: Gap) -> float:
    """The relative difference; 0 if it is below the smallest numbers of float16."""
    if found.mismatch is not None:
        return float("inf")
    return found.scaled if found.largest > TINY else 0.0
