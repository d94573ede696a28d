"""Removal of private content from models: descriptions, metadata, and on request the weights."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from ortconv.ir.graph import Graph
from ortconv.ir.model import Model
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType

SMALLEST = 17
"""Constants with fewer elements are kept: they are shapes, axes, scales and the like."""

PERIOD = 256
"""Period of the generated elements of a constant, so that an archive of them is small."""

SHAPES = (DType.INT32, DType.INT64)
LARGEST_SHAPE = 1024
"""Integers of these types are kept up to this many elements: they may be shapes or indices."""


def without_texts(model: Model) -> None:
    """Remove descriptions and metadata, which may hold paths and names of people."""
    model.doc = ""
    model.metadata.clear()
    for graph in model.graph.graphs():
        graph.doc = ""
        for node in graph:
            node.doc = ""


def without_weights(model: Model) -> int:
    """Replace the larger constants by generated ones with the same type, shape, range, mean and deviation. Return their number."""
    count = 0
    for graph in model.graph.graphs():
        for name, value in graph.initializers.items():
            const = value.const
            if isinstance(const, Tensor) and not _is_kept(const):
                value.const = made_up(const, _seed(graph, name))
                count += 1
    return count


def _is_kept(const: Tensor) -> bool:
    return const.size < (LARGEST_SHAPE if const.dtype in SHAPES else SMALLEST)


def _seed(graph: Graph, name: str) -> int:
    """A seed that depends only on the position of a constant."""
    return int.from_bytes(blake2b(f"{graph.name} {name}".encode("utf-8", "replace"), digest_size=8).digest(), "little")


def made_up(const: Tensor, seed: int) -> Tensor:
    """A constant of the same type, shape, range, mean and deviation, but with other elements. Strings become s0, s1, ..."""
    if const.dtype is DType.STRING:
        return Tensor.of(np.array([f"s{i}" for i in range(const.size)], object).reshape(const.shape))
    array = const.numpy()
    rng = np.random.default_rng(seed)
    if array.dtype == bool:
        drawn = rng.random(min(array.size, PERIOD)) < array.mean()
    else:
        drawn = _drawn(array, rng)
    return Tensor.of(np.resize(drawn, const.shape).astype(array.dtype), const.dtype)


def _drawn(array: Array, rng: np.random.Generator) -> Array:
    """Up to PERIOD normal numbers with the mean and deviation of an array, limited to its range."""
    plain = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).real.ravel()
    finite = plain[np.isfinite(plain)]
    if not finite.size:
        return np.zeros(1)
    drawn: Array = rng.standard_normal(min(array.size, PERIOD))
    if drawn.size > 1:
        drawn = (drawn - drawn.mean()) / max(float(drawn.std()), 1e-12)
    drawn = np.clip(drawn * finite.std() + finite.mean(), finite.min(), finite.max())
    return np.rint(drawn) if (finite == np.rint(finite)).all() else drawn
