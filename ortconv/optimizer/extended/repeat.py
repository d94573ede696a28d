"""Slices that are repeated one by one, as heads are that several queries share, are gathered at once."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Value
from ortconv.optimizer.conditions import axes_of, equal_shapes
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.pattern import Match, P

_WIDE = P("Expand", P("Unsqueeze", "x", ..., name="unsqueeze"), ..., name="expand")


@rule("RepeatFusion", P("Reshape", _WIDE, ...))
def fuse_repeat(m: Match) -> Replacement:
    """Reshape(Expand(Unsqueeze(x, axis + 1)))  ->  Gather(x, [0, 0, 1, 1, ...], axis)

    Counterpart: none: beyond ONNX Runtime
    """
    x: Value = m.x
    shape, axes = x.shape, axes_of(m.unsqueeze)
    if shape is None or not axes or len(axes) != 1:
        return None
    axis = axes[0] % (len(shape) + 1) - 1
    count, copies = x.dim(axis), m.expand.out.dim(axis + 1)
    if axis < 0 or not isinstance(count, int) or not isinstance(copies, int) or min(count, copies) < 1:
        return None
    before, after = shape[:axis], shape[axis + 1 :]
    if not equal_shapes(m.expand.out.shape, (*before, count, copies, *after)):
        return None
    if not equal_shapes(m.root.out.shape, (*before, count * copies, *after)):
        return None
    index = np.repeat(np.arange(count, dtype=np.int64), copies)
    return New("Gather", [x, index], {"axis": axis}, types=[m.root.out.type])


PASSES = (RulePass("RepeatFusion", fuse_repeat),)
