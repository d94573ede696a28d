"""Stores constants that are read as float32 as float32 instead of float16, because the Cast would run every time."""

from __future__ import annotations

from ortconv.ir.types import DType
from ortconv.optimizer.engine import Replacement, rule
from ortconv.optimizer.passes import Pass
from ortconv.optimizer.pattern import C, Match, P


@rule("FuseFp16InitializerToFp32NodeTransformer", P("Cast", C("x", where=lambda value: value.dtype is DType.FLOAT16)))
def fold_cast(m: Match) -> Replacement:
    """Cast(float16 constant)  ->  float32 constant of any size

    Counterpart: FuseFp16InitializerToFp32NodeTransformer
    """
    if m.root.attrs.get("to") != DType.FLOAT or m.root.out.is_output:
        return None
    return m.tensor("x").numpy().astype(DType.FLOAT.numpy)


PASSES = (Pass("FuseFp16InitializerToFp32NodeTransformer", "layout.float16:fold_cast"),)
