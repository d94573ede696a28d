"""Fast forms of elementwise operators, with their own memory."""

from __future__ import annotations

import numpy as np

from ortconv.executor.algorithms.half_precision import is_native
from ortconv.executor.replay.work import Function, Work
from ortconv.ir.tensor import Array


def of_ufunc(function: Function) -> Function:
    """The elementwise operator of a ufunc whose result has the type of its operands."""

    def run(work: Work, *operands: Array) -> Array | None:
        if not is_native(*operands):
            return None
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        model = next((x for x in operands if x.shape == shape), None)
        out = work.empty(shape, operands[0].dtype) if model is None else work.like(model)
        work.do(function, *operands, out)
        return out

    return run
