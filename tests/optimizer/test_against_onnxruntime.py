"""Every optimizer of ONNX Runtime on small models that it rewrites: ours leave no more nodes, and the same numbers."""

from __future__ import annotations

import importlib
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from rewriting import random_feeds, run
from rows import Row

from ortconv.ir.tensor import Array
from ortconv.onnxio.load import from_proto
from ortconv.onnxio.proto import model_proto
from ortconv.pipeline import optimize

FAMILIES = sorted(p.stem for p in (Path(__file__).parent / "rows").glob("*.py") if p.stem != "__init__")
ROWS: list[Row] = list(chain(*(importlib.import_module(f"rows.{family}").ROWS for family in FAMILIES)))
LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "layout": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_LAYOUT,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def upstream(proto: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    """The model as ONNX Runtime optimizes it for any machine."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(folder / f"{level}.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        proto.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=["NchwcTransformer"]
    )
    return onnx.load(options.optimized_model_filepath)


def ops(graph: onnx.GraphProto) -> list[str]:
    """The operators of a graph and of those below it, constants aside."""
    found = [node.op_type for node in graph.node if node.op_type != "Constant"]
    for node in graph.node:
        found += [op for a in node.attribute if a.HasField("g") for op in ops(a.g)]
    return sorted(found)


def differ(want: list[Array], got: list[Array], atol: float) -> bool:
    """True if two results differ by more than rounding."""
    return any(
        a.dtype != b.dtype
        or a.shape != b.shape
        or (not np.array_equal(a, b) if a.dtype.kind in "OSU" else not np.allclose(a, b, 1e-4, atol, equal_nan=True))
        for a, b in zip(map(np.asarray, want), map(np.asarray, got), strict=True)
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_more_nodes_and_the_same_numbers(row: Row, tmp_path: Path) -> None:
    proto = row.proto()
    feeds = random_feeds(proto, one=1)
    want = run(proto, feeds)
    model = from_proto(proto)
    optimize(model, row.level)
    ours = model_proto(model)
    assert not differ(want, run(ours, feeds), row.atol)
    try:
        theirs = upstream(proto, row.level, tmp_path)
        wrong = differ(want, run(theirs, feeds), row.atol)
    except (Fail, InvalidArgument):
        wrong = True
    is_mended = bool(row.until) and _version(onnxruntime.__version__) > _version(row.until)
    assert wrong == (row.wrong and not is_mended)
    if wrong:
        return
    left, left_by_them = ops(ours.graph), ops(theirs.graph)
    assert (row.dearer and not is_mended) or len(left) <= len(left_by_them), (
        f"{left} where ONNX Runtime has {left_by_them}"
    )
    if not (row.same or is_mended):
        assert min(len(left), len(left_by_them)) < len(ops(proto.graph)), "no rewrite"
