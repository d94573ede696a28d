"""onnxruntime as a reference: one thread, no optimizations, exact sums of products of bytes, no messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime


def options() -> Any:
    found = onnxruntime.SessionOptions()
    found.intra_op_num_threads = 1
    found.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found.log_severity_level = 4
    found.add_session_config_entry("session.x64quantprecision", "1")
    return found


def session(model: onnx.ModelProto | bytes | Path) -> onnxruntime.InferenceSession:
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(content, options(), providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto | bytes | Path, feeds: Mapping[str, Any]) -> list[Any]:
    """All outputs of a model."""
    return list(session(model).run(None, dict(feeds)))
