"""Whole models, converted with --use_nnapi and run on the backend "nnapi", against onnxruntime on the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortconv.backends.nnapi.backend import Nnapi, NnapiOptions, NnapiProgram
from ortconv.cli import main
from ortconv.compare.tolerance import limit
from ortconv.inputs.candidates import candidates
from ortconv.models import load
from ortconv.partition import Target, partition
from ortconv.runtime.session import Session
from tests import unoptimized
from tests.conftest import FAST_NAMES, SHARED_MODELS

MODELS = json.loads((SHARED_MODELS / "INDEX.json").read_text())["models"] if SHARED_MODELS.is_dir() else []

HALF_LIMIT = float(np.finfo(np.float16).eps)
NO_HALF = {
    "bert_tiny": "the attention mask multiplies by -3.4e38",
    "zoo_shufflenet": "a convolution gives 91,000",
    "yolos_tiny_ts15": "the epsilon 1e-12 of layer normalization is 0, and 0 is divided by 0",
    "bert_small_dynquant": "the attention mask adds -3.4e38",
    "yolo_nms_ts13": "boxes of nearly equal score change places",
}
"""What does not fit float16 in these models."""


def converted(source: Path, folder: Path, dims: dict[str, int]) -> Path:
    path = folder / f"{source.stem}.ort"
    fixed = [part for name, size in dims.items() for part in ("--fix-dim", f"{name}={size}")]
    assert main(["convert", str(source), "-o", str(path), "--use_nnapi", "--no-validate", "-q", *fixed]) == 0
    return path


def distance(want: list[Any], got: list[Any]) -> float:
    """The largest difference, relative to the largest magnitude of its output; NaN where there is one."""
    worst = 0.0
    for a, b in zip(want, got, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.size:
            off = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
            worst = float(np.maximum(worst, off / max(float(np.abs(a).max()), 1e-30)))
    return worst


def check(source: Path, feeds: dict[str, Any], dims: dict[str, int], folder: Path) -> None:
    want = unoptimized.run(source, feeds)
    path = converted(source, folder, dims)
    graph = load(source, dims).graph
    allowed = limit(graph, [v.dtype for v in graph.outputs])
    for nchw in (False, True):
        session = Session(path, [Nnapi(NnapiOptions(nchw=nchw))])
        assert distance(want, session.run(None, feeds)) <= allowed
        check_plan(session, partition(session.model.graph, Target(use_nchw=nchw)).partitions)
    error = distance(want, Session(path, [Nnapi(NnapiOptions(fp16=True))]).run(None, feeds))
    bound = max(allowed, HALF_LIMIT * (4 + np.sqrt(len(graph))))
    if source.stem in NO_HALF:
        assert not error <= bound, "fits float16"
    else:
        assert error <= bound


def check_plan(session: Session, partitions: Any) -> None:
    """Every partition ran as one NNAPI model of its own."""
    ran = [(p, region) for p, region in session._main.programs if isinstance(p, NnapiProgram)]
    assert sorted(len(r.nodes) for _, r in ran) == sorted(len(p.nodes) for p in partitions)
    assert {n for _, r in ran for n in r.nodes} == {n for p in partitions for n in p.nodes}
    assert [name for name, _ in session.regions].count("nnapi") == len(ran) == len(partitions)
    assert all(p.executions == 1 and p.lowered.model.operations for p, _ in ran)
    assert {p.backend for p in session.plan if p.claim is not None} <= {"nnapi"}


@pytest.mark.parametrize("sample", FAST_NAMES, indirect=True)
def test_sample(sample: Path, tmp_path: Path) -> None:
    graph = load(sample).graph
    feeds = next(candidates(graph))
    sizes = {v.name: np.shape(feeds[v.name]) for v in graph.inputs if v.name in feeds}
    symbols = {
        d: sizes[v.name][axis]
        for v in graph.inputs
        if v.name in sizes
        for axis, d in enumerate(v.shape or ())
        if isinstance(d, str) and not d.startswith("?")
    }
    check(sample, feeds, symbols, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not MODELS, reason="the shared models are not here")
@pytest.mark.parametrize("about", MODELS, ids=[m["name"] for m in MODELS])
def test_shared_model(about: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    feeds = {i["name"]: made(i, rng) for i in about["inputs"]}
    dims = {d: n for i in about["inputs"] for d, n in zip(i["shape"], i["fixed_shape"]) if isinstance(d, str)}
    check(SHARED_MODELS / about["file"], feeds, dims, tmp_path)


def made(about: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """An input of the kind that the index asks for."""
    kind, shape = about["gen"], about["fixed_shape"]
    match kind["kind"]:
        case "randn":
            array = rng.standard_normal(shape)
        case "uniform":
            array = rng.uniform(kind["low"], kind["high"], shape)
        case "randint":
            array = rng.integers(kind["low"], kind["high"], shape)
        case "const":
            array = np.full(shape, kind["value"])
        case "padmask":
            array = np.ones(shape)
            array[..., -8:] = 0
        case other:
            array = {"ones": np.ones, "zeros": np.zeros}[other](shape)
    return np.asarray(array).astype(about["dtype"])
