"""onnxruntime as a reference: one thread, no optimizations, exact sums of products of bytes, no messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from ortconv.backends.onnxruntime_overflow import exact, overflows


def options() -> Any:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = 1
    found.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found.log_severity_level = 4
    found.add_session_config_entry("session.x64quantprecision", "1")
    return found


def session(model: onnx.ModelProto | bytes | Path, settings: Any = None) -> onnxruntime.InferenceSession:
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    content = exact(content if isinstance(content, bytes) else str(content)) or content
    return onnxruntime.InferenceSession(content, settings or options(), providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto | bytes | Path, feeds: Mapping[str, Any]) -> list[Any]:
    """All outputs of a model."""
    if isinstance(model, onnx.ModelProto):
        model, feeds = without_overflow(model, feeds)
    return list(session(model).run(None, dict(feeds)))


def without_overflow(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The same, with constants instead of int8 inputs if onnxruntime's products of these overflow: only constants become uint8."""
    if not overflows():
        return model, dict(feeds)
    fed = {name: x for name, x in feeds.items() if getattr(x, "dtype", None) == np.int8}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = [v for v in model.graph.input if v.name not in fed]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    changed.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in fed.items())
    return changed, {name: x for name, x in feeds.items() if name not in fed}
