"""Models that onnxruntime computes wrongly on this processor, in a form that it computes as all other processors do.

On x86-64 without VNNI instructions, onnxruntime's kernels add two products of uint8 and int8 in 16 bits, which overflows for
weights beyond 64. Phones have no such kernels. The same weights as uint8, with a zero point 128 higher, have the same products.
"""

from __future__ import annotations

import mmap
from functools import cache
from pathlib import Path
from platform import machine
from typing import TYPE_CHECKING

import numpy as np

from ortconv.errors import OrtconvError
from ortconv.ir.graph import Graph
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType, TensorType
from ortconv.models import ORT, is_ort, load

if TYPE_CHECKING:
    from ortconv.ir.model import Model

ENTRIES = {"session.x64quantprecision": "1"}
"""Session entry: where kernels overflow, onnxruntime's optimizer makes uint8 weights."""

NOTE = (
    "onnxruntime ran a copy with uint8 weights, since its products of uint8 and int8 overflow on this processor, but not on "
    "phones; for apps here, add --enable-pass Avx2WeightS8ToU8Transformer"
)

LARGE = 16 << 20
"""A search in more bytes takes longer than the test of the processor."""

LARGEST_MESSAGE = 1 << 30
"""ONNX models with more bytes of constants stay as they are: a message of protobuf holds 2 GiB."""

NAMES = (b"MatMulInteger", b"QLinearConv", b"QLinearMatMul", b"DynamicQuantize", b"QAttention", b"QGemm")
"""Parts of the names of the operators in question."""


def exact(model: str | bytes) -> bytes | None:
    """The model, a path or bytes, with uint8 instead of int8 weights where products may overflow; None if nothing changes."""
    if not may_overflow(model):
        return None
    from ortconv.optimizer.engine import Context
    from ortconv.optimizer.extended.qdq import UNSIGNED_WEIGHTS
    from ortconv.optimizer.levels import run_passes

    in_ort = is_ort(Path(model)) if isinstance(model, str) else model[4:8] == ORT
    try:
        loaded = load(model, only_to_run=True)
    except (OrtconvError, MemoryError):  # onnxruntime alone judges files
        return None
    if not in_ort and loaded.graph.constant_bytes > LARGEST_MESSAGE:
        return None
    changes = sum(count for _, count in run_passes(loaded.graph, (UNSIGNED_WEIGHTS,), Context()))
    return _serialized(loaded, in_ort) if changes else None


def may_overflow(model: str | bytes) -> bool:
    """True if a model has operators whose products may overflow on this processor."""
    if machine() not in ("x86_64", "AMD64"):
        return False
    if isinstance(model, bytes):
        return any(name in model for name in NAMES) and overflows()
    size = Path(model).stat().st_size
    if not size or (size > LARGE and not overflows()):
        return False
    with open(model, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in NAMES) and overflows()


def _serialized(model: Model, in_ort: bool) -> bytes:
    if in_ort:
        from ortconv.ortformat.writer import serialize

        return b"".join(serialize(model))
    from ortconv.onnxio.proto import model_proto

    return bytes(model_proto(model).SerializeToString())


@cache
def overflows() -> bool:
    """True if onnxruntime adds products of uint8 and int8 in 16 bits on this processor."""
    from ortconv.backends.onnxruntime_cpu import opened, session_options
    from ortconv.onnxio.proto import region_proto

    largest, count = (255, 127), 64
    graph = Graph()
    graph.opsets[""] = 13
    x = graph.add_input("x", TensorType(DType.UINT8, (1, count)))
    w = graph.constant(Tensor.of(np.full((count, 1), largest[1], np.int8)), "w")
    node = graph.add_node("MatMulInteger", [x, w], ["y"], types=[TensorType(DType.INT32, (1, 1))])
    message = region_proto(graph, [node], [x], [node.out]).SerializeToString()
    session = opened(message, session_options(None, 1, {}), "a product of uint8 and int8")
    (y,) = session.run(None, {"x": np.full((1, count), largest[0], np.uint8)})
    return bool(y.item() != largest[0] * largest[1] * count)
