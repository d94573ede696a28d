"""Random models near the rules' patterns, grown or mutated, and feeds for them."""

from __future__ import annotations

from random import Random

import idioms
import idioms_fused
import idioms_quantized
import idioms_tensorflow
import idioms_torch
import numpy as np
from typed_graphs import SPECIAL, Builder, Example

OPSETS = (9, 10, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21, 22, 23)
FAMILIES = (
    idioms.STEPS, idioms_fused.STEPS, idioms_quantized.STEPS, idioms.STEPS + idioms_fused.STEPS,
    idioms.STEPS + idioms_fused.STEPS + idioms_quantized.STEPS, idioms_tensorflow.STEPS,
    idioms_tensorflow.STEPS + idioms.STEPS, idioms_torch.STEPS,
)  # fmt: skip


SPARED = ("Reduce", "Conv", "Softmax", "Shape", "Reshape", "Einsum")


def example(rng: Random) -> Example:
    """A model of a few steps of one or several families."""
    opset = OPSETS[rng.randrange(len(OPSETS))]
    dtype = (np.float32,) * 10 + (np.float64, np.float16)
    builder = Builder(rng, opset, dtype[rng.randrange(len(dtype))])
    builder.grow(FAMILIES[rng.randrange(len(FAMILIES))], 1 + rng.randrange(5))
    return builder.example()


def feeds(rng: Random, found: Example) -> list[dict[str, np.ndarray]]:
    """The example's own, the same with special values, and with other sizes for its symbols."""
    return [found.feeds, _special(rng, found.feeds) | found.defaults, _resized(rng, found)]


def _special(rng: Random, usual: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    changed = {}
    for name, array in usual.items():
        array = array.copy()
        if array.dtype.kind == "f" and array.size:
            for _ in range(1 + rng.randrange(3)):
                with np.errstate(over="ignore"):
                    array.reshape(-1)[rng.randrange(array.size)] = SPECIAL[rng.randrange(len(SPECIAL))]
        changed[name] = array
    return changed


def _resized(rng: Random, found: Example) -> dict[str, np.ndarray]:
    shapes = {name: list(array.shape) for name, array in found.feeds.items()}
    # Where there is nothing, onnxruntime keeps the size of a reduced axis, does not return from Conv, divides by zero in Einsum and
    # fails in QLinearSoftmax;
    # in the target of a Reshape a 0 copies a dimension, and beside it there is nothing that -1 could stand for; Concat takes empty
    # tensors of any shape, so halves of an odd length may go together.
    ops = {n.op_type for n in found.proto.graph.node}
    sizes = (2, 4) if "Concat" in ops else (1, 2, 3, 5) if any(op.startswith(SPARED) for op in ops) else (0, 1, 2, 3, 5)
    for places in found.free.values():
        size = sizes[rng.randrange(len(sizes))]
        for name, axis in places:
            if name in shapes:
                shapes[name][axis] = size
    resized = {}
    for name, array in found.feeds.items():
        if tuple(shapes[name]) == array.shape or not array.size:
            resized[name] = array if tuple(shapes[name]) == array.shape else np.zeros(shapes[name], array.dtype)
        else:
            resized[name] = np.resize(array, shapes[name])
    return resized
