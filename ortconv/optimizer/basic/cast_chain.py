"""Shortens chains of Casts between floating-point types even if the inner type is narrower."""

from __future__ import annotations

from ortconv.optimizer.conditions import FLOATS
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.pattern import Match, P


@rule("LossyCastChainElimination", P("Cast", P("Cast", "x", name="inner", shared=True)))
def eliminate_lossy_cast_chain(m: Match) -> Replacement:
    """Cast(Cast(x, B), C)  ->  Cast(x, C) or x, for floating-point types, even if B rounds

    Counterpart: CastChainElimination (optimization.enable_cast_chain_elimination)
    Differs: only between floating-point types: an inner integer or bool truncates, which is more than a loss of
        precision.
    Opt-in: omits a rounding, so the results are nearer to those of the wider type, but differ from those of the source.
    """
    types = (m.x.dtype, m.node("inner").out.dtype, m.root.out.dtype)
    if not FLOATS.issuperset(types):
        return None
    if types[0] is types[2]:
        return m.x
    return New("Cast", [m.x], like=m.root)
